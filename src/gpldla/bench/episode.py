"""One episode beside other classifiers: the time to fit and to predict, accuracy and NLL."""

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
SIGNAL = 0.25  # distance of the classes, in units of the noise: gives an accuracy of about 95 %

HEAD = "GPLDLA, head on tensors"
GIVEN = "GPLDLAClassifier(beta=1.0, center=False)"
AUTO = "GPLDLAClassifier()"
LOGISTIC = "LogisticRegression()"
GPYTORCH = "GPyTorch, one GP per class, fixed kernel"
GPYTORCH_LEARNED = "GPyTorch, one GP per class, 50 steps of Adam"  # as in its tutorials

# A new one for each fit, as users do.
ESTIMATORS: dict[str, Callable[[], Any]] = {
    GIVEN: lambda: GPLDLAClassifier(beta=1.0, center=False),
    AUTO: GPLDLAClassifier,
    LOGISTIC: LogisticRegression,
    # Its default kernel, RBF(1.0), is not learned and far too narrow for these features; a linear kernel, as
    # ours is, learns its one parameter.
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
    """Draw features like those of a network with a last ReLU; examples and queries cycle through the classes.

    The mean activation of channels differs much between channels and little between classes.
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
    """Time all methods on the same episode, in turn; those of torch on `device`, the others on the CPU."""
    episode = draw_episode(WAYS, WAYS * SHOTS, WAYS * QUERIES, FEATURES)
    ways = timed_methods(episode, device)
    quality = {name: _quality(call(), episode.query_labels.numpy()) for name, call in ways.items()}
    threads = fastest_threads(ways, device)
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    with reporter.bar("timing one episode", rounds) as advance:
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


def timed_methods(episode: Episode, device: torch.device) -> dict[str, Callable[[], Any]]:
    """Return, by name, functions that fit on the support set and return probabilities of the query, [q, C].

    Those on tensors return log probabilities instead. GPLDLA's head comes first: the others are compared
    with it.
    """
    support, labels, query = (t.to(device) for t in (episode.support, episode.labels, episode.query))
    head = create_head("gpldla", feature_dim=support.shape[-1]).to(device).eval()
    ways = int(episode.labels.max()) + 1

    @torch.inference_mode()
    def with_head() -> Tensor:
        return head.adapt(support, labels, ways).log_prob(query)

    def with_estimator(make: Callable[[], Any]) -> Callable[[], np.ndarray]:
        X, y, new = (t.numpy() for t in (episode.support, episode.labels, episode.query))
        return lambda: make().fit(X, y).predict_proba(new)

    answers: dict[str, Callable[[], Any]] = {HEAD: with_head}
    answers |= {name: with_estimator(make) for name, make in ESTIMATORS.items()}
    if _has_gpytorch():
        from gpldla.bench.gpytorch_gps import predict_log_prob

        def with_gpytorch(steps: int) -> Tensor:
            return predict_log_prob(support[None], labels[None], ways, query[None], steps=steps)[0]

        answers |= {GPYTORCH: lambda: with_gpytorch(0), GPYTORCH_LEARNED: lambda: with_gpytorch(50)}
    return answers


def _has_gpytorch() -> bool:
    return find_spec("gpytorch") is not None


def _packages() -> list[str]:
    return ["torch", "numpy", "scipy", "scikit-learn", *(["gpytorch"] if _has_gpytorch() else [])]


def _command(device: torch.device, rounds: int) -> str:
    command = f"gpldla bench --device {device}"
    return command if rounds == ROUNDS else f"{command} --rounds {rounds}"


def _quality(predicted: Tensor | np.ndarray, labels: np.ndarray) -> dict[str, float]:
    """Return accuracy (%) and mean −log p of log probabilities (a tensor) or probabilities (an array)."""
    log_p = predicted.cpu().numpy() if isinstance(predicted, Tensor) else np.log(predicted)
    return {
        "accuracy": 100 * float((log_p.argmax(1) == labels).mean()),
        "nll": -float(log_p[np.arange(len(labels)), labels].mean()),
    }


def episode_table(results: dict[str, Any]) -> Table:
    """Show the time of each method, also as a multiple of the head's, with its accuracy and NLL."""
    table = Table(
        title=f"One episode, {results['ways']}-way {results['shots']}-shot, {results['queries']} queries,"
        f" d = {results['features']}: fit, then probabilities of the queries",
        title_justify="left",
        caption=f"Medians of {results['rounds']} rounds, in which all methods were timed in turn, each"
        " with one thread or all, whichever is faster.\nGaussianProcessClassifier() does not learn its"
        f" kernel, RBF(1.0), which is too narrow for these features.\n{results['device']}.",
        caption_justify="left",
        box=SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
    )
    table.add_column("method", no_wrap=True)
    for column in ("ms", "× head", "threads", "accuracy %", "NLL"):
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
    """Compare the estimator, which validates its input as scikit-learn does, with logistic regression."""
    ms = {row["method"]: row["ms"] for row in results["rows"]}
    given, auto = (two_digits(ms[LOGISTIC] / ms[name]) for name in (GIVEN, AUTO))
    return f"{GIVEN} is {given} times as fast as {LOGISTIC}, {AUTO} {auto} times."
