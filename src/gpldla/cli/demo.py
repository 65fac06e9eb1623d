"""The command `gpldla demo`."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from gpldla.cli.options import Cache, data_paths


def demo(
    output: Annotated[
        Path, typer.Option("--output", "-o", help="Folder for the model and the report.")
    ] = Path("demo"),
    fast: Annotated[
        bool, typer.Option("--fast", help="Train for much fewer episodes, to try it out.")
    ] = False,
    compare: Annotated[
        bool, typer.Option("--compare", help="Train every method on the same images and compare them.")
    ] = False,
    seed: Annotated[int, typer.Option(help="Seed of training and test episodes.")] = 0,
    cache: Cache = None,
) -> None:
    """Meta-train on printed letters, test on unseen scripts and on handwritten digits, write a report.

    Needs no data and no GPU.

    Example: gpldla demo -o demo

    All methods side by side, in a quarter of an hour: gpldla demo --compare
    """
    if compare:
        from gpldla.reports.compare import run_comparison

        run_comparison(output, fast=fast, seed=seed, data_paths=data_paths(None, cache), console=Console())
        return
    from gpldla.reports.demo import run_demo

    run_demo(output, fast=fast, seed=seed, data_paths=data_paths(None, cache), console=Console())
