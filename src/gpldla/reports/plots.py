"""Plots, as SVG for pages and as PNG for model cards."""

import html
import io
from collections.abc import Sequence
from typing import Any

import matplotlib
import numpy as np
from markupsafe import Markup

from gpldla.classifier.calibration import Reliability
from gpldla.classifier.review import Bin
from gpldla.utils.plot_style import ACCENT, GRID, INK, MUTED, SECOND, style_axes

MAX_LINE_POINTS = 60  # per line of a training plot; with many more it shows mostly noise


def training_plot(metrics: Sequence[dict[str, float]]) -> Markup:
    """Loss, and accuracy in training and validation, over episodes."""
    figure, (_, right) = _training_figure(metrics, "training episodes", "validation script")
    right.legend(frameon=False, loc="lower right")
    return _svg(figure, "Loss and accuracy during training")


def training_curve(
    metrics: Sequence[dict[str, float]], title: str, *, training: str, validation: str
) -> bytes:
    """The same as PNG for a model card, with a mark at the weights that were kept.

    training, validation: labels of the two curves
    """
    figure, (left, right) = _training_figure(metrics, training, validation)
    episodes, accuracies = _series(metrics, "validation_accuracy")
    best = int(np.argmax(accuracies))
    label = f"kept weights: {accuracies[best]:.1f} %"
    right.plot(episodes[best], accuracies[best], "*", color=INK, ms=11, zorder=4, label=label)
    right.set_ylim(0, None)  # leaves room for the legend
    right.legend(frameon=False, loc="lower right", fontsize=8.5)
    for axes in (left, right):
        axes.xaxis.set_major_formatter("{x:,.0f}")
    figure.suptitle(title, fontsize=11, color=INK)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=120, metadata={"Software": None})  # reproducible bytes
    return buffer.getvalue()


def _training_figure(
    metrics: Sequence[dict[str, float]], training: str, validation: str
) -> tuple[Any, list[Any]]:
    figure, (left, right) = _figure(1, 2, (9, 3))
    _plot_noisy(left, *_series(metrics, "loss"), label="")
    left.set(xlabel="episodes", ylabel="loss (−log p of the query)")
    _plot_noisy(right, *_series(metrics, "accuracy"), label=training)
    right.plot(*_series(metrics, "validation_accuracy"), "o-", color=SECOND, ms=4, label=validation)
    right.set(xlabel="episodes", ylabel="accuracy, %")
    return figure, [left, right]


def _plot_noisy(axes: Any, steps: list[float], values: list[float], *, label: str) -> None:
    """Draw a line; one with many points as the mean of each interval, with a band from 10 % to 90 %."""
    stretch = len(steps) // MAX_LINE_POINTS
    if stretch > 1:
        whole = len(steps) // stretch * stretch
        of_stretch, noisy = (np.reshape(x[-whole:], (-1, stretch)) for x in (steps, values))
        steps, values = of_stretch.mean(1).tolist(), noisy.mean(1).tolist()
        low, high = np.quantile(noisy, (0.1, 0.9), axis=1)
        axes.fill_between(steps, low, high, color=ACCENT, alpha=0.15, lw=0)
    axes.plot(steps, values, color=ACCENT, label=label)


def prior_plot(metrics: Sequence[dict[str, float]]) -> Markup:
    """β and β_b over episodes."""
    figure, (axes,) = _figure(1, 1, (4.4, 3))
    axes.plot(*_series(metrics, "beta"), color=ACCENT, label="β, scale of the weights")
    axes.plot(*_series(metrics, "beta_b"), color=SECOND, label="β_b, scale of the biases")
    axes.set(xlabel="episodes", ylim=(0, None))
    axes.legend(frameon=False)
    return _svg(figure, "The learned prior during training")


def reliability_plot(panels: Sequence[tuple[str, str, Reliability]]) -> Markup:
    """Reliability diagrams side by side: accuracy against confidence, and the share of queries per bin.

    panels: the title, subtitle and bins of each
    """
    figure, axes = _figure(1, len(panels), (3.1 * len(panels), 3.7))
    for ax, (title, subtitle, bins) in zip(axes, panels):
        middles, width = (bins.edges[1:] + bins.edges[:-1]) / 2, np.diff(bins.edges)
        ax.bar(middles, bins.counts / bins.counts.sum(), width * 0.9, color=GRID, label="share of queries")
        ax.plot([0, 1], [0, 1], color=MUTED, lw=1, ls="--")
        seen = bins.counts >= 20  # too few queries for an accuracy
        ax.plot(bins.confidence[seen], bins.accuracy[seen], "o-", color=ACCENT, ms=4, label="accuracy")
        ax.set(xlim=(0, 1), ylim=(0, 1), xlabel="confidence", aspect="equal")
        ax.set_title(f"{title}\n{subtitle}: ECE {bins.error:.1f} %", fontsize=10, color=INK)
    axes[0].set_ylabel("accuracy")
    axes[0].legend(frameon=False, fontsize=8, loc="upper left")
    return _svg(figure, "Reliability diagrams")


