"""The opening of the page of results: who wins where, at what cost, and where GPLDLA loses."""

from collections.abc import Sequence
from pathlib import Path

from gpldla.reports.paper_tables.cells import Cell
from gpldla.reports.paper_tables.contest_plots import accuracy_against_ece, accuracy_against_time
from gpldla.reports.paper_tables.contests import (
    AS_PREDICTED,
    ECE_TEMPERED,
    NLL_TEMPERED,
    Contest,
    contest_table,
    contests,
)
from gpldla.reports.paper_tables.paper import paper_tables
from gpldla.reports.paper_tables.side_by_side import OURS, compare, row_title
from gpldla.reports.paper_tables.times import read_times

TIME_PLOT, ECE_PLOT = "accuracy-time.png", "accuracy-ece.png"

ABOUT_TABLE = """\
GPLDLA and the best of the other methods that were trained and measured in full on the same images, network
and evaluation: **bold** where one is more accurate by more than the ± of both, and the lower of each pair.
T is the temperature from validation classes; minutes are those of one training on a GPU that several
trainings shared, without those of a network that it begins with (all but SimpleShot with resnet18-84). The
recipes were tuned on validation classes for GPLDLA most of all, and the notes below the tables say how the
others were trained. Settings in which no other method was measured in full are not listed."""

WHY_MISCALIBRATED = """\
Episodes with more shots than the task has make more answers right, but β is then too large for one example
per class, and another domain adds to it ([experiments.md](experiments.md#the-stand-ins)). A temperature
mends that."""
WHY_BELOW_THE_PAPER = """\
The photographs of miniImageNet that we have are 84 × 84 pixels large, so random crops are blurrier than the
paper's, and our networks with 18 layers were trained briefly."""
WHY_AS_THE_PAPER_SAYS = """\
The paper leaves the length of training and the decay of the rates open, and our reading of both does not
reach its numbers ([experiments.md](experiments.md))."""
WHY_SLOWER = """\
It predicts a softmax of posterior means; GPLDLA also computes the variance of every logit and integrates
over it ([comparison.md](comparison.md#the-running-time-table))."""


def front_page(cells: Sequence[Cell], folder: Path, pictures: Path) -> list[str]:
    """Return the lines of the opening; none where nothing can be compared.

    folder: of the results; pictures: of those of the page, seen from it
    """
    rounds = contests(cells)
    if not rounds:
        return []
    return [
        "## Who wins where",
        "",
        _summary(rounds),
        "",
        *contest_table(rounds).markdown(),
        "",
        ABOUT_TABLE,
        "",
        f"![Accuracy against the time of training]({pictures}/{TIME_PLOT})",
        "",
        f"![Accuracy against the calibration error]({pictures}/{ECE_PLOT})",
        "",
        "### Where GPLDLA loses, and why",
        "",
        *(f"- {loss}" for loss in _losses(rounds, cells, folder)),
    ]


def front_pictures(cells: Sequence[Cell]) -> dict[str, bytes]:
    """Return the pictures of the opening by the names of their files."""
    rounds = contests(cells)
    if not rounds:
        return {}
    return {TIME_PLOT: accuracy_against_time(rounds), ECE_PLOT: accuracy_against_ece(rounds)}


def _summary(rounds: Sequence[Contest]) -> str:
    by_outcome = {o: [c for c in rounds if c.outcome == o] for o in ("ahead", "level", "behind")}
    total, leads = len(rounds), [contest.lead for contest in by_outcome["ahead"]]
    by = f", by {min(leads):.1f} to {max(leads):.1f} points" if leads else ""
    likely = sum(not contest.better(NLL_TEMPERED) for contest in rounds)
    calibrated = sum(not contest.better(AS_PREDICTED) for contest in rounds)
    worst = max(float(contest.ours.numbers[ECE_TEMPERED]) for contest in rounds)
    return (
        f"Of {total} settings in which another method was measured in full, GPLDLA is the most accurate in"
        f" {len(leads)}{by}, level with the best other in {len(by_outcome['level'])} and behind in"
        f" {len(by_outcome['behind'])}. With a temperature from validation classes its likelihood is the best"
        f" in {likely} of {total}, and its calibration error at most {worst:.1f} points; as predicted it"
        f" is the best calibrated in {calibrated}."
    )


def _losses(rounds: Sequence[Contest], cells: Sequence[Cell], folder: Path) -> list[str]:
    """Return what GPLDLA is worse at, each with the reason; only what the results say."""
    losses = []
    for contest in rounds:
        if contest.outcome == "behind":
            name = row_title(contest.best_other.method)
            losses.append(
                f"**Accuracy, {contest.title}**: {name} is {-contest.lead:.1f} points more accurate."
            )
    worse = [contest for contest in rounds if contest.better(AS_PREDICTED)]
    if worse:
        losses.append(_miscalibrated(worse, len(rounds)))
    below = _below_the_paper(cells)
    for as_the_paper, why in ((False, WHY_BELOW_THE_PAPER), (True, WHY_AS_THE_PAPER_SAYS)):
        named = [text for text, follows_paper in below if follows_paper == as_the_paper]
        if named:
            how = "trained as the paper says" if as_the_paper else "by the best of our recipes"
            losses.append(f"**Below the paper's own numbers, {how}**: {'; '.join(named)}. {why}")
    slower = _slower(folder)
    return [*losses, *([slower] if slower else [])] or ["Nothing of what was measured."]


def _miscalibrated(worse: Sequence[Contest], total: int) -> str:
    most = max(worse, key=lambda contest: float(contest.ours.numbers[AS_PREDICTED]))
    best = most.better(AS_PREDICTED)[0]
    return (
        f"**Calibration as predicted**: another method has a lower error in {len(worse)} of {total} settings."
        f" The largest error is {most.ours.numbers[AS_PREDICTED]:.1f} ({most.title};"
        f" {row_title(best.method)} {best.numbers[AS_PREDICTED]:.1f}), and"
        f" {most.ours.numbers[ECE_TEMPERED]:.1f} with a temperature. {WHY_MISCALIBRATED}"
    )


def _below_the_paper(cells: Sequence[Cell]) -> list[tuple[str, bool]]:
    """Return settings in which the paper's GPLDLA is better than ours, and whether ours is trained alike."""
    found = []
    for table in paper_tables().values():
        for setting in table.settings if table.measure == "accuracy" else ():
            for shots, paper in table.texts(OURS, setting).items():
                ours = [c for c in cells if (c.method, c.setting, c.shots) == (OURS, setting, shots)]
                for cell in ours:
                    if compare(paper, cell, "accuracy") is False:
                        numbers = f"{cell.numbers['accuracy']:.2f} instead of {paper.split(' ')[0]}"
                        found.append((f"{', '.join(setting)}, {shots}-shot, {numbers}", cell.follows_paper))
    return found


def _slower(folder: Path) -> str:
    """Return which methods answer faster on a GPU, by the measured times of single tasks; "" if none does."""
    rows = read_times(folder).get("cuda", {}).get("rows", [])
    ratios: dict[str, list[float]] = {}
    for row in rows:
        ratios.setdefault(row["method"], []).append(float(row["ratio"]))
    faster = {name: values for name, values in ratios.items() if max(values) < 1}
    if not faster:
        return ""
    named = ", ".join(f"{name} {min(v):.1f} to {max(v):.1f}" for name, v in faster.items())
    return f"**Time of an answer on a GPU**, as a multiple of GPLDLA's: {named}. {WHY_SLOWER}"
