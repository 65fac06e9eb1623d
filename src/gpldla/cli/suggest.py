"""The command `gpldla suggest`: which unlabelled items to label next."""

import csv
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gpldla.cli.items import feature_cache, pictures_of_arguments, readable_indices, texts_of_arguments
from gpldla.cli.options import (
    DEFAULT_DEVICE,
    AsJson,
    Cache,
    Device,
    SkipBad,
    load_classifier,
    messages,
)
from gpldla.utils.errors import UserError
from gpldla.utils.progress import Reporter, say
from gpldla.utils.terminal import wide_console

if TYPE_CHECKING:
    from gpldla.classifier.few_shot import FewShotClassifier


def suggest(
    file: Annotated[Path, typer.Argument(help="A file written by `gpldla fit`.")],
    pool: Annotated[
        list[str],
        typer.Argument(help="Items without labels: pictures and folders; or texts and files of them."),
    ],
    count: Annotated[int, typer.Option("--count", "-n", min=1, help="How many items.")] = 10,
    text: Annotated[str | None, typer.Option(help="Column of the texts in tables.")] = None,
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
    if model.backbone.reads == "texts":
        items = texts_of_arguments(pool, text)
    elif text is not None:
        raise UserError("The classifier is one of pictures; leave out --text.")
    else:
        items = pictures_of_arguments(pool)
        if skip_bad:
            items = [items[i] for i in readable_indices(items, model.preprocessing)]
    items = _without_examples(items, classifier)
    features = model.embed(items, cache=feature_cache(model, cache), reporter=Reporter(messages))
    chosen = classifier.suggestions(features, count)
    proba = classifier.probabilities(features[chosen.indices.copy()])
    rows = [
        {
            "item": str(items[index]),
            "guess": classifier.classes.tolist()[p.argmax()],
            "probability": float(p.max()),
            "gain": float(gain),
        }
        for index, p, gain in zip(chosen.indices.tolist(), proba, chosen.gain)
    ]
    if as_json:
        typer.echo(json.dumps(rows, indent=2))
    elif as_csv:
        _write_csv(rows)
    else:
        _print_table(rows)
        say(messages, f"Label these, then: gpldla add {file} FOLDER_OR_TABLE")


def _without_examples(items: list[Any], classifier: "FewShotClassifier") -> list[Any]:
    """Return the items that are no examples already, by name."""
    from gpldla.data.user_files import printable

    known = set(classifier.names or ())
    new = [item for item in items if printable(item) not in known]
    if len(new) < len(items):
        say(messages, f"{len(items) - len(new)} of the {len(items)} items are examples already: left out.")
    if not new:
        raise UserError("All items are examples already; give some that have no label yet.")
    return new


def _write_csv(rows: list[dict[str, Any]]) -> None:
    from gpldla.data.user_files import printable

    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(["item", "label", "guess", "probability", "gain"])
    for row in rows:
        numbers = [f"{row['probability']:.4f}", f"{row['gain']:.5f}"]
        writer.writerow([printable(row["item"]), "", printable(row["guess"]), *numbers])


def _print_table(rows: list[dict[str, Any]]) -> None:
    from rich.markup import escape
    from rich.table import Column, Table

    from gpldla.data.user_files import printable

    table = Table(
        Column("item", overflow="fold"),
        "looks like",
        Column("p", justify="right"),
        Column("would teach", justify="right"),
        title="Label next, the most informative first",
        title_justify="left",
    )
    for row in rows:
        name, guess = escape(printable(row["item"])), escape(printable(row["guess"]))
        table.add_row(name, guess, f"{row['probability']:.2f}", f"{100 * row['gain']:.2f} %")
    wide_console().print(table)
