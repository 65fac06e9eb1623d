"""How time and memory of adapting and predicting grow with the size of a task."""

import io
import math
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import torch
from rich.box import SIMPLE_HEAD
from rich.table import Table
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from gpldla.bench.episode import Episode, draw_episode
from gpldla.heads import Head, create_head
from gpldla.utils.files import write_atomically, write_json
from gpldla.utils.plot_style import ACCENT, GRID, INK, MUTED, SECOND
from gpldla.utils.progress import SILENT, Reporter
from gpldla.utils.provenance import provenance
from gpldla.utils.timing import cpu_threads, seconds_per_call, two_digits

ROUNDS = 5
HEADS: dict[str, Callable[[], Head]] = {
    "diag": lambda: create_head("gpldla"),
    # The same posterior except for its covariance.
    "full": lambda: create_head("gpldla-auto", beta=1.0, center=False, whiten=False, covariance="full"),
}


@dataclass(frozen=True)
class Task:
    """The size of a task: C classes, n examples and q queries in all, d features."""

    ways: int = 5
    examples: int = 25
    queries: int = 75
    features: int = 1600


@dataclass(frozen=True)
class Sweep:
    """A quantity that grows while the others are fixed, so that it dominates the work at its large end.

    quantity, stays:     what grows, and the other sizes
    order, memory_order: the highest power of the quantity that time and memory may grow with
    """

    quantity: str
    stays: str
    sizes: tuple[int, ...]
    task: Callable[[int], Task]
    order: int = 1
    memory_order: int = 1
    covariance: str = "diag"


SWEEPS = (
    Sweep(
        "classes",
        "1,000 examples in all, 75 queries, d = 1600",
        (2, 5, 14, 40, 120, 350, 1000),
        lambda C: Task(ways=C, examples=1000),
    ),
    Sweep(
        "examples per class",
        "50 classes, 75 queries, d = 1600",
        (1, 2, 5, 10, 22, 46, 100),
        lambda k: Task(ways=50, examples=50 * k),
    ),
    Sweep(
        "features d",
        "5 classes, 2,000 examples in all, 75 queries",
        (64, 128, 256, 512, 1024, 2048, 4096),
        lambda d: Task(examples=2000, features=d),
    ),
    Sweep(
        "queries",
        "5 classes, 5 examples each, d = 1600",
        (10, 32, 100, 316, 1000, 3162, 10000),
        lambda q: Task(queries=q),
    ),
    # Every example is compared with every class, so this is the product of two of the above.
    Sweep(
        "classes, 5 examples each",
        "75 queries, d = 1600",
        (2, 5, 14, 40, 120, 350, 1000),
        lambda C: Task(ways=C, examples=5 * C),
        order=2,
        memory_order=2,
    ),
    Sweep(
        "examples n, full covariance",
        "5 classes, 75 queries, d = 1600",
        (25, 50, 100, 200, 400, 900, 2000),
        lambda n: Task(examples=n),
        order=3,
        memory_order=2,
        covariance="full",
    ),
)


