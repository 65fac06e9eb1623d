"""Compare the ways to compute p(y) = E[softmax_y(f)] for the Gaussian logits f of the GPLDLA head.

    python -m benchmarks.predictive [--json FILE] [--quick]

Every method of `gpldla.heads.gp.predictive` is measured on the same queries; the truth is computed from
100,000 Monte Carlo samples. Prints one row per method and saves all results as JSON, by default
results/predictive.json. With --quick there are fewer cases and samples, and nothing is saved without
--json.
"""

import argparse
import json
import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

from gpldla.heads import create_head
from gpldla.heads.gp import predictive
from gpldla.heads.gp.linear_gp import LinearGPPosterior
from gpldla.utils.provenance import provenance

TOLERANCE = 0.02  # the largest error in a probability that counts as exact
SEEDS = (0, 1, 2)  # one episode per seed, case and overlap
DIMENSIONS = (64, 1600)
BETAS = (0.3, 1.0, 8.0)
STRESS = "stress"
UNEQUAL = "unequal shots"

Predictive = Callable[[Tensor, Tensor], Tensor]
Row = dict[str, float | str]


@dataclass(frozen=True)
class Overlap:
    """How much the classes overlap.

    noise:  standard deviation within a class over that between the class centres
    offset: a constant added to all features; if it is large, normalised features have similar directions
    """

    noise: float
    offset: float = 0.0


# From separated classes to classes that cannot be distinguished.
OVERLAPS = (Overlap(0.5), Overlap(1.5), Overlap(3.0), Overlap(5.0))
# With an offset, as LDA else rules out the one-shot classes, whose means are longer and logits wide.
HEAVY_OVERLAPS = (Overlap(0.5, offset=5.0), Overlap(1.5, offset=5.5), Overlap(3.0, offset=9.5))


@dataclass(frozen=True)
class Case:
    """The logits of some queries: mean and var [q, C], labels [q]; `column` is its column in the table."""

    name: str
    column: str
    mean: Tensor
    var: Tensor
    labels: Tensor


def main() -> None:
    """Measure, print the table and the conclusions, save the results."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--json", type=Path, help="file for all results")
    parser.add_argument("--quick", action="store_true", help="fewer cases and samples, about 10 seconds")
    arguments = parser.parse_args()
    json_file = arguments.json
    if json_file is None and not arguments.quick:
        json_file = Path(__file__).parents[1] / "results" / "predictive.json"
    truth_samples = 40_000 if arguments.quick else 100_000
    torch.set_num_threads(1)  # threads that wait for each other on a busy machine would distort the times

    cases = quick_cases() if arguments.quick else all_cases()
    case_rows: list[Row] = []
    rows: list[Row] = []
    for case in cases:
        halves = true_halves(case, truth_samples)
        case_rows.append(describe(case, halves))
        rows += measure(case, halves, repeats=3 if arguments.quick else 7)
    summary = summarise(rows, case_rows)

    print_table(summary, case_rows, truth_samples)
    verdict = give_verdict(summary)
    for line in verdict["lines"]:
        print(line)
    if json_file is not None:
        result = {
            "command": "python -m benchmarks.predictive" + (" --quick" if arguments.quick else ""),
            **provenance(),
            "seeds": list(SEEDS),
            "truth_samples": truth_samples,
            "tolerance": TOLERANCE,
            "verdict": verdict,
            "summary": summary,
            "cases": case_rows,
            "rows": rows,
        }
        json_file.parent.mkdir(parents=True, exist_ok=True)
        json_file.write_text(json.dumps(result, indent=1) + "\n")


# --- The queries -----------------------------------------------------------------------------------------


def all_cases() -> Iterable[Case]:
    """Yield dimensions × β × episode sizes, the unequal shots and the stress case, one at a time."""
    for d in DIMENSIONS:
        for beta in BETAS:
            for ways, shots in ((5, 1), (5, 5), (20, 1), (50, 5), (2, 1)):
                yield head_case([shots] * ways, d, beta, OVERLAPS, n_queries=max(60, min(480, 3600 // ways)))
    for many in (100, 1000):
        yield head_case([1, 1, 20, many, many], 64, 8.0, HEAVY_OVERLAPS, n_queries=480, column=UNEQUAL)
    yield stress_case(480)


def quick_cases() -> Iterable[Case]:
    """Yield one small case for every column of the table."""
    for d in DIMENSIONS:
        for beta in BETAS:
            yield head_case([1] * 5, d, beta, OVERLAPS, n_queries=60)
    yield head_case([1, 1, 20, 1000, 1000], 64, 8.0, HEAVY_OVERLAPS, n_queries=63, column=UNEQUAL)
    yield stress_case(60)


@torch.no_grad()
def head_case(
    shots: Sequence[int],
    d: int,
    beta: float,
    overlaps: Sequence[Overlap],
    n_queries: int,
    column: str | None = None,
) -> Case:
    """Adapt the head to an episode per overlap and seed, with `n_queries` in all; `shots`: one per class."""
    head = create_head("gpldla", beta=beta).eval()
    each = n_queries // (len(overlaps) * len(SEEDS))
    parts: list[tuple[Tensor, Tensor, Tensor]] = []
    for overlap in overlaps:
        for seed in SEEDS:
            support, labels, query, query_labels = draw_episode(shots, each, d, overlap, seed)
            posterior = head.adapt(support, labels, len(shots))
            assert isinstance(posterior, LinearGPPosterior)
            parts.append((*posterior.logits(query), query_labels))
    mean, var, query_labels = (torch.cat(part) for part in zip(*parts))
    shot_words = f"{shots[0]}-shot" if len(set(shots)) == 1 else f"shots {'/'.join(map(str, shots))}"
    name = f"d={d}, β={beta:g}, {len(shots)}-way, {shot_words}"
    return Case(name, column or column_name(d, beta), mean, var, query_labels)


def draw_episode(
    shots: Sequence[int], n_queries: int, d: int, overlap: Overlap, seed: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return support [n, d], labels [n], query [q, d], query_labels [q]; features as after a ReLU."""
    generator = torch.Generator().manual_seed(seed)
    centres = overlap.offset + torch.randn(len(shots), d, generator=generator)
    labels = torch.repeat_interleave(torch.arange(len(shots)), torch.tensor(shots))
    query_labels = torch.randint(len(shots), (n_queries,), generator=generator)

    def features(of: Tensor) -> Tensor:
        return (centres[of] + overlap.noise * torch.randn(len(of), d, generator=generator)).relu()

    return features(labels), labels, features(query_labels), query_labels


