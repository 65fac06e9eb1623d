"""Tables and sentences for the terminal."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Column, Table

from gpldla.classifier.answers import FitSummary
from gpldla.classifier.expected_accuracy import ExpectedAccuracy
from gpldla.data.splits import PARTS
from gpldla.reports.short_names import short_names
from gpldla.utils.terminal import cell


def evaluation_table(numbers: dict[str, Any]) -> Table:
    """Show one evaluation, with one row per kind of temperature."""
    table = Table(
        title=cell(numbers["dataset"]) + f", {numbers['ways']}-way {numbers['shots']}-shot, novel classes,"
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
        ("as classifiers answer (median of T)", "_classifier", numbers["temperature_task"]),
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
    """Show the shipped models with their accuracy on novel classes, one row per model."""
    # No lines between columns, so that the names, which users copy, fit into 80 characters.
    table = Table(title="Shipped models", title_justify="left", box=SIMPLE_HEAD, show_edge=False, padding=0)
    for column in ("model", "trained on", "network"):
        table.add_column(column, overflow="fold")
    for column in ("shots", "accuracy %", "ECE %", "MB"):
        table.add_column(column, justify="right", no_wrap=True)
    for facts in models:
        table.add_row(
            *(cell(facts[name]) for name in ("name", "dataset", "backbone")),
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
    """Show the classes of a fit, the most confused pairs and the examples that look mislabelled."""
    classes = Table("class", Column("examples", justify="right"), title="Classes", title_justify="left")
    for name, count in summary.counts.items():
        classes.add_row(cell(name), str(count))
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
            confused.add_row(cell(label), cell(taken_for), str(count))
        tables.append(confused)
    if summary.suspects:
        suspects = Table(
            Column("example", overflow="fold"),
            "label",
            "looks like",
            Column("probability", justify="right"),
            title="Perhaps mislabelled: the other examples contradict these labels",
            title_justify="left",
        )
        items, suspects.caption = short_names([one.item for one in summary.suspects])
        for item, one in zip(items, summary.suspects):
            suspects.add_row(cell(item), cell(one.label), cell(one.rather), f"{one.probability:.2f}")
        tables.append(suspects)
    return tables


def leave_one_out_line(summary: FitSummary) -> str:
    """Summarise the leave-one-out test of a fit in one sentence."""
    if summary.accuracy is None or summary.nll is None:
        return (
            "Every class has a single example, so none can be left out to test the classifier:"
            " how often it will be right is unknown."
        )
    accuracy, nll = f"accuracy {summary.accuracy:.1f} %", f"NLL {summary.nll:.3f}"
    return f"Leave-one-out: {accuracy}, {nll}, on {summary.tested} examples."


def expected_line(expected: ExpectedAccuracy, what: str) -> str:
    """Say what accuracy to expect, in one sentence."""
    low, high = 100 * expected.low, 100 * expected.high
    return (
        f"On new {what} like these expect {100 * expected.accuracy:.0f} % right, with all examples in use"
        f" (90 % interval: {low:.0f} to {high:.0f} %)."
    )


def inventory_tables(stock: dict[str, Any]) -> tuple[Table, Table]:
    """Show which data sets were found, and the classes of each protocol."""
    sets = Table("data set", "found in", title=cell(f"Data root {stock['data_root']}"), title_justify="left")
    root = stock["data_root"]
    for column in ("classes", "images"):
        sets.add_column(column, justify="right")
    sets.add_column("state")
    for name, facts in stock["sets"].items():
        if not facts["found"]:
            exists = facts["place"] is not None
            path = _shown_path(facts["place"], root) if exists else ""
            sets.add_row(name, cell(path), "", "", "no images" if exists else "missing")
            continue
        path = "embedded" if facts["embedded"] else _shown_path(facts["place"], root)
        state = ("complete" if facts["complete"] else "not complete") + (
            ", packed" if facts["packed"] else ""
        )
        sets.add_row(name, cell(path), f"{facts['classes']:,}", f"{facts['images']:,}", state)
    protocols = Table("protocol", title="Protocols: classes of each part", title_justify="left")
    for part in PARTS:
        protocols.add_column(part, justify="right")
    protocols.add_column("from")
    for name, parts in stock["protocols"].items():
        sources = " → ".join(dict.fromkeys(facts["set"] for facts in parts.values()))
        cells = [_class_count(parts[part]) if part in parts else "" for part in PARTS]
        protocols.add_row(name, *cells, sources)
    return sets, protocols


def _shown_path(found: str | None, root: str) -> str:
    if found is None:
        return "packed copy only"
    path = Path(found)
    return str(path.relative_to(root)) if path.is_relative_to(root) else found


def _class_count(facts: dict[str, Any]) -> str:
    found, asked = facts["classes_found"], facts["classes"]
    return f"{asked:,}" if found in (0, asked) else f"{found:,} of {asked:,}"
