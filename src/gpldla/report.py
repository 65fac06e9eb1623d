"""What people look at: tables for the terminal, plots, and the HTML report of the demo."""

import base64
import html
import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape
from markupsafe import Markup
from PIL import Image
from rich.box import SIMPLE_HEAD
from rich.markup import escape
from rich.table import Column, Table

from gpldla.calibration import Reliability
from gpldla.data.splits import PARTS
from gpldla.files import write_atomically
from gpldla.own_data import Answer, FitSummary

INK, MUTED, ACCENT, SECOND, GRID = "#1d2733", "#667280", "#2a6fb0", "#d9822b", "#e3e7ec"
POINTS_OF_A_CLEAR_LINE = 60  # in a plot of training; many more are noise


# ---- tables for the terminal


def evaluation_table(numbers: dict[str, Any]) -> Table:
    """Show one evaluation; a row a kind of temperature."""
    table = Table(
        title=escape(numbers["dataset"]) + f", {numbers['ways']}-way {numbers['shots']}-shot, novel classes,"
        f" {numbers['repeats']} × {numbers['episodes']} episodes",
        title_justify="left",
    )
    for column in ("temperature", "T", "accuracy %", "NLL", "ECE %", "ECE % (equal mass)"):
        table.add_column(column, justify="left" if column == "temperature" else "right")
    validation = "from validation classes, for this task"
    if not numbers["temperature_val_is_fitted"]:
        validation = "that of the model: too few validation classes here"
    rows = (
        ("none", "", 1.0),
        ("stored in the model", "_model_temperature", numbers["temperature_model"]),
        (validation, "_val_temperature", numbers["temperature_val"]),
        ("from other test episodes (as in the paper)", "_paper_temperature", numbers["temperature_paper"]),
    )
    for label, suffix, temperature in rows:
        table.add_row(
            label,
            f"{temperature:.2f}",
            f"{numbers['accuracy' + suffix]:.2f} ± {numbers['interval' + suffix]:.2f}",
            f"{numbers['nll' + suffix]:.3f}",
            f"{numbers['ece' + suffix]:.2f}",
            f"{numbers['ece_equal_mass' + suffix]:.2f}",
        )
    return table


def models_table(models: Sequence[dict[str, Any]]) -> Table:
    """Show the shipped models with their accuracy on novel classes; a row a model."""
    # Without lines between columns, so that names, to be copied from here, are whole in 80 characters.
    table = Table(title="Shipped models", title_justify="left", box=SIMPLE_HEAD, show_edge=False, padding=0)
    for column in ("model", "trained on", "network"):
        table.add_column(column, overflow="fold")
    for column in ("shots", "accuracy %", "ECE %", "MB"):
        table.add_column(column, justify="right", no_wrap=True)
    for facts in models:
        table.add_row(
            *(escape(facts[name]) for name in ("name", "dataset", "backbone")),
            str(facts["shots"]),
            f"{facts['accuracy']:.1f} ± {facts['interval']:.1f}",
            f"{facts['ece_val_temperature']:.1f}",
            f"{facts['megabytes']:.1f}",
        )
    ways = ", ".join(sorted({f"{facts['ways']}-way" for facts in models}))
    table.caption = f"{ways} tasks of novel classes; ECE with the temperature from validation classes"
    table.caption_justify = "left"
    return table


def fit_tables(summary: FitSummary) -> list[Table]:
    """Show the classes of a fit, the pairs most confused and the examples that look mislabelled."""
    classes = Table("class", Column("examples", justify="right"), title="Classes", title_justify="left")
    for name, count in summary.counts.items():
        classes.add_row(escape(str(name)), str(count))
    tables = [classes]
    if summary.confused:
        confused = Table(
            "class",
            "taken for",
            Column("times", justify="right"),
            title="Most confused",
            title_justify="left",
        )
        for label, taken_for, count in summary.confused:
            confused.add_row(escape(str(label)), escape(str(taken_for)), str(count))
        tables.append(confused)
    if summary.suspects:
        suspects = Table(
            Column("example", overflow="fold"),
            "label",
            "looks like",
            Column("probability", justify="right"),
            title="Perhaps mislabelled: the other examples speak against these",
            title_justify="left",
        )
        for one in summary.suspects:
            suspects.add_row(
                escape(one.item), escape(str(one.label)), escape(str(one.rather)), f"{one.probability:.2f}"
            )
        tables.append(suspects)
    return tables


def answers_table(answers: Sequence[Answer]) -> Table:
    """Show what is said of each item: the answer, how sure it is, and what else it may be."""
    table = Table(Column("item", overflow="fold"), "answer", Column("p", justify="right"), "or")
    if any(one.none_of_these is not None for one in answers):
        table.add_column("none of these", justify="right")
    for one in answers:
        ranked = sorted(one.probabilities.items(), key=lambda pair: -pair[1])
        name, second = ranked[1]
        answer = f"unsure ({one.label})" if one.unsure else str(one.label)
        row = [
            escape(one.item),
            escape(answer),
            f"{one.probability:.2f}",
            f"{escape(str(name))} {second:.2f}",
        ]
        table.add_row(*row, *([] if one.none_of_these is None else [f"{one.none_of_these:.2f}"]))
    return table