def stress_case(n_queries: int) -> Case:
    """Artificial logits, with standard deviations from 0.1 to 10 within a query."""
    generator = torch.Generator().manual_seed(SEEDS[0])
    mean = 3 * torch.randn(n_queries, 5, generator=generator)
    var = 10 ** (4 * torch.rand(n_queries, 5, generator=generator) - 2)
    drawn = mean + var.sqrt() * torch.randn(n_queries, 5, generator=generator)
    labels = torch.multinomial(drawn.softmax(-1), 1, generator=generator).squeeze(-1)
    return Case("variances 0.01 to 100 in a query, 5-way", STRESS, mean, var, labels)


def column_name(d: int, beta: float) -> str:
    """Name of the table's column for a feature dimension and β."""
    return f"d={d} β={beta:g}"


# --- Truth and measurement -------------------------------------------------------------------------------


def methods() -> dict[str, Predictive]:
    """Return the compared methods by name; random ones are seeded again in each call."""

    def monte_carlo(n_samples: int) -> Predictive:
        generator = torch.Generator().manual_seed(1234)

        def draw(mean: Tensor, var: Tensor) -> Tensor:
            noise = torch.randn(n_samples, *mean.shape, dtype=mean.dtype, generator=generator)
            return predictive.monte_carlo(mean, var, n_samples, noise)

        return draw

    def quasi_monte_carlo(n_points: int) -> Predictive:
        return lambda mean, var: predictive.quasi_monte_carlo(mean, var, n_points)

    def quadrature(n_points: int | None) -> Predictive:
        return lambda mean, var: predictive.quadrature(mean, var, n_points)

    return {
        "probit": predictive.probit,
        **{f"Monte Carlo, M={m}": monte_carlo(m) for m in (10, 100)},
        **{f"quasi-Monte Carlo, M={m}": quasi_monte_carlo(m) for m in (64, 256, 1024)},
        "quadrature": quadrature(None),
        **{f"quadrature, {n} points": quadrature(n) for n in (12, 20)},
    }


