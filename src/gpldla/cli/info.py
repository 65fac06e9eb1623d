"""The command `gpldla info`: what is in a classifier's file."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from gpldla.cli.options import AsJson, load_classifier
from gpldla.utils.progress import say
from gpldla.utils.terminal import wide_console

if TYPE_CHECKING:
    from gpldla.classifier.few_shot import FewShotClassifier


def info(
    file: Annotated[Path, typer.Argument(help="A file written by `gpldla fit`.")],
    items: Annotated[bool, typer.Option("--items", help="List the examples with their labels.")] = False,
    as_json: AsJson = False,
) -> None:
    """Say what a classifier's file holds: its classes, its examples, its model, and how good it is.

    Example: gpldla info birds.safetensors --items
    """
    from gpldla.utils.files import read_tensors

    classifier = load_classifier(file)
    facts: dict[str, Any] = {
        "file": str(file),
        "bytes": file.stat().st_size,
        "written_by": f"gpldla {read_tensors(file)[1]['gpldla']}",
        **classifier.info(),
    }
    listed = _examples(classifier) if items else []
    if as_json:
        typer.echo(json.dumps(facts | ({"items": listed} if items else {}), indent=2))
        return
    console = wide_console()
    _print(console, facts)
    if items:
        _print_items(console, listed)


def _examples(classifier: "FewShotClassifier") -> list[dict[str, Any]]:
    pairs = zip(classifier.item_names(), classifier.labels.tolist())
    return [{"number": i, "item": name, "label": label} for i, (name, label) in enumerate(pairs)]


def _print(console: Console, facts: dict[str, Any]) -> None:
    from rich.table import Column, Table

    from gpldla.utils.terminal import cell

    counts = facts["examples"]
    kept = "not kept: nothing can be added, relabelled or removed"
    if counts is not None:
        total = sum(counts.values())
        kept = f"{total}, {'with' if facts['names'] else 'without'} names"
        if facts["unlabelled"]:
            kept += f"; and {facts['unlabelled']} without labels"
    calibrated = "calibrated" if facts["none_of_these"] else "not available with this head"
    lines = {
        "reads": facts["reads"],
        "model": f"{facts['backbone']} with the head {facts['head']}",
        "network": "in this file" if facts["network_in_file"] else "of the installed package",
        "examples": kept,
        "none of these": calibrated,
        "temperature": f"{facts['temperature']:.3g}",
        "written by": f"{facts['written_by']}, {facts['bytes']:,} bytes",
    }
    if facts["names_as_prior"]:
        lines["class names"] = "their meaning is the prior, see docs/names.md"
    if facts["own_prior_share"]:
        lines["own prior"] = f"{100 * facts['own_prior_share']:.0f} % of the answers, see docs/models.md"
    leave_one_out, expected = facts["leave_one_out"], facts["expected"]
    if leave_one_out is not None and leave_one_out["accuracy"] is not None:
        tested = f"accuracy {leave_one_out['accuracy']:.1f} %, NLL {leave_one_out['nll']:.3f}"
        lines["leave-one-out"] = f"{tested}, on {leave_one_out['examples']} examples"
    if expected is not None:
        interval = f"90 % interval: {expected['low']:.0f} to {expected['high']:.0f} %"
        lines["expected"] = f"{expected['accuracy']:.0f} % right on new {facts['reads']} ({interval})"
    console.print(cell(facts["file"]), highlight=False, soft_wrap=True)
    width = max(map(len, lines)) + 2
    for name, text in lines.items():
        say(console, f"  {name:{width}}{text}")
    table = Table("class", Column("examples", justify="right"))
    for name in facts["classes"]:
        table.add_row(cell(name), "" if counts is None else str(counts[str(name)]))
    console.print(table)


def _print_items(console: Console, listed: list[dict[str, Any]]) -> None:
    from rich.table import Column, Table

    from gpldla.reports.short_names import short_names
    from gpldla.utils.terminal import cell

    table = Table(Column("number", justify="right"), Column("example", overflow="fold"), "label")
    names, table.caption = short_names([one["item"] for one in listed])
    for name, one in zip(names, listed):
        shown = "" if one["item"] == f"#{one['number']}" else name
        table.add_row(f"#{one['number']}", cell(shown), cell(one["label"]))
    console.print(table)
