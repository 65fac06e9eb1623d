"""The command `gpldla`: thin, one function a command; the work is done elsewhere."""

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from gpldla import __version__
from gpldla.cli import bench as cli_bench
from gpldla.cli import own_data as cli_own_data
from gpldla.utils.errors import RunError, UserError
from gpldla.utils.process import prepare_process
from gpldla.utils.progress import say

if TYPE_CHECKING:
    from gpldla.classifier.model import FewShotModel
    from gpldla.data import Access, DataPaths, ImageSet

# Modules that load torch are imported inside the commands, so that --help answers at once.

app = typer.Typer(
    help="Few-shot classification with calibrated probabilities, in closed form.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
    rich_markup_mode=None,
)
data_app = typer.Typer(
    help="Data sets: what there is, packing it, and what it looks like.", no_args_is_help=True
)
app.add_typer(data_app, name="data")
app.add_typer(cli_bench.bench_app, name="bench")

for command in (cli_own_data.fit, cli_own_data.predict, cli_own_data.export):
    app.command()(command)

# Wrong usage, such as an unknown option: click's ClickException, which newer versions of typer keep inside.
CliUsageError: Any = next(kind for kind in typer.BadParameter.__mro__ if kind.__name__ == "ClickException")
FAULTS_SHOWN = 5  # of each data set in `data list`

messages = Console(stderr=True)
DataRoot = Annotated[
    Path | None,
    typer.Option(
        "--data-root", help="Folder with the data sets, only read; default: GPLDLA_DATA, then the platform's."
    ),
]
Cache = Annotated[
    Path | None, typer.Option(help="Folder for packed data; default: GPLDLA_CACHE, then the platform's.")
]
Device = Annotated[str, typer.Option(help="auto, cpu or cuda.")]


def _data_paths(data_root: Path | None, cache: Path | None) -> "DataPaths":
    from gpldla.data.paths import DataPaths

    if data_root is not None and not data_root.is_dir():
        raise UserError(f"There is no folder {data_root}; name the folder that holds the data sets.")
    return DataPaths(data_root, cache)


def _access(data_root: Path | None, cache: Path | None, *, skip_bad: bool = False) -> "Access":
    from gpldla.data import Access
    from gpldla.utils.progress import Reporter

    return Access(_data_paths(data_root, cache), Reporter(messages), skip_bad)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"gpldla {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    pass


@app.command()
def demo(
    output: Annotated[
        Path, typer.Option("--output", "-o", help="Folder for the model and the report.")
    ] = Path("demo"),
    fast: Annotated[bool, typer.Option("--fast", help="A much shorter training, for a first look.")] = False,
    compare: Annotated[
        bool, typer.Option("--compare", help="Train every method on the same images and compare them.")
    ] = False,
    seed: Annotated[int, typer.Option(help="Seed of training and test episodes.")] = 0,
    cache: Cache = None,
) -> None:
    """Meta-train on printed letters, test on scripts never seen and on handwriting, write a report.

    Needs no data and no GPU.

    Example: gpldla demo -o demo

    All methods side by side, in a quarter of an hour: gpldla demo --compare
    """
    if compare:
        from gpldla.reports.compare import run_comparison

        run_comparison(output, fast=fast, seed=seed, data_paths=_data_paths(None, cache), console=Console())
        return
    from gpldla.reports.demo import run_demo

    run_demo(output, fast=fast, seed=seed, data_paths=_data_paths(None, cache), console=Console())


@app.command()
def train(
    recipe: Annotated[str, typer.Argument(help="Name of a shipped recipe, or a TOML file.")],
    output: Annotated[
        Path, typer.Option("--output", "-o", help="Folder for the model; an unfinished run goes on.")
    ],
    method: Annotated[
        str | None, typer.Option(help="Train this method instead of the recipe's own; see docs/methods.")
    ] = None,
    episodes: Annotated[int | None, typer.Option(help="Override the recipe's number of episodes.")] = None,
    seed: Annotated[int | None, typer.Option(help="Override the recipe's seed.")] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Override any setting of the recipe."),
    ] = None,
    device: Device = "auto",
    devices: Annotated[
        int, typer.Option(min=1, help="Processes on each node, one a GPU or a share of the CPU's cores.")
    ] = 1,
    nodes: Annotated[int, typer.Option(min=1, help="Machines that train together.")] = 1,
    data_root: DataRoot = None,
    cache: Cache = None,
) -> None:
    """Meta-train a model by a recipe; the same command goes on after an interruption.

    Example: gpldla train glyphs -o runs/glyphs --set shots=5 --episodes 1000

    Another method on the same data: gpldla train glyphs --method protonet -o runs/protonet

    Several GPUs: gpldla train cub -o runs/cub --devices 4
    """
    from gpldla.training.recipe import parse_override, read_recipe
    from gpldla.training.run import train as run_training
    from gpldla.utils.devices import torch_device

    overrides: dict[str, Any] = dict(parse_override(text) for text in settings or [])
    overrides |= {k: v for k, v in (("episodes", episodes), ("seed", seed)) if v is not None}
    result = run_training(
        read_recipe(recipe, overrides, method=method),
        output,
        accelerator=torch_device(device),
        devices=devices,
        nodes=nodes,
        data_paths=_data_paths(data_root, cache),
        console=messages,
    )
    if not result.is_first_process:
        return  # the first one talks
    if not result.finished:
        raise typer.Exit(130)
    accuracy = result.model.info["validation_accuracy"]
    say(messages, f"Validation accuracy {accuracy:.2f} %. The model is in {output}.")


