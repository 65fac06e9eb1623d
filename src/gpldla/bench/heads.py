"""The paper's running-time table: from support and query features to the probabilities of the query."""

from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from statistics import median
from typing import Any

import torch
from rich.box import SIMPLE_HEAD
from rich.table import Table
from torch import Tensor

from gpldla.heads import Head, create_head
from gpldla.utils.progress import SILENT, Reporter
from gpldla.utils.provenance import provenance
from gpldla.utils.timing import seconds_per_call, two_digits

WAYS, QUERIES, FEATURES = 5, 15, 1600  # 75 queries; the features of Conv-4
SHOTS = (1, 5)
BATCHES = (1, 4, 16, 64, 256, 1024, 4096)
ROUNDS = 5
GPYTORCH_BATCHES = (1, 4, 16, 64)  # larger ones show nothing new and need much memory

# What is timed: name → (head, options). GPLDLA comes first: the others are compared with it.
TIMED: dict[str, tuple[str, dict[str, Any]]] = {
    "GPLDLA": ("gpldla", {}),
    "GPLDLA, 10 draws as in the paper": ("gpldla", {"predictive": "mc-logits"}),
    "Laplace approximation": ("laplace", {}),
    "MetaQDA, full Bayes": ("metaqda", {"estimate": "bayes"}),
    "MetaQDA, MAP": ("metaqda", {"estimate": "map"}),
    "GPDKT": ("gpdkt", {"kernel": "cosine"}),
}
OURS = next(iter(TIMED))
GPYTORCH = "GPyTorch, one GP per class"


@dataclass(frozen=True)
class Episodes:
    """Random episodes: support [B, n, d], labels [B, n] and query [B, q, d]."""

    support: Tensor
    labels: Tensor
    query: Tensor


def random_episodes(batch: int, shots: int, device: torch.device) -> Episodes:
    """Return features like those of a network with a last ReLU, of classes that overlap."""
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
    rounds: int = ROUNDS,
    reporter: Reporter = SILENT,
) -> dict[str, Any]:
    """Time every method on the same episodes, in single precision; computing features is not timed."""
    heads = {name: _head(*spec, device) for name, spec in TIMED.items()}
    rows = []
    with reporter.bar("timing heads", len(SHOTS) * len(batches)) as advance, torch.inference_mode():
        for shots in SHOTS:
            for batch in batches:
                rows += _rows(heads, random_episodes(batch, shots, device), shots, rounds)
                advance(1)
    return {
        "command": _command(device, batches, rounds),
        **provenance(device),
        "ways": WAYS,
        "queries": WAYS * QUERIES,
        "features": FEATURES,
        "rounds": rounds,
        "rows": rows,
    }


def _command(device: torch.device, batches: tuple[int, ...], rounds: int) -> str:
    command = f"gpldla bench heads --device {device}"
    if batches != BATCHES:
        command += f" --batches {','.join(map(str, batches))}"
    return command if rounds == ROUNDS else f"{command} --rounds {rounds}"


def _head(name: str, options: dict[str, Any], device: torch.device) -> Head:
    return create_head(name, feature_dim=FEATURES, **options).to(device).eval()


def _rows(heads: dict[str, Head], episodes: Episodes, shots: int, rounds: int) -> list[dict[str, Any]]:
    def predict_with(head: Head) -> Callable[[], Tensor]:
        return lambda: head.adapt(episodes.support, episodes.labels, WAYS).log_prob(episodes.query)

    batch = len(episodes.support)
    ways: dict[str, Callable[[], object]] = {name: predict_with(head) for name, head in heads.items()}
    if find_spec("gpytorch") is not None and batch in GPYTORCH_BATCHES:
        from gpldla.bench.gpytorch_gps import predict_log_prob

        ways[GPYTORCH] = lambda: predict_log_prob(episodes.support, episodes.labels, WAYS, episodes.query)
    seconds = seconds_per_call(ways, episodes.support.device, rounds)
    return [
        {
            "method": name,
            "shots": shots,
            "batch": batch,
            "us_an_episode": 1e6 * median(spent) / batch,
            "ratio": median(spent) / median(seconds[OURS]),
        }
        for name, spent in seconds.items()
    ]


def heads_tables(results: dict[str, Any]) -> list[Table]:
    """Return one table per number of shots: µs per episode, and as a multiple of GPLDLA's."""
    batches = sorted({row["batch"] for row in results["rows"]})
    tables = []
    for shots in sorted({row["shots"] for row in results["rows"]}):
        table = Table(
            title=f"{results['ways']}-way {shots}-shot, {results['queries']} queries,"
            f" d = {results['features']}: µs per episode (× GPLDLA)",
            title_justify="left",
            caption=f"Columns: number of episodes computed together. {results['device']}.",
            caption_justify="left",
            box=SIMPLE_HEAD,
            padding=(0, 1, 0, 0),
        )
        table.add_column("method", no_wrap=True)
        for batch in batches:
            table.add_column(str(batch), justify="right", no_wrap=True)
        rows = [row for row in results["rows"] if row["shots"] == shots]
        for name in dict.fromkeys(row["method"] for row in rows):
            own = {row["batch"]: row for row in rows if row["method"] == name}
            cells = [_cell(own[batch]) if batch in own else "" for batch in batches]
            table.add_row(name, *cells, style="bold" if name == OURS else None)
        tables.append(table)
    return tables


def _cell(row: dict[str, Any]) -> str:
    return f"{two_digits(row['us_an_episode'])} ({two_digits(row['ratio'])})"
