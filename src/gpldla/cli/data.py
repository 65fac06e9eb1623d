"""The commands about data sets: `gpldla data list`, `prepare`, `check` and `show`."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from gpldla.cli.options import AsJson, Cache, DataRoot, data_access
from gpldla.utils.errors import UserError
from gpldla.utils.progress import say

if TYPE_CHECKING:
    from gpldla.data import ImageSet

FAULTS_SHOWN = 5  # per data set in `data list`

data_app = typer.Typer(help="List, pack, check and show data sets.", no_args_is_help=True)

DataName = Annotated[str, typer.Argument(help="A data set, a protocol, or folder:PATH.")]


@data_app.command("list", short_help="List the data sets.")
def list_data(as_json: AsJson = False, data_root: DataRoot = None, cache: Cache = None) -> None:
    """List the data sets: which were found, which are missing, where to get them and where to put them.

    Example: gpldla data list --data-root ~/data
    """
    from gpldla.data.inventory import data_inventory
    from gpldla.reports.terminal import inventory_tables

    stock = data_inventory(data_access(data_root, cache))
    if as_json:
        typer.echo(json.dumps(stock, indent=2))
        return
    console = Console()
    for table in inventory_tables(stock):
        console.print(table)
    for name, facts in stock["sets"].items():
        for fault in facts["faults"][:FAULTS_SHOWN]:
            say(console, f"{name}: {fault}")
        if len(facts["faults"]) > FAULTS_SHOWN:
            say(console, f"{name}: {len(facts['faults']) - FAULTS_SHOWN} more; see --json.")
        if not facts["found"]:
            say(console, f"{name}: get it from {facts['get']};")
            say(console, f"  put {facts['put']} into {Path(stock['data_root']) / name}.")
    say(console, "Any folder of class folders is a data set too: folder:PATH.")


@data_app.command("prepare", short_help="Pack a data set into the cache folder.")
def prepare_data(
    name: DataName,
    backbone: Annotated[
        str | None, typer.Option(help="Pack for the input size of this backbone; default: the usual one's.")
    ] = None,
    side: Annotated[
        int | None,
        typer.Option(min=8, max=4096, help="Side of the stored images in pixels; default: by input size."),
    ] = None,
    skip_bad: Annotated[
        bool, typer.Option("--skip-bad", help="List images that cannot be read and leave them out.")
    ] = False,
    data_root: DataRoot = None,
    cache: Cache = None,
) -> None:
    """Decode a data set once into a packed store in the cache folder, unless it is there already.

    Example: gpldla data prepare cub --backbone resnet18
    """
    from gpldla.backbones import backbone_preprocessing
    from gpldla.data import load_protocol, load_set
    from gpldla.data.catalog import is_set_only

    size = None if backbone is None else backbone_preprocessing(backbone).size
    access = data_access(data_root, cache, skip_bad=skip_bad)
    if is_set_only(name):
        image_set = load_set(name, size=size, side=side, access=access)
        typer.echo(f"{name}: {_class_count(len(image_set.counts))}, {_image_count(image_set)}")
        return
    for part_name, part in load_protocol(name, size=size, side=side, access=access).parts.items():
        typer.echo(
            f"{name} {part_name}: {_class_count(len(part.classes))}, {len(part.indices):,} of the"
            f" {_image_count(part.image_set)} in {part.image_set.name}"
        )


def _class_count(count: int) -> str:
    return "1 class" if count == 1 else f"{count:,} classes"


def _image_count(image_set: "ImageSet") -> str:
    n, _, height, width = image_set.images.shape
    return f"{n:,} images of {height} × {width} pixels"


@data_app.command("check", short_help="Compare packed data sets with their checksums.")
def check_data(
    names: Annotated[
        list[str] | None, typer.Argument(help="Data sets, or folder:PATH; default: all that are packed.")
    ] = None,
    cache: Cache = None,
) -> None:
    """Read all images of the packed stores in the cache folder and compare them with their checksums.

    Other commands do so with the images that they read.

    Example: gpldla data check cub
    """
    from gpldla.data.inventory import stores_to_check
    from gpldla.data.store import check_store

    stores, damaged = stores_to_check(data_access(None, cache).data_paths.cache, names or ()), 0
    for store in stores:
        try:
            image_set = check_store(store)
        except UserError as error:
            say(Console(stderr=True), str(error))
            damaged += 1
        else:
            typer.echo(f"{store}: {_image_count(image_set)}, whole")
    if damaged:
        raise UserError(f"{damaged} of {len(stores)} packed stores cannot be used; see above what to do.")


@data_app.command("show", short_help="Write a contact sheet of a data set.")
def show_data(
    name: DataName,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="PNG file; default: NAME.png.")
    ] = None,
    classes: Annotated[
        int, typer.Option(min=1, help="Number of classes shown, per part of a protocol; one row per class.")
    ] = 12,
    samples: Annotated[int, typer.Option(min=1, max=100, help="Images per class.")] = 12,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the choice of images.")] = 0,
    data_root: DataRoot = None,
    cache: Cache = None,
) -> None:
    """Write a contact sheet: one row per class, one section per part of a protocol.

    Example: gpldla data show cub -o cub.png
    """
    from gpldla.data import list_protocols, load_protocol, load_set
    from gpldla.data.catalog import find_set, is_set_only
    from gpldla.data.contact_sheet import Section, contact_sheet

    set_only = is_set_only(name)
    if output is None:
        output = Path(f"{name if set_only or name in list_protocols() else find_set(name).store_name}.png")
    if output.suffix.lower() != ".png":
        raise UserError(f"{output} must end in .png.")
    access = data_access(data_root, cache)
    if set_only:
        image_set = load_set(name, access=access)
        sections = [Section("", image_set, range(len(image_set.counts)))]
    else:
        parts = load_protocol(name, access=access).parts
        sections = [Section(title, part.image_set, part.classes) for title, part in parts.items()]
    sheet = contact_sheet(name, sections, classes=classes, samples=samples, seed=seed)
    try:
        sheet.save(output)
    except OSError as error:
        raise UserError(f"{output} cannot be written ({error}).") from None
    typer.echo(f"Wrote {output}.")
