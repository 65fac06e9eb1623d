"""The paper's running-time table: from support and query features to the probabilities of the query."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from statistics import median
from typing import Any

import torch
from torch import Tensor

from gpldla.bench.timing import median_ratio, seconds_a_call
from gpldla.heads import Head, create_head
from gpldla.progress import SILENT, Reporter
from gpldla.provenance import provenance

WAYS, QUERIES, FEATURES = 5, 15, 1600  # 75 queries; the features of Conv-4
SHOTS = (1, 5)
BATCHES = (1, 4, 16, 64, 256, 1024, 4096)
GPYTORCH_BATCHES = (1, 4, 16, 64)  # larger ones only repeat what these show, and need much memory

# What is timed: its name, its head and options. GPLDLA comes first: the others are compared with it.
TIMED: dict[str, tuple[str, dict[str, Any]]] = {
    "GPLDLA": ("gpldla", {}),
    "GPLDLA, 10 draws as in the paper": ("gpldla", {"predictive": "mc-logits"}),
    "Laplace approximation": ("laplace", {}),
    "MetaQDA, full Bayes": ("metaqda", {"estimate": "bayes"}),
    "MetaQDA, MAP": ("metaqda", {"estimate": "map"}),
    "GPDKT": ("gpdkt", {"kernel": "cosine"}),
}
OURS = next(iter(TIMED))
GPYTORCH = "GPyTorch, one GP a class"


@dataclass(frozen=True)
class Episodes:
    """Random episodes: support [B, n, d], labels [B, n] and query [B, q, d]."""

    support: Tensor
    labels: Tensor
    query: Tensor


def random_episodes(batch: int, shots: int, device: torch.device) -> Episodes:
    """Return features such as a network with a last ReLU gives, of classes that overlap."""
    generator = torch.Generator(device).manual_seed(0)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, device=device)

    labels = torch.arange(WAYS, device=device).repeat_interleave(shots)
    query_labels = torch.arange(WAYS, device=device).repeat_interleave(QUERIES)
    centres = normal(batch, WAYS, FEATURES)
    support = (centres[:, labels] + normal(batch, len(labels), FEATURES)).relu_()
    query = (centres[:, query_labels] + normal(batch, len(query_labels), FEATURES)).relu_()
    return Episodes(support, labels.expand(batch, -1), query)


def bench_heads(
    device: torch.device,
    *,
    batches: tuple[int, ...] = BATCHES,
    rounds: int = 5,
    reporter: Reporter = SILENT,
) -> dict[str, Any]:
    """Time every method on the same episodes; single precision, features excluded."""
    heads = {name: _head(*spec, device) for name, spec in TIMED.items()}
    rows = []
    with reporter.bar("timing heads", len(SHOTS) * len(batches)) as advance, torch.inference_mode():
        for shots in SHOTS:
            for batch in batches:
                rows += _rows(heads, random_episodes(batch, shots, device), shots, rounds)
                advance(1)
    return {
        "command": f"gpldla bench heads --device {device.type}",
        **provenance(device),
        "ways": WAYS,
        "queries": WAYS * QUERIES,
        "features": FEATURES,
        "rounds": rounds,
        "rows": rows,
    }


def _head(name: str, options: dict[str, Any], device: torch.device) -> Head:
    return create_head(name, feature_dim=FEATURES, **options).to(device).eval()


def _rows(heads: dict[str, Head], episodes: Episodes, shots: int, rounds: int) -> list[dict[str, Any]]:
    def answer(head: Head) -> Callable[[], Tensor]:
        return lambda: head.adapt(episodes.support, episodes.labels, WAYS).log_prob(episodes.query)

    batch = len(episodes.support)
    ways: dict[str, Callable[[], object]] = {name: answer(head) for name, head in heads.items()}
    if find_spec("gpytorch") is not None and batch in GPYTORCH_BATCHES:
        from gpldla.bench.gpytorch_gps import answer as answer_by_gpytorch

        ways[GPYTORCH] = lambda: answer_by_gpytorch(episodes.support, episodes.labels, WAYS, episodes.query)
    seconds = seconds_a_call(ways, episodes.support.device, rounds)
    return [
        {
            "method": name,
            "shots": shots,
            "batch": batch,
            "us_an_episode": 1e6 * median(spent) / batch,
            "ratio": median_ratio(spent, seconds[OURS]),
        }
        for name, spent in seconds.items()
    ]


def slower_than_ours(results: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the rows in which another method is faster than GPLDLA."""
    return [row for row in results["rows"] if row["ratio"] < 1]


def batches_of(results: dict[str, Any]) -> list[int]:
    """Return the sizes of batches that were timed, in order."""
    return sorted({row["batch"] for row in results["rows"]})


def ratio_text(ratio: float) -> str:
    """Write a ratio with two digits that matter."""
    return f"{ratio:.{max(0, 1 - math.floor(math.log10(ratio)))}f}"
