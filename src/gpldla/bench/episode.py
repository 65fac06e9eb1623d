"""One episode, side by side with what else one would use: time to fit and to answer, and how good it is."""

from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version
from importlib.util import find_spec
from statistics import median
from typing import Any

import numpy as np
import torch
from rich.box import SIMPLE_HEAD
from rich.table import Table
from sklearn.gaussian_process import GaussianProcessClassifier
from sklearn.gaussian_process.kernels import DotProduct
from sklearn.linear_model import LogisticRegression
from torch import Tensor

from gpldla.classifier.estimator import GPLDLAClassifier
from gpldla.heads import create_head
from gpldla.utils.progress import SILENT, Reporter
from gpldla.utils.provenance import provenance
from gpldla.utils.timing import fastest_threads, seconds_per_call, two_digits

WAYS, SHOTS, QUERIES, FEATURES = 5, 5, 15, 1600  # 75 queries; the features of Conv-4
ROUNDS = 11
SIGNAL = 0.25  # how far apart the classes are, in units of the noise: about 95 % are told right

HEAD = "GPLDLA, head on tensors"
GIVEN = "GPLDLAClassifier(beta=1.0, center=False)"
AUTO = "GPLDLAClassifier()"
LOGISTIC = "LogisticRegression()"
GPYTORCH = "GPyTorch, one GP a class, as it is"
GPYTORCH_LEARNED = "GPyTorch, one GP a class, 50 steps of Adam"  # as its tutorials have it

# Made anew for each fit, as a user would.
ESTIMATORS: dict[str, Callable[[], Any]] = {
    GIVEN: lambda: GPLDLAClassifier(beta=1.0, center=False),
    AUTO: GPLDLAClassifier,
    LOGISTIC: LogisticRegression,
    # By default its kernel is RBF(1.0) and stays that, far too narrow for these features; a linear kernel,
    # as ours is, learns its one parameter.
    "GaussianProcessClassifier()": GaussianProcessClassifier,
    "GaussianProcessClassifier(DotProduct())": lambda: GaussianProcessClassifier(DotProduct()),
}


@dataclass(frozen=True)
class Episode:
    """Features on the CPU: support [n, d], labels [n], query [q, d], query_labels [q]."""

    support: Tensor
    labels: Tensor
    query: Tensor
    query_labels: Tensor


def draw_episode(ways: int, examples: int, queries: int, features: int) -> Episode:
    """Draw features such as a network with a last ReLU gives; examples and queries of all classes in turn.

    Channels differ in how active they are whatever the class, classes a little in their channels.
    """
    generator = torch.Generator().manual_seed(0)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator)

    centres = normal(features) + SIGNAL * normal(ways, features)
    labels, query_labels = torch.arange(examples) % ways, torch.arange(queries) % ways
    return Episode(
        (centres[labels] + normal(examples, features)).relu_(),
        labels,
        (centres[query_labels] + normal(queries, features)).relu_(),
        query_labels,
    )


def bench_episode(
    device: torch.device, *, rounds: int = ROUNDS, reporter: Reporter = SILENT
) -> dict[str, Any]:
    """Time all of them on the same episode, in turn; what uses torch on `device`, the rest on the CPU."""
    episode = draw_episode(WAYS, WAYS * SHOTS, WAYS * QUERIES, FEATURES)
    ways = contestants(episode, device)
    quality = {name: _quality(call(), episode.query_labels.numpy()) for name, call in ways.items()}
    threads = fastest_threads(ways, device)
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    with reporter.bar("timing an episode", rounds) as advance:
        for _ in range(rounds):
            for name, spent in seconds_per_call(ways, device, 1, threads).items():
                seconds[name] += spent
            advance(1)
    rows = [
        {
            "method": name,
            "threads": threads[name],
            "ms": 1e3 * median(spent),
            "ratio": median(spent) / median(seconds[HEAD]),
            **quality[name],
        }
        for name, spent in seconds.items()
    ]
    return {
        "command": _command(device, rounds),
        **provenance(device),
        "threads": torch.get_num_threads(),
        "versions": {name: version(name) for name in _packages()},
        "ways": WAYS,
        "shots": SHOTS,
        "queries": WAYS * QUERIES,
        "features": FEATURES,
        "rounds": rounds,
        "rows": rows,
        "missing": [name for name in (GPYTORCH, GPYTORCH_LEARNED) if name not in ways],
    }


