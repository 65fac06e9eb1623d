"""The commands that show what was measured before: `gpldla models` and `gpldla tables`."""

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from gpldla.cli.options import AsJson, messages
from gpldla.utils.errors import UserError
from gpldla.utils.progress import say


def list_models(as_json: AsJson = False) -> None:
    """List the trained models that come with gpldla, with their accuracy on novel classes.

    Every command that takes the folder of a model also takes one of these names.

    Example: gpldla models
    """
    from gpldla.classifier.shipped import CARD, MODELS, shipped_facts
    from gpldla.reports.terminal import models_table

    facts = shipped_facts()
    if as_json:
        typer.echo(json.dumps(facts, indent=2))
        return
    console = Console()
    if not facts:
        say(console, "No models come with this version of gpldla; train one with `gpldla train`.")
        return
    console.print(models_table(facts))
    say(console, f"The card of each model, with its purpose and its training: {MODELS / 'NAME' / CARD}")


def show_tables(
    name: Annotated[
        str | None, typer.Argument(help="One of the paper's tables, or methods; default: all tables.")
    ] = None,
    results: Annotated[
        Path | None, typer.Option(help="Folder of measured results; default: those that come with gpldla.")
    ] = None,
    markdown: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write all tables and plots to this page instead.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Print the paper's tables beside this package's results; nothing is measured.

    Example: gpldla tables cub

    The page of all results: gpldla tables --markdown docs/results.md
    """
    from gpldla.reports import paper_tables as tables

    if markdown is not None:
        from gpldla.reports.paper_tables.page import write_page

        if name is not None or as_json:
            raise UserError("--markdown writes all tables; leave out the table's name and --json.")
        page, *pictures = write_page(markdown, results)
        count = "1 picture" if len(pictures) == 1 else f"{len(pictures)} pictures"
        say(messages, f"Wrote {page} and {count}.")
        return
    if as_json:
        typer.echo(tables.as_json(name, results))
        return
    console = Console()
    for table in tables.tables(name, results):
        console.print(table, crop=False)  # a command in the notes may be longer than a line