def true_halves(case: Case, n_samples: int) -> Tensor:
    """Two independent Monte Carlo estimates of p, float64 [2, q, C], with half of `n_samples` each.

    Their mean is the truth, and half their difference has the distribution of the truth's error. Samples are
    the last axis, the fastest layout for a softmax over few classes.
    """
    generator = torch.Generator().manual_seed(4321)
    mean, deviation = case.mean.T.unsqueeze(-1), case.var.T.sqrt().unsqueeze(-1)  # [C, q, 1]
    at_once = max(
        1, min(n_samples // 2, 2_000_000 // mean.numel())
    )  # samples, so that they stay in the cache
    halves = torch.zeros(2, *case.mean.shape, dtype=torch.float64)
    for half in halves:
        for first in range(0, n_samples // 2, at_once):
            samples = min(at_once, n_samples // 2 - first)
            noise = torch.randn(*mean.shape[:2], samples, generator=generator)
            half += noise.mul_(deviation).add_(mean).softmax(0).sum(-1, dtype=torch.float64).T
    return halves / (n_samples // 2)


def describe(case: Case, halves: Tensor) -> Row:
    """Return the properties of a case's queries, and the error of its truth."""
    truth = halves.mean(0)
    ratio = case.var.amax(-1) / case.var.amin(-1)
    sure = truth.amax(-1).quantile(torch.tensor([0.1, 0.5, 0.9], dtype=torch.float64))
    own_nll = (nll(halves[0].log(), case.labels) - nll(halves[1].log(), case.labels)) / 2
    own_accuracy = (accuracy(halves[0], case.labels) - accuracy(halves[1], case.labels)) / 2
    return {
        "case": case.name,
        "column": case.column,
        "queries": len(truth),
        "truth_own_error": ((halves[0] - halves[1]) / 2).abs().max().item(),
        "truth_own_nll_error": abs(own_nll),
        "truth_own_accuracy_error": abs(own_accuracy),
        "truth_nll": nll(truth.log(), case.labels),
        "truth_accuracy": accuracy(truth, case.labels),
        "top_probability_q10": sure[0].item(),
        "top_probability_median": sure[1].item(),
        "top_probability_q90": sure[2].item(),
        "largest_variance": case.var.max().item(),
        "median_variance_ratio": ratio.median().item(),
        "largest_variance_ratio": ratio.max().item(),
    }


def measure(case: Case, halves: Tensor, repeats: int) -> list[Row]:
    """Return one row per method: its errors and its time."""
    truth = halves.mean(0)
    rows: list[Row] = []
    chosen = methods()
    seconds: dict[str, list[float]] = {name: [] for name in chosen}
    for name, method in chosen.items():  # also fills the caches before the timing
        log_p = method(case.mean, case.var).double()
        rows.append(
            {
                "case": case.name,
                "column": case.column,
                "method": name,
                "largest_error": (log_p.exp() - truth).abs().max().item(),
                "nll_difference": nll(log_p, case.labels) - nll(truth.log(), case.labels),
                "accuracy_difference": accuracy(log_p, case.labels) - accuracy(truth, case.labels),
            }
        )
    for _ in range(repeats):  # in turn, so that other load on the machine affects all methods
        for name, method in chosen.items():
            seconds[name].append(settled_seconds(method, case))
    for row in rows:
        spent = median(seconds[str(row["method"])])
        row["us_per_query"] = 1e6 * spent / len(truth)
        row["time_ratio"] = spent / median(seconds["quadrature"])
    return rows


def settled_seconds(method: Predictive, case: Case) -> float:
    """Time one call, after 20 ms of calls that are not counted.

    The first calls after those of another method are slow, as the caches hold its memory.
    """
    begin = start = time.perf_counter()
    while start - begin < 0.02:
        method(case.mean, case.var)
        start = time.perf_counter()
    method(case.mean, case.var)
    return time.perf_counter() - start


def nll(log_p: Tensor, labels: Tensor) -> float:
    """Mean negative log-likelihood of labels [q] under log p [q, C]."""
    return -log_p.gather(-1, labels.unsqueeze(-1)).mean().item()


def accuracy(scores: Tensor, labels: Tensor) -> float:
    """Share of the queries, in percent, whose label [q] has the highest score [q, C]."""
    return 100 * (scores.argmax(-1) == labels).double().mean().item()


# --- The conclusions ------------------------------------------------------------------------------------


def summarise(rows: Sequence[Row], case_rows: Sequence[Row]) -> list[Row]:
    """Return the worst of each result over the cases, one entry per method in the order of `methods`."""
    summary = []
    for method in methods():
        own = [row for row in rows if row["method"] == method]
        entry: Row = {"method": method}
        for column in columns(case_rows):
            entry[column] = max(float(row["largest_error"]) for row in own if row["column"] == column)
        head_rows = [row for row in own if row["column"] != STRESS]
        entry["worst"] = max(float(row["largest_error"]) for row in head_rows)
        entry["worst_nll_difference"] = max(abs(float(row["nll_difference"])) for row in head_rows)
        entry["worst_accuracy_difference"] = max(abs(float(row["accuracy_difference"])) for row in head_rows)
        for ways in (5, 50):
            times = [float(row["us_per_query"]) for row in head_rows if f" {ways}-way" in str(row["case"])]
            if times:
                entry[f"us_per_query_{ways}_way"] = median(times)
        entry["time_ratio"] = median(float(row["time_ratio"]) for row in head_rows)
        summary.append(entry)
    return summary


def columns(case_rows: Sequence[Row]) -> list[str]:
    """Return the kinds of cases, in order of appearance."""
    return list(dict.fromkeys(str(row["column"]) for row in case_rows))


def give_verdict(summary: Sequence[Row]) -> dict[str, list[str] | str]:
    """Return which methods are within TOLERANCE in all cases, and which of them takes the least time."""

    def cheapest(entries: Sequence[Row]) -> str:
        return (
            str(min(entries, key=lambda entry: float(entry["time_ratio"]))["method"]) if entries else "none"
        )

    def names(entries: Sequence[Row]) -> list[str]:
        return [str(entry["method"]) for entry in entries]

    within = [entry for entry in summary if float(entry["worst"]) < TOLERANCE]
    robust = [entry for entry in within if float(entry[STRESS]) < TOLERANCE]
    lines = [
        f"Within {TOLERANCE} in every case of the head: {'; '.join(names(within)) or 'none'}. "
        f"The cheapest of these: {cheapest(within)}.",
        f"Within {TOLERANCE} in the stress case too: {'; '.join(names(robust)) or 'none'}. "
        f"The cheapest of these: {cheapest(robust)}.",
    ]
    return {
        "within_tolerance": names(within),
        "cheapest": cheapest(within),
        "within_tolerance_and_stress": names(robust),
        "cheapest_and_stress": cheapest(robust),
        "lines": lines,
    }


def print_table(summary: Sequence[Row], case_rows: Sequence[Row], truth_samples: int) -> None:
    """Print one row per method, and one for the truth's error."""
    kinds = columns(case_rows)
    table = Table(title="Largest error in probability", title_justify="left", padding=(0, 1, 0, 0))
    table.add_column("method", no_wrap=True)
    for heading in (*kinds, "worst (no stress)", "worst |ΔNLL|", "worst |Δacc|", "time ratio"):
        table.add_column(heading.replace(" ", "\n", 1), justify="right")
    for entry in summary:
        table.add_row(
            str(entry["method"]),
            *(f"{entry[kind]:.4f}" for kind in (*kinds, "worst", "worst_nll_difference")),
            f"{entry['worst_accuracy_difference']:.2f}",
            f"{entry['time_ratio']:.2f}",
        )

    def worst_of_truth(number: str, kinds: Sequence[str]) -> float:
        return max(float(row[number]) for row in case_rows if row["column"] in kinds)

    of_head = [kind for kind in kinds if kind != STRESS]
    table.add_row(
        "the truth itself, estimated",
        *(f"{worst_of_truth('truth_own_error', [kind]):.4f}" for kind in kinds),
        f"{worst_of_truth('truth_own_error', of_head):.4f}",
        f"{worst_of_truth('truth_own_nll_error', of_head):.4f}",
        f"{worst_of_truth('truth_own_accuracy_error', of_head):.2f}",
        "",
    )
    Console(width=160).print(table)
    ratio = worst_of_truth("largest_variance_ratio", [UNEQUAL])
    print(
        f"Truth: {truth_samples:,} samples, standard error at most {0.5 / math.sqrt(truth_samples):.4f} "
        f"per probability.\nUnequal shots: logit variances differ up to {ratio:.0f}-fold within a query.\n"
        "ΔNLL, Δacc (in points) and time are without the stress case; time is the median over the cases."
    )


if __name__ == "__main__":
    main()