def inventory_tables(stock: dict[str, Any]) -> tuple[Table, Table]:
    """Show the data sets that are there, and the classes of each protocol."""
    sets = Table(
        "data set", "found in", title=escape(f"Data root {stock['data_root']}"), title_justify="left"
    )
    root = stock["data_root"]
    for column in ("classes", "images"):
        sets.add_column(column, justify="right")
    sets.add_column("state")
    for name, facts in stock["sets"].items():
        if not facts["found"]:
            there = facts["place"] is not None
            place = _place(facts["place"], root) if there else ""
            sets.add_row(name, escape(place), "", "", "no images" if there else "missing")
            continue
        place = "embedded" if facts["embedded"] else _place(facts["place"], root)
        state = ("complete" if facts["complete"] else "not complete") + (
            ", packed" if facts["packed"] else ""
        )
        sets.add_row(name, escape(place), f"{facts['classes']:,}", f"{facts['images']:,}", state)
    protocols = Table("protocol", title="Protocols: classes of each part", title_justify="left")
    for part in PARTS:
        protocols.add_column(part, justify="right")
    protocols.add_column("from")
    for name, parts in stock["protocols"].items():
        sources = " → ".join(dict.fromkeys(facts["set"] for facts in parts.values()))
        cells = [_class_count(parts[part]) if part in parts else "" for part in PARTS]
        protocols.add_row(name, *cells, sources)
    return sets, protocols


def _place(place: str | None, root: str) -> str:
    if place is None:
        return "packed copy only"
    path = Path(place)
    return str(path.relative_to(root)) if path.is_relative_to(root) else place


def _class_count(facts: dict[str, Any]) -> str:
    found, asked = facts["classes_found"], facts["classes"]
    return f"{asked:,}" if found in (0, asked) else f"{found:,} of {asked:,}"


# ---- plots, as SVG


def training_plot(metrics: Sequence[dict[str, float]]) -> Markup:
    """Loss, and accuracy in training and validation, over episodes."""
    figure, (_, right) = _training_figure(metrics, "training episodes", "validation script")
    right.legend(frameon=False, loc="lower right")
    return _svg(figure, "Loss and accuracy during training")


def training_curve(
    metrics: Sequence[dict[str, float]], title: str, *, training: str, validation: str
) -> bytes:
    """The same as PNG, for the card of a model, with the weights that were kept.

    training, validation: what the tasks of each are called
    """
    figure, (left, right) = _training_figure(metrics, training, validation)
    episodes, accuracies = _series(metrics, "validation_accuracy")
    best = int(np.argmax(accuracies))
    label = f"kept weights: {accuracies[best]:.1f} %"
    right.plot(episodes[best], accuracies[best], "*", color=INK, ms=11, zorder=4, label=label)
    right.set_ylim(0, None)  # which leaves room for the legend
    right.legend(frameon=False, loc="lower right", fontsize=8.5)
    for axes in (left, right):
        axes.xaxis.set_major_formatter("{x:,.0f}")
    figure.suptitle(title, fontsize=11, color=INK)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=120, metadata={"Software": None})  # the same bytes every time
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
    """Draw a line; where it has very many points, the mean of each stretch, and where most of it lies."""
    stretch = len(steps) // POINTS_OF_A_CLEAR_LINE
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
    """Reliability diagrams side by side: accuracy against confidence, and how often each occurs.

    A panel is its title, its subtitle and the bins.
    """
    figure, axes = _figure(1, len(panels), (3.1 * len(panels), 3.7))
    for ax, (title, subtitle, bins) in zip(axes, panels):
        middles, width = (bins.edges[1:] + bins.edges[:-1]) / 2, np.diff(bins.edges)
        ax.bar(middles, bins.counts / bins.counts.sum(), width * 0.9, color=GRID, label="share of queries")
        ax.plot([0, 1], [0, 1], color=MUTED, lw=1, ls="--")
        seen = bins.counts >= 20  # fewer say nothing about an accuracy
        ax.plot(bins.confidence[seen], bins.accuracy[seen], "o-", color=ACCENT, ms=4, label="accuracy")
        ax.set(xlim=(0, 1), ylim=(0, 1), xlabel="confidence", aspect="equal")
        ax.set_title(f"{title}\n{subtitle}: ECE {bins.error:.1f} %", fontsize=10, color=INK)
    axes[0].set_ylabel("accuracy")
    axes[0].legend(frameon=False, fontsize=8, loc="upper left")
    return _svg(figure, "Reliability diagrams")