def contestants(episode: Episode, device: torch.device) -> dict[str, Callable[[], Any]]:
    """Return by name what fits on the support set and returns probabilities of the query, [q, C].

    Those on tensors return log probabilities, as they come. GPLDLA's head comes first: the others are
    compared with it.
    """
    support, labels, query = (t.to(device) for t in (episode.support, episode.labels, episode.query))
    head = create_head("gpldla", feature_dim=support.shape[-1]).to(device).eval()
    ways = len(episode.labels.unique())

    @torch.inference_mode()
    def by_the_head() -> Tensor:
        return head.adapt(support, labels, ways).log_prob(query)

    def by_an_estimator(make: Callable[[], Any]) -> Callable[[], np.ndarray]:
        X, y, new = (t.numpy() for t in (episode.support, episode.labels, episode.query))
        return lambda: make().fit(X, y).predict_proba(new)

    answers: dict[str, Callable[[], Any]] = {HEAD: by_the_head}
    answers |= {name: by_an_estimator(make) for name, make in ESTIMATORS.items()}
    if _has_gpytorch():
        from gpldla.bench.gpytorch_gps import answer

        def by_gpytorch(steps: int) -> Tensor:
            return answer(support[None], labels[None], ways, query[None], steps=steps)[0]

        answers |= {GPYTORCH: lambda: by_gpytorch(0), GPYTORCH_LEARNED: lambda: by_gpytorch(50)}
    return answers


def _has_gpytorch() -> bool:
    return find_spec("gpytorch") is not None


def _packages() -> list[str]:
    return ["torch", "numpy", "scipy", "scikit-learn", *(["gpytorch"] if _has_gpytorch() else [])]


def _command(device: torch.device, rounds: int) -> str:
    command = f"gpldla bench --device {device.type}"
    return command if rounds == ROUNDS else f"{command} --rounds {rounds}"


def _quality(answer: Tensor | np.ndarray, labels: np.ndarray) -> dict[str, float]:
    """Return accuracy (%) and mean −log p of log probabilities (a tensor) or probabilities (an array)."""
    log_p = answer.cpu().numpy() if isinstance(answer, Tensor) else np.log(answer)
    return {
        "accuracy": 100 * float((log_p.argmax(1) == labels).mean()),
        "nll": -float(log_p[np.arange(len(labels)), labels].mean()),
    }


def episode_table(results: dict[str, Any]) -> Table:
    """Show how long each takes, how many times the head's time that is, and how good its answers are."""
    table = Table(
        title=f"One episode, {results['ways']}-way {results['shots']}-shot, {results['queries']} queries,"
        f" d = {results['features']}: fit, and probabilities of the queries",
        title_justify="left",
        caption=f"Medians of {results['rounds']} rounds, in each of which all were timed in turn; every one"
        " with as many threads as it is fastest with, one or all.\nGaussianProcessClassifier() keeps its"
        f" kernel, RBF(1.0), which is too narrow for these features.\n{results['device']}.",
        caption_justify="left",
        box=SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
    )
    table.add_column("method", no_wrap=True)
    for column in ("ms", "times the head's", "threads", "accuracy %", "NLL"):
        table.add_column(column, justify="right", no_wrap=True)
    for row in results["rows"]:
        table.add_row(
            row["method"],
            two_digits(row["ms"]),
            two_digits(row["ratio"]),
            str(row["threads"]),
            f"{row['accuracy']:.1f}",
            f"{row['nll']:.3f}",
            style="bold" if row["method"] == HEAD else None,
        )
    for name in results["missing"]:
        table.add_row(name, "not installed", style="dim")
    return table


def estimator_line(results: dict[str, Any]) -> str:
    """Compare the estimator, which checks its input as scikit-learn does, with logistic regression."""
    ms = {row["method"]: row["ms"] for row in results["rows"]}
    given, auto = (two_digits(ms[LOGISTIC] / ms[name]) for name in (GIVEN, AUTO))
    return f"{GIVEN} is {given} times as fast as {LOGISTIC}, {AUTO} {auto} times."