@app.command("eval")
def evaluate(
    model: Annotated[Path, typer.Argument(help="Folder of a trained model, or the name of a shipped one.")],
    dataset: Annotated[str | None, typer.Option(help="Default: what the model was trained on.")] = None,
    shots: Annotated[
        int | None, typer.Option(help="Examples a class; default: what the model was chosen for.")
    ] = None,
    ways: Annotated[int, typer.Option(help="Classes a task.")] = 5,
    queries: Annotated[int, typer.Option(help="Test images a class.")] = 15,
    episodes: Annotated[int, typer.Option(help="Episodes a repeat.")] = 600,
    repeats: Annotated[int, typer.Option(help="Repeats with seeds SEED, SEED + 1, ...")] = 5,
    seed: Annotated[int, typer.Option(help="The first seed.")] = 0,
    separate_groups: Annotated[
        bool,
        typer.Option("--separate-groups", help="Support and query from different groups (font families)."),
    ] = False,
    predictive: Annotated[
        str | None, typer.Option(help="How probabilities are computed, e.g. mc for the paper's Monte Carlo.")
    ] = None,
    samples: Annotated[int | None, typer.Option(help="Monte Carlo samples.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the numbers as JSON.")] = False,
    device: Device = "auto",
    data_root: DataRoot = None,
    cache: Cache = None,
) -> None:
    """Measure a model on novel classes: accuracy with 95 % interval, NLL and ECE.

    Example: gpldla eval runs/glyphs --dataset glyphs-digits --shots 5

    A shipped model, see `gpldla models`: gpldla eval cub-conv4-5shot
    """
    from gpldla.classifier.model import FewShotModel
    from gpldla.data import load_protocol
    from gpldla.evaluation import ProtocolEvaluator, Task
    from gpldla.reports.terminal import evaluation_table
    from gpldla.utils.devices import torch_device

    for name, value in (("--episodes", episodes), ("--repeats", repeats)):
        if value < 1:
            raise UserError(f"{name} must be at least 1, not {value}.")
    if episodes * repeats < 2:
        raise UserError("One task has no interval; ask for at least two with --episodes or --repeats.")
    if not -(2**63) <= seed < 2**63 - repeats:
        raise UserError(f"--seed must be a number of 64 bits, not {seed}.")
    loaded = FewShotModel.from_pretrained(model)
    loaded.set_head_options({"predictive": predictive, "n_samples": samples})
    loaded.to(torch_device(device))
    recipe = _recipe_of(loaded, model)
    dataset = dataset or recipe.get("dataset")
    if dataset is None:
        raise UserError(f"{model} does not say what it was trained on; name a data set with --dataset.")
    protocol = load_protocol(
        dataset,
        size=loaded.preprocessing.size,
        side=recipe.get("stored_side") or None,  # as in training, so that the same store serves
        parts=("validation", "novel"),
        access=_access(data_root, cache),
    )
    if shots is None:  # as validation had them, which need not be as training had them
        shots = recipe.get("validation.shots") or recipe.get("shots", 1)
    task = Task(ways, shots, queries, separate_groups)
    result = ProtocolEvaluator(loaded, protocol).evaluate(task, episodes=episodes, repeats=repeats, seed=seed)
    numbers = {"model": str(model), "predictive": predictive or "default", **result.numbers}
    if as_json:
        typer.echo(json.dumps(numbers, indent=2))
    else:
        Console().print(evaluation_table(numbers))


def _recipe_of(model: "FewShotModel", name: Path) -> dict[str, Any]:
    """Return the settings that a model says it was trained with, if any; files may say anything."""
    from gpldla.training.recipe import stored_settings

    stored = model.info.get("recipe", {}) if isinstance(model.info, dict) else None
    recipe = stored_settings(stored) if isinstance(stored, dict) else None
    kinds = {"dataset": str, "stored_side": int, "validation.shots": int, "shots": int}
    if recipe is None or any(not isinstance(recipe.get(key, kind()), kind) for key, kind in kinds.items()):
        raise UserError(f"{name} has a recipe that is none in its config.json; train the model anew.")
    return recipe


