"""The command `gpldla suggest`: which unlabelled items to label next."""

import csv
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gpldla.cli.items import Given, feature_cache, given_items
from gpldla.cli.options import (
    DEFAULT_DEVICE,
    AsJson,
    Cache,
    Device,
    SkipBad,
    load_classifier,
    messages,
)
from gpldla.cli.table_options import Delimiter, Encoding, Picture, TableOptions, Text
from gpldla.utils.errors import UserError
from gpldla.utils.progress import Reporter, say
from gpldla.utils.terminal import wide_console

if TYPE_CHECKING:
    from gpldla.classifier.few_shot import FewShotClassifier


def suggest(
    file: Annotated[Path, typer.Argument(help="A file written by `gpldla fit`.")],
    pool: Annotated[
        list[str],
        typer.Argument(help="Items without labels: pictures and folders, or texts; or tables of either."),
    ],
    count: Annotated[int, typer.Option("--count", "-n", min=1, help="How many items.")] = 10,
    text: Text = None,
    picture: Picture = None,
    encoding: Encoding = None,
    delimiter: Delimiter = None,
    as_csv: Annotated[
        bool,
        typer.Option("--csv", help="Print a table with an empty column label, to fill in for `gpldla add`."),
    ] = False,
    as_json: AsJson = False,
    skip_bad: SkipBad = False,
    device: Device = DEFAULT_DEVICE,
    cache: Cache = None,
) -> None:
    """Rank unlabelled items by what their labels would teach about the others.

    Example: gpldla suggest birds.safetensors album/ -n 20

    A table to fill in: gpldla suggest birds.safetensors album/ --csv > next.csv,
    then gpldla add birds.safetensors next.csv
    """
    if as_json and as_csv:
        raise UserError("Choose one of --json and --csv.")
    classifier = load_classifier(file, device)
    model = classifier.model
    options = TableOptions(text, picture, None, encoding, delimiter, skip_bad)
    given = _without_examples(given_items(pool, model, options), classifier)
    features = model.embed(given.items, cache=feature_cache(model, cache), reporter=Reporter(messages))
    chosen = classifier.suggestions(features, count)
    proba = classifier.probabilities(features[chosen.indices.copy()])
    rows = [
        {
            "item": str(given.items[index]),
            "guess": classifier.classes.tolist()[p.argmax()],
            "probability": float(p.max()),
            "gain": float(gain),
        }
        for index, p, gain in zip(chosen.indices.tolist(), proba, chosen.gain)
    ]
    if as_json:
        typer.echo(json.dumps(rows, indent=2))
    elif as_csv:
        _write_csv(rows, given.kept(chosen.indices.tolist()).columns)
    else:
        _print_table(rows)
        say(messages, f"Label these, then: gpldla add {file} FOLDER_OR_TABLE")


def _without_examples(given: Given, classifier: "FewShotClassifier") -> Given:
    """Return the items that are no examples already, by name."""
    from gpldla.data.user_files import printable

    known = set(classifier.names or ())
    new = [index for index, item in enumerate(given.items) if printable(item) not in known]
    if len(new) < len(given):
        say(messages, f"{len(given) - len(new)} of the {len(given)} items are examples already: left out.")
    if not new:
        raise UserError("All items are examples already; give some that have no label yet.")
    return given.kept(new)


def _write_csv(rows: list[dict[str, Any]], columns: dict[str, list[Any]]) -> None:
    """Write the rows; columns: of the tables that the items come from, such as their ids."""
    from gpldla.data.tables import cell_text, passthrough_names
    from gpldla.data.user_files import printable

    header = ["item", "label", "guess", "probability", "gain"]
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow([*header, *passthrough_names(columns, header).values()])
    for i, row in enumerate(rows):
        numbers = [f"{row['probability']:.4f}", f"{row['gain']:.5f}"]
        others = [cell_text(values[i]) for values in columns.values()]
        writer.writerow([printable(row["item"]), "", printable(row["guess"]), *numbers, *others])


def _print_table(rows: list[dict[str, Any]]) -> None:
    from rich.table import Column, Table

    from gpldla.data.user_files import printable
    from gpldla.reports.short_names import short_names
    from gpldla.utils.terminal import cell

    table = Table(
        Column("item", overflow="fold"),
        "looks like",
        Column("p", justify="right"),
        Column("would teach", justify="right"),
        title="Label next, the most informative first",
        title_justify="left",
    )
    names, table.caption = short_names([printable(row["item"]) for row in rows])
    for name, row in zip(names, rows):
        guess = cell(printable(row["guess"]))
        table.add_row(cell(name), guess, f"{row['probability']:.2f}", f"{100 * row['gain']:.2f} %")
    wide_console().print(table)