def trust_plot(bins: Sequence[Bin]) -> Markup:
    """Accuracy against confidence with intervals, for few answers; each dot says how many it stands for."""
    figure, (axes,) = _figure(1, 1, (4.4, 4.4))
    axes.plot([0, 100], [0, 100], color=MUTED, lw=1, ls="--")
    for one in bins:
        x, y = 100 * one.confidence, 100 * one.accuracy
        axes.plot([x, x], [100 * one.low, 100 * one.high], color=ACCENT, lw=6, alpha=0.22, zorder=2)
        axes.plot(x, y, "o", color=ACCENT, ms=6, zorder=3)
        side = -1 if x > 88 else 1
        style = {"fontsize": 8, "color": MUTED, "va": "center", "ha": "left" if side > 0 else "right"}
        axes.annotate(str(one.answers), (x, y), (7 * side, 0), textcoords="offset points", **style)
    axes.set(xlim=(0, 103), ylim=(-3, 103))
    axes.set(xlabel="how sure it says it is, %", ylabel="how often it is right, %")
    axes.set_aspect("equal")
    return _svg(figure, "How often answers are right, by how sure they are")


def comparison_plot(rows: Sequence[dict[str, Any]], highlighted: str) -> Markup:
    """Accuracy of each method, with its interval, against its time per episode.

    The vertical axis is the log of the error, which separates good methods; its ticks show the accuracy.
    """
    figure, (axes,) = _figure(1, 1, (9, 5.4))
    times = [row["ms_an_episode"] for row in rows]
    errors = [max(100 - row["accuracy"], 0.1) for row in rows]
    axes.set(
        xscale="log",
        yscale="log",
        xlabel="milliseconds per episode for adapting and predicting, without features",
        ylabel="accuracy on unseen scripts, 5-way 1-shot, %",
        xlim=(min(times) / 1.6, max(times) * 5),
        ylim=(min(100, max(errors) * 1.4), min(errors) / 1.4),
    )
    axes.xaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_major_formatter(lambda error, _: f"{100 - error:g}")
    axes.yaxis.set_minor_formatter(lambda error, _: f"{100 - error:g}")
    axes.tick_params(which="minor", colors=MUTED, labelsize=7)
    for row, x, y in zip(rows, times, errors):
        ours = row["method"] == highlighted
        interval = [[min(row["interval"], 0.9 * y)], [row["interval"]]]
        style = {"ms": 9, "color": SECOND, "zorder": 3} if ours else {"ms": 5, "color": ACCENT, "zorder": 2}
        axes.errorbar(x, y, interval, fmt="o", lw=1, **style)
    titles = [row["title"] for row in rows]
    points = axes.transAxes.inverted().transform(axes.transData.transform(list(zip(times, errors))))
    for row, point, position in zip(rows, points, _label_positions(points, titles)):
        ours = row["method"] == highlighted
        axes.annotate(
            row["title"],
            point,
            position,
            xycoords="axes fraction",
            textcoords="axes fraction",
            fontsize=8.5,
            va="center",
            color=SECOND if ours else INK,
            weight="bold" if ours else "normal",
            arrowprops={"arrowstyle": "-", "color": MUTED, "lw": 0.5, "shrinkB": 3},
        )
    return _svg(figure, "Accuracy of each method against its time per episode")


def _label_positions(
    points: Sequence[tuple[float, float]], titles: Sequence[str]
) -> list[tuple[float, float]]:
    """Return positions of labels that do not overlap, in fractions of the axes.

    From the top down, each label takes the nearest free position to the right of its point.
    """
    height, character, gap = 0.04, 0.0105, 0.015
    taken = [(x - 0.008, x + 0.008, y) for x, y in points]  # left, right, middle
    positions: dict[int, tuple[float, float]] = {}
    for i in sorted(range(len(points)), key=lambda i: -points[i][1]):
        (x, y), width = points[i], character * len(titles[i])
        for step in range(40):  # 0, 1 up, 1 down, 2 up, ...
            middle = y + height * 0.5 * ((step + 1) // 2) * (1 if step % 2 else -1)
            left = x + gap + 0.006 * ((step + 1) // 2)
            free = all(
                left + width < other_left or left > other_right or abs(middle - other) >= height * 0.95
                for other_left, other_right, other in taken
            )
            if free and 0.02 < middle < 0.99:
                break
        positions[i] = (left, middle)
        taken.append((left, left + width, middle))
    return [positions[i] for i in range(len(points))]


def _figure(rows: int, columns: int, size: tuple[float, float]) -> tuple[Any, list[Any]]:
    from matplotlib.figure import Figure  # no pyplot: it keeps global state and may want a display

    figure = Figure(figsize=size, layout="constrained")
    axes = [ax for row in figure.subplots(rows, columns, squeeze=False) for ax in row]
    for ax in axes:
        style_axes(ax, label_size=8)
    return figure, axes


def _series(metrics: Sequence[dict[str, float]], name: str) -> tuple[list[float], list[float]]:
    rows = [row for row in metrics if name in row]
    return [row["episode"] for row in rows], [row[name] for row in rows]


def _svg(figure: Any, description: str) -> Markup:
    buffer = io.StringIO()
    with matplotlib.rc_context({"svg.hashsalt": "gpldla", "svg.fonttype": "path"}):  # reproducible bytes
        figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
    svg = buffer.getvalue()
    svg = svg[svg.index("<svg") :]
    return Markup(svg.replace("<svg", f'<svg role="img" aria-label="{html.escape(description)}"', 1))