@app.command("models")
def list_models(
    as_json: Annotated[bool, typer.Option("--json", help="Print as JSON.")] = False,
) -> None:
    """List the trained models that come with gpldla, and what was measured of each on novel classes.

    Every command that takes the folder of a model takes one of these names, too.

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
    say(console, f"What each is for, and how it was made: {MODELS / 'NAME' / CARD}")


@app.command("tables")
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
    as_json: Annotated[bool, typer.Option("--json", help="Print everything as JSON.")] = False,
) -> None:
    """Print the paper's tables with our numbers beside them; nothing is run.

    Example: gpldla tables cub

    The page of all results: gpldla tables --markdown docs/results.md
    """
    from gpldla.reports import paper_tables as tables

    if markdown is not None:
        from gpldla.reports.paper_tables.page import write_page

        if name is not None or as_json:
            raise UserError("--markdown writes all tables; leave out the name of one, and --json.")
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


@data_app.command("list")
def list_data(
    as_json: Annotated[bool, typer.Option("--json", help="Print as JSON.")] = False,
    data_root: DataRoot = None,
    cache: Cache = None,
) -> None:
    """List the data sets: what is there, what is missing, where to get it and where to put it.

    Example: gpldla data list --data-root ~/data
    """
    from gpldla.data.inventory import data_inventory
    from gpldla.reports.terminal import inventory_tables

    stock = data_inventory(_access(data_root, cache))
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


@data_app.command("prepare")
def prepare_data(
    name: Annotated[str, typer.Argument(help="A data set, a protocol, or folder:PATH.")],
    backbone: Annotated[
        str | None, typer.Option(help="Whose input size to prepare for; default: the usual one's.")
    ] = None,
    side: Annotated[
        int | None, typer.Option(min=8, max=4096, help="Pixels of stored images; default: what suits it.")
    ] = None,
    skip_bad: Annotated[
        bool, typer.Option("--skip-bad", help="List what cannot be read and leave it out.")
    ] = False,
    data_root: DataRoot = None,
    cache: Cache = None,
) -> None:
    """Decode a data set once into a packed store in the cache folder, if it is not there yet.

    Example: gpldla data prepare cub --backbone resnet18
    """
    from gpldla.backbones import backbone_preprocessing
    from gpldla.data import load_protocol, load_set
    from gpldla.data.catalog import is_set_only

    size = None if backbone is None else backbone_preprocessing(backbone).size
    access = _access(data_root, cache, skip_bad=skip_bad)
    if is_set_only(name):
        image_set = load_set(name, size=size, side=side, access=access)
        typer.echo(f"{name}: {_classes(len(image_set.counts))}, {_images(image_set)}")
        return
    for part_name, part in load_protocol(name, size=size, side=side, access=access).parts.items():
        typer.echo(
            f"{name} {part_name}: {_classes(len(part.classes))}, {len(part.indices):,} of the"
            f" {_images(part.image_set)} in {part.image_set.name}"
        )


def _classes(count: int) -> str:
    return "1 class" if count == 1 else f"{count:,} classes"


def _images(image_set: "ImageSet") -> str:
    n, _, height, width = image_set.images.shape
    return f"{n:,} images of {height} × {width} pixels"


@data_app.command("show")
def show_data(
    name: Annotated[str, typer.Argument(help="A data set, a protocol, or folder:PATH.")],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="PNG file; default: NAME.png.")
    ] = None,
    classes: Annotated[int, typer.Option(min=1, help="Classes shown (of each part), one a row.")] = 12,
    samples: Annotated[int, typer.Option(min=1, max=100, help="Images a class.")] = 12,
    seed: Annotated[int, typer.Option(min=0, help="Which images.")] = 0,
    data_root: DataRoot = None,
    cache: Cache = None,
) -> None:
    """Write a contact sheet: classes down, samples across; of a protocol, part after part.

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
    access = _access(data_root, cache)
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


def main() -> None:
    """Run the command line; wrong input ends with exit code 2 and one sentence."""
    prepare_process()
    # The names of files need not be valid Unicode, and not every terminal knows all letters.
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    try:
        code = app(standalone_mode=False)
    except UserError as error:
        print(f"gpldla: {error}", file=sys.stderr)
        code = 2
    except RunError as error:
        print(f"gpldla: {error}", file=sys.stderr)
        code = 1
    except CliUsageError as error:
        message = error.format_message()
        if "\n" not in message:  # else no command was given, and it is the help itself
            message = f"gpldla: {message}{'' if message[-1:] in '.?' else '.'} See gpldla --help."
        print(message, file=sys.stderr)
        code = 2
    except OSError as error:  # a full disk, a folder that vanished: nothing a traceback would explain
        print(f"gpldla: {error}; check that the place exists and can be written to.", file=sys.stderr)
        code = 2
    except (typer.Abort, KeyboardInterrupt):
        code = 130
    sys.exit(code if isinstance(code, int) else 0)
