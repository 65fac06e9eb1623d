"""Plots of calibration: reliability diagrams, and accuracy against confidence."""

import io
from collections.abc import Sequence
from typing import Any

import numpy as np

from gpldla.classifier.calibration import Reliability
from gpldla.reports.paper_tables.cells import Cell
from gpldla.utils.plot_style import ACCENT, INK, MUTED, SECOND, style_axes

AS_PREDICTED, TEMPERED = "reliability", "reliability_val_temperature"
TITLES = {AS_PREDICTED: "as predicted", TEMPERED: "temperature from validation classes"}
SHORT_TITLES = {AS_PREDICTED: "as predicted", TEMPERED: "with temperature"}
COLOURS = {AS_PREDICTED: ACCENT, TEMPERED: SECOND}
MIN_QUERIES = 20  # per accuracy that is drawn
PANEL_WIDTH, ROW_HEIGHT, DPI = 3.7, 4.2, 110


def confidence_plots(rows: Sequence[tuple[str, Cell]]) -> bytes:
    """Return a PNG with one titled row per cell: two reliability diagrams, and the accuracy of the answers
    above each confidence.
    """
    from matplotlib.figure import Figure  # no pyplot: it keeps global state and may want a display

    figure = Figure(figsize=(3 * PANEL_WIDTH, ROW_HEIGHT * len(rows)), layout="constrained")
    strips = figure.subfigures(len(rows), 1, squeeze=False, hspace=0.04)[:, 0]
    for strip, (title, cell) in zip(strips, rows):
        strip.suptitle(title, x=0.01, ha="left", fontsize=13, color=INK, weight="bold")
        bins = {name: _bins(cell.numbers[name]) for name in TITLES if name in cell.numbers}
        axes = strip.subplots(2, 3, sharex=True, height_ratios=(5, 2))
        for column, name in enumerate(TITLES):
            if name in bins:
                _draw_reliability(axes[:, column], TITLES[name], bins[name], COLOURS[name])
            else:
                for ax in axes[:, column]:
                    ax.set_axis_off()
        _draw_thresholds(axes[:, 2], bins)
        strip.align_ylabels()
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=DPI, metadata={"Software": None})
    return buffer.getvalue()


def _bins(written: dict[str, list[float | None]]) -> Reliability:
    return Reliability(**{name: np.array(values, float) for name, values in written.items()})


def _draw_reliability(axes: Sequence[Any], title: str, bins: Reliability, colour: str) -> None:
    """Draw the accuracy of each bin of confidence, and below it the share of queries."""
    upper, lower = axes
    middles, widths = (bins.edges[1:] + bins.edges[:-1]) / 2, np.diff(bins.edges)
    seen, few = bins.counts >= MIN_QUERIES, (bins.counts > 0) & (bins.counts < MIN_QUERIES)
    upper.bar(middles[seen], bins.accuracy[seen], 0.92 * widths[seen], color=colour, alpha=0.75)
    upper.bar(
        middles[few], bins.accuracy[few], 0.92 * widths[few], color="none", edgecolor=colour, ls=":", lw=1
    )
    upper.plot([0, 1], [0, 1], color=INK, lw=1.2, ls="--")
    upper.text(0.04, 0.95, f"ECE {bins.error:.1f} %", va="top", fontsize=11, color=INK, weight="bold")
    upper.set_title(title, fontsize=11, color=INK)
    upper.set_ylabel("accuracy", fontsize=10)
    upper.set_ylim(0, 1)
    shares = 100 * bins.counts / bins.counts.sum()
    lower.bar(middles, shares, 0.92 * widths, color=MUTED)
    lower.set_ylabel("queries", fontsize=10)
    lower.set_ylim(0, 1.4 * shares.max())  # room for the count
    lower.text(
        0.04,
        0.93,
        f"n = {bins.counts.sum():,.0f}",
        transform=lower.transAxes,
        va="top",
        fontsize=10,
        color=INK,
    )
    _finish(axes, "confidence")


def _draw_thresholds(axes: Sequence[Any], bins: dict[str, Reliability]) -> None:
    """Draw the accuracy of all answers above each confidence, and below it their share."""
    upper, lower = axes
    lowest = 1.0
    for name, one in bins.items():
        kept = np.cumsum(one.counts[::-1])[::-1]
        right = np.cumsum(np.nan_to_num(one.accuracy * one.counts)[::-1])[::-1]
        enough = kept >= MIN_QUERIES
        style = {"color": COLOURS[name], "marker": "o", "ms": 3.5, "lw": 1.6, "label": SHORT_TITLES[name]}
        accuracy = right[enough] / kept[enough]
        upper.plot(one.edges[:-1][enough], accuracy, **style)
        lowest = min(lowest, accuracy.min(initial=1))
        lower.plot(one.edges[:-1][enough], 100 * kept[enough] / kept[0], **style)
    upper.set_title("accuracy against confidence", fontsize=11, color=INK)
    upper.set_ylabel("accuracy", fontsize=10)
    room = max(1 - lowest, 0.01)
    upper.set_ylim(1 - 1.6 * room, 1 + 0.05 * room)  # leaves room for the legend below the lines
    upper.legend(frameon=False, fontsize=9.5, loc="lower right", labelcolor=INK)
    lower.set_ylabel("queries", fontsize=10)
    lower.set_ylim(0, 105)
    _finish(axes, "confidence of at least")


def _finish(axes: Sequence[Any], below: str) -> None:
    for ax in axes:
        style_axes(ax, label_size=9)
        ax.yaxis.label.set_color(INK)
    axes[-1].yaxis.set_major_formatter("{x:.0f} %")
    axes[-1].set_xlim(0, 1)
    axes[-1].set_xlabel(below, fontsize=10, color=INK)
