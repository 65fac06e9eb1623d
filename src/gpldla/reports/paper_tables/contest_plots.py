"""Accuracy against the time of training, and against the calibration error, one panel per contest."""

import io
import math
from collections.abc import Callable, Sequence
from typing import Any

from gpldla.reports.paper_tables.cells import Cell
from gpldla.reports.paper_tables.contests import AS_PREDICTED, Contest, minutes
from gpldla.reports.paper_tables.side_by_side import OURS, row_title
from gpldla.utils.plot_style import ACCENT, INK, SECOND, style_axes

COLUMNS, PANEL, DPI = 3, (4.3, 3.3), 100


def accuracy_against_time(rounds: Sequence[Contest]) -> bytes:
    """Return a PNG: accuracy against minutes of training."""
    return _panels(rounds, minutes, "minutes of training")


def accuracy_against_ece(rounds: Sequence[Contest]) -> bytes:
    """Return a PNG: accuracy against the calibration error of the probabilities as predicted."""
    return _panels(rounds, lambda cell: float(cell.numbers[AS_PREDICTED]), "ECE as predicted, %")


def _panels(rounds: Sequence[Contest], x_of: Callable[[Cell], float], below: str) -> bytes:
    from matplotlib.figure import Figure  # no pyplot: it keeps global state and may want a display

    lines = math.ceil(len(rounds) / COLUMNS)
    figure = Figure(figsize=(COLUMNS * PANEL[0], lines * PANEL[1]), layout="constrained")
    axes = list(figure.subplots(lines, COLUMNS, squeeze=False).flat)
    for ax, contest in zip(axes, rounds):
        points = {cell.method: x_of(cell) for cell in (*contest.others, contest.ours)}
        middle = (min(points.values()) + max(points.values())) / 2
        for cell in (*contest.others, contest.ours):
            _draw(ax, cell, points[cell.method], to_the_left=points[cell.method] > middle)
        ax.margins(x=0.3, y=0.15)
        ax.set_xlim(left=0)
        ax.set_title(contest.title, fontsize=10, color=INK)
        ax.set_xlabel(below, fontsize=9, color=INK)
        ax.set_ylabel("accuracy, %", fontsize=9, color=INK)
        style_axes(ax, label_size=8)
    for ax in axes[len(rounds) :]:
        ax.set_axis_off()
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=DPI, metadata={"Software": None})
    return buffer.getvalue()


def _draw(ax: Any, cell: Cell, x: float, *, to_the_left: bool) -> None:
    """Draw the point of a method with its ± and its name."""
    ours, y = cell.method == OURS, cell.numbers["accuracy"]
    colour = ACCENT if ours else SECOND
    ax.errorbar(x, y, cell.margin("accuracy") or 0, fmt="o", ms=8 if ours else 5, color=colour)
    side = {"ha": "right" if to_the_left else "left", "weight": "bold" if ours else "normal"}
    offset = (-6 if to_the_left else 6, 4 if ours else -9)  # names of points that are close are apart
    title = row_title(cell.method)
    ax.annotate(title, (x, y), offset, textcoords="offset points", fontsize=8, color=INK, **side)