def comparison_plot(rows: Sequence[dict[str, Any]], highlighted: str) -> Markup:
    """Accuracy of each method, with its interval, against the time of an episode.

    The height is the log of the error, which tells good methods apart; the ticks say the accuracy.
    """
    figure, (axes,) = _figure(1, 1, (9, 5.4))
    times = [row["ms_an_episode"] for row in rows]
    errors = [max(100 - row["accuracy"], 0.1) for row in rows]
    axes.set(
        xscale="log",
        yscale="log",
        xlabel="milliseconds an episode, adaptation and prediction (features apart)",
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
    for row, point, place in zip(rows, points, _label_places(points, titles)):
        ours = row["method"] == highlighted
        axes.annotate(
            row["title"],
            point,
            place,
            xycoords="axes fraction",
            textcoords="axes fraction",
            fontsize=8.5,
            va="center",
            color=SECOND if ours else INK,
            weight="bold" if ours else "normal",
            arrowprops={"arrowstyle": "-", "color": MUTED, "lw": 0.5, "shrinkB": 3},
        )
    return _svg(figure, "Accuracy of each method against its time an episode")


def _label_places(points: Sequence[tuple[float, float]], titles: Sequence[str]) -> list[tuple[float, float]]:
    """Return where labels may stand beside their points without covering another, in fractions of the axes.

    One after the other, from the top; each takes the nearest free place to the right of its point.
    """
    height, character, gap = 0.04, 0.0105, 0.015
    taken = [(x - 0.008, x + 0.008, y) for x, y in points]  # left, right, middle
    places: dict[int, tuple[float, float]] = {}
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
        places[i] = (left, middle)
        taken.append((left, left + width, middle))
    return [places[i] for i in range(len(points))]


def _figure(rows: int, columns: int, size: tuple[float, float]) -> tuple[Any, list[Any]]:
    from matplotlib.figure import Figure  # no pyplot: it keeps global state and may want a display

    figure = Figure(figsize=size, layout="constrained")
    axes = [ax for row in figure.subplots(rows, columns, squeeze=False) for ax in row]
    for ax in axes:
        style_axes(ax, label_size=8)
    return figure, axes


def style_axes(ax: Any, *, label_size: int) -> None:
    """Give a plot the quiet look that all of them have."""
    ax.grid(color=GRID, lw=0.8)
    ax.set_axisbelow(True)
    ax.spines[["top", "right"]].set_visible(False)
    ax.spines[["left", "bottom"]].set_color(MUTED)
    ax.tick_params(colors=MUTED, labelsize=label_size)


def _series(metrics: Sequence[dict[str, float]], name: str) -> tuple[list[float], list[float]]:
    rows = [row for row in metrics if name in row]
    return [row["episode"] for row in rows], [row[name] for row in rows]


def _svg(figure: Any, description: str) -> Markup:
    buffer = io.StringIO()
    with matplotlib.rc_context(
        {"svg.hashsalt": "gpldla", "svg.fonttype": "path"}
    ):  # the same bytes every time
        figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
    svg = buffer.getvalue()
    svg = svg[svg.index("<svg") :]
    return Markup(svg.replace("<svg", f'<svg role="img" aria-label="{html.escape(description)}"', 1))


# ---- the HTML report


@dataclass(frozen=True)
class DrawnQuery:
    """One query of a drawn episode: its picture, the truth and the probabilities of all classes."""

    image: np.ndarray  # uint8 [1, h, w]
    truth: int
    probabilities: np.ndarray  # [ways]


@dataclass(frozen=True)
class DrawnEpisode:
    """An episode to look at: a few support images a class, and some queries."""

    title: str
    class_names: list[str]
    support: list[list[np.ndarray]]  # a class, its images
    queries: list[DrawnQuery]


def write_demo_report(path: Path, facts: dict[str, Any]) -> None:
    """Write the page of the demo, one self-contained file."""
    _write_page(path, "demo.html", facts)


def write_comparison_report(path: Path, facts: dict[str, Any]) -> None:
    """Write the page of the comparison, one self-contained file."""
    _write_page(path, "compare.html", facts)


def _write_page(path: Path, template: str, facts: dict[str, Any]) -> None:
    environment = Environment(
        loader=PackageLoader("gpldla"),
        autoescape=select_autoescape(),
        undefined=StrictUndefined,  # a missing fact is an error, not a gap in the page
        trim_blocks=True,
    )
    environment.filters["picture"] = picture_uri
    page = environment.get_template(template).render(facts)
    write_atomically(path, page.encode())


def picture_uri(image: np.ndarray) -> str:
    """Turn uint8 [1, h, w] to a data URI."""
    buffer = io.BytesIO()
    Image.fromarray(image[0]).save(buffer, format="PNG")
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode()