class Allocations(TorchDispatchMode):  # type: ignore[no-untyped-call, unused-ignore]
    """Records the tensors that operations return while it is active; their internal buffers are not seen.

    peak:      most bytes alive at the same time; tensors from before do not count
    largest:   the shape of the largest tensor that was created
    most_rows: the most rows of features in one tensor, of those with an axis that is a multiple of d
    """

    def __init__(self, features: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call, unused-ignore]
        self.features = features
        self.peak, self.most_rows = 0, 0
        self.largest: tuple[int, ...] = ()
        self._alive = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operation and record the tensors that it returns."""
        given = {t.untyped_storage()._cdata for t in tree_leaves((args, kwargs)) if isinstance(t, Tensor)}
        result = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(result):
            if isinstance(tensor, Tensor) and tensor.untyped_storage()._cdata not in given:  # not a view
                self._created(tensor)
        return result

    def _created(self, tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        size = storage.nbytes()
        self._alive += size
        self.peak = max(self.peak, self._alive)
        weakref.finalize(storage, self._freed, size)
        if tensor.numel() > math.prod(self.largest) or not self.largest:
            self.largest = tuple(tensor.shape)
        if any(axis and axis % self.features == 0 for axis in tensor.shape):
            self.most_rows = max(self.most_rows, tensor.numel() // self.features)

    def _freed(self, size: int) -> None:
        self._alive -= size


def bench_scaling(
    device: torch.device,
    *,
    fast: bool = False,
    rounds: int = ROUNDS,
    reporter: Reporter = SILENT,
) -> dict[str, Any]:
    """Time every task of every sweep, and record its memory. fast: every second size only.

    One CPU thread is used: with more, small sizes would use fewer threads, and times grow less than the work.
    """
    results = []
    with reporter.bar("scaling", len(SWEEPS)) as advance, cpu_threads(1):
        for sweep in SWEEPS:
            results.append(_measure(sweep, device, sweep.sizes[:: 2 if fast else 1], rounds))
            advance(1)
        where = provenance(device)
    return {"command": _command(device, fast, rounds), **where, "rounds": rounds, "sweeps": results}


def _command(device: torch.device, fast: bool, rounds: int) -> str:
    command = f"gpldla bench scaling --device {device}{' --fast' if fast else ''}"
    return command if rounds == ROUNDS else f"{command} --rounds {rounds}"


def _measure(sweep: Sweep, device: torch.device, sizes: Sequence[int], rounds: int) -> dict[str, Any]:
    head = HEADS[sweep.covariance]().to(device).eval()
    tasks = {size: sweep.task(size) for size in sizes}
    calls = {size: prediction(head, task, device) for size, task in tasks.items()}
    memory = {size: record_memory(calls[size], tasks[size], device) for size in sizes}
    seconds = seconds_per_call(calls, device, rounds)
    rows = [{"size": size, "ms": 1e3 * median(seconds[size]), **memory[size]} for size in sizes]
    return {
        "quantity": sweep.quantity,
        "stays": sweep.stays,
        "covariance": sweep.covariance,
        "order": sweep.order,
        "memory_order": sweep.memory_order,
        "exponent": growth_exponent(sizes, [row["ms"] for row in rows]),
        "memory_exponent": growth_exponent(sizes, [row["bytes"] for row in rows]),
        "rows": rows,
    }


def prediction(head: Head, task: Task, device: torch.device) -> Callable[[], Tensor]:
    """Return a function that adapts a head to a task and returns log probabilities of its queries, [q, C]."""
    episode: Episode = draw_episode(task.ways, task.examples, task.queries, task.features)
    support, labels, query = (t.to(device) for t in (episode.support, episode.labels, episode.query))

    @torch.no_grad()  # in inference mode `Allocations` would not see what composite operations create
    def call() -> Tensor:
        return head.adapt(support, labels, task.ways).log_prob(query)

    return call


def record_memory(call: Callable[[], Tensor], task: Task, device: torch.device) -> dict[str, Any]:
    """Call once and return the peak of memory beyond the input features, and the sizes of the tensors."""
    if device.type == "cuda":
        call()  # first, to allocate workspaces
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
    with Allocations(task.features) as allocations:
        call()
    peak = allocations.peak
    if device.type == "cuda":
        peak = torch.cuda.max_memory_allocated(device) - before
    return {
        "bytes": peak,
        "largest": list(allocations.largest),
        "rows_of_features": allocations.most_rows,
        "rows_needed": max(task.ways, task.examples, task.queries),
    }


def growth_exponent(sizes: Sequence[int], values: Sequence[float]) -> float:
    """Return the slope of log value against log size, by least squares over the upper half of the sizes."""
    half = len(sizes) // 2
    x = torch.tensor(sizes[half:], dtype=torch.float64).log()
    y = torch.tensor(values[half:], dtype=torch.float64).log()
    x = x - x.mean()
    return float((x * y).sum() / x.square().sum())


def scaling_table(results: dict[str, Any]) -> Table:
    """Show the range, times, exponents and largest tensor of each sweep."""
    table = Table(
        title="Adapting and predicting, as one quantity grows",
        title_justify="left",
        caption="Exponents: of time and of peak memory beyond the input features, over the upper half of the"
        f" sizes; in brackets the largest that is expected.\n{results['device']}.",
        caption_justify="left",
        box=SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
    )
    for column in ("quantity", "fixed"):
        table.add_column(column, no_wrap=True)
    for column in ("from", "to", "ms", "exponent", "MB", "exponent", "largest tensor"):
        table.add_column(column, justify="right", no_wrap=True)
    for sweep in results["sweeps"]:
        first, last = sweep["rows"][0], sweep["rows"][-1]
        table.add_row(
            sweep["quantity"],
            sweep["stays"],
            f"{first['size']:,}",
            f"{last['size']:,}",
            f"{two_digits(first['ms'])} → {two_digits(last['ms'])}",
            f"{sweep['exponent']:.2f} ({sweep['order']})",
            f"{two_digits(first['bytes'] / 1e6)} → {two_digits(last['bytes'] / 1e6)}",
            f"{sweep['memory_exponent']:.2f} ({sweep['memory_order']})",
            " × ".join(f"{axis:,}" for axis in last["largest"]),
        )
    return table


def size_line(results: dict[str, Any]) -> str:
    """Report whether a tensor of size queries × classes × d or d × d was created."""
    large = [
        f"{sweep['quantity']} = {row['size']:,} ({row['rows_of_features']:,} rows of features)"
        for sweep in results["sweeps"]
        for row in sweep["rows"]
        if row["rows_of_features"] > row["rows_needed"]
    ]
    if large:
        return f"Tensors with more rows of features than examples, queries or classes: {', '.join(large)}."
    return (
        "No tensor has more rows of features than there are examples, queries or classes:"
        " none is of size queries × classes × d, draws × classes × d or d × d."
    )


def write_scaling(folder: Path, results: dict[str, Any]) -> None:
    """Write scaling.json and scaling.png."""
    write_json(folder / "scaling.json", results)
    write_atomically(folder / "scaling.png", scaling_picture(results))


def scaling_picture(results: dict[str, Any]) -> bytes:
    """Draw one panel per sweep, time and memory against size; return a PNG."""
    from matplotlib.figure import Figure  # no pyplot: it keeps global state and may want a display

    sweeps = results["sweeps"]
    columns = min(3, len(sweeps))
    lines = math.ceil(len(sweeps) / columns)
    figure: Any = Figure(figsize=(4 * columns, 3.2 * lines + 0.4), layout="constrained", dpi=150)
    figure.get_layout_engine().set(w_pad=0.1, h_pad=0.1)
    panels = [ax for line in figure.subplots(lines, columns, squeeze=False) for ax in line]
    for ax in panels[len(sweeps) :]:
        ax.remove()
    handles, *_ = [_panel(ax, sweep) for sweep, ax in zip(sweeps, panels)]
    names = (
        "time, ms (left)",
        "peak memory beyond the input features, MB (right)",
        "expected slope, given in each panel",
    )
    figure.legend(handles, names, loc="outside upper center", ncols=3, frameon=False, labelcolor=INK)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png")
    return buffer.getvalue()


def _panel(ax: Any, sweep: dict[str, Any]) -> list[Any]:
    """Draw one sweep; return the lines of time, of memory and of the expected order.

    Both scales have the same number of decades, so that slopes can be compared; memory is drawn lower.
    """
    sizes = [row["size"] for row in sweep["rows"]]
    times = [row["ms"] for row in sweep["rows"]]
    memory = [row["bytes"] / 1e6 for row in sweep["rows"]]
    twin = ax.twinx()
    decades = 0.5 + max(2, *(math.log10(max(values) / min(values)) for values in (times, memory)))
    handles: list[Any] = []
    for axis, values, color, order, below_top in (
        (ax, times, ACCENT, sweep["order"], 0.2),
        (twin, memory, SECOND, sweep["memory_order"], 0.2 + 0.25 * decades),
    ):
        top = values[-1] * 10**below_top
        axis.set(xscale="log", yscale="log", ylim=(top / 10 ** (decades + 0.25 * decades), top))
        guide = [values[-1] * (size / sizes[-1]) ** order for size in sizes]
        dashes = axis.plot(sizes, guide, "--", color=MUTED, lw=1)
        handles += axis.plot(sizes, values, "o-", color=color, ms=4)
        axis.tick_params(axis="y", which="both", colors=color, labelsize=8)
        axis.yaxis.set_major_formatter("{x:,g}")
        axis.minorticks_off()
        axis.spines[["top", "left", "right"]].set_visible(False)
        axis.spines["bottom"].set_color(MUTED)
    ax.tick_params(axis="x", which="both", colors=MUTED, labelsize=8)
    ax.xaxis.set_major_formatter("{x:,.0f}")
    ax.grid(color=GRID, lw=0.8)
    ax.set_axisbelow(True)
    ax.set_title(sweep["quantity"], fontsize=10, color=INK, loc="left", pad=17)
    ax.text(0, 1.03, sweep["stays"], transform=ax.transAxes, fontsize=8, color=MUTED)
    words = (
        ("time", "exponent", "order", ACCENT, 0.13),
        ("memory", "memory_exponent", "memory_order", SECOND, 0.05),
    )
    for name, exponent, order, color, height in words:
        text = f"{name}: exponent {sweep[exponent]:.2f}, dashed {sweep[order]}"
        ground = {"facecolor": "white", "edgecolor": "none", "pad": 1}  # hides the dashes
        at = {"transform": ax.transAxes, "ha": "right"}
        twin.text(0.97, height, text, fontsize=8, color=color, bbox=ground, zorder=5, **at)
    return [*handles, *dashes]
