"""The application: its commands, its global options, and what every error becomes."""

import sys
from typing import Annotated, Any

import typer

from gpldla import __version__
from gpldla.cli.bench import bench_app
from gpldla.cli.cache import cache_app
from gpldla.cli.correct import add, relabel, remove
from gpldla.cli.data import data_app
from gpldla.cli.demo import demo
from gpldla.cli.export import export
from gpldla.cli.fit import fit
from gpldla.cli.info import info
from gpldla.cli.predict import predict
from gpldla.cli.serve import serve
from gpldla.cli.suggest import suggest
from gpldla.cli.tables import list_models, show_tables
from gpldla.cli.training import evaluate, train
from gpldla.utils.errors import RunError, UserError
from gpldla.utils.process import prepare_process
from gpldla.utils.visible import visible

app = typer.Typer(
    help="Few-shot classification with calibrated probabilities, in closed form.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for name, command, short_help in (
    ("demo", demo, "Train and test a small model, and write a report."),
    ("fit", fit, "Fit a classifier to a few labelled pictures or texts."),
    ("predict", predict, "Classify new pictures or texts."),
    ("add", add, "Add labelled examples to a classifier."),
    ("relabel", relabel, "Correct the label of an example."),
    ("remove", remove, "Remove examples from a classifier."),
    ("info", info, "Say what a classifier's file holds."),
    ("suggest", suggest, "Rank unlabelled items by what their labels would teach."),
    ("export", export, "Write a classifier as ONNX."),
    ("serve", serve, "Serve an HTTP API on which classifiers are taught."),
    ("train", train, "Meta-train a model by a recipe."),
    ("eval", evaluate, "Measure a model on novel classes."),
    ("models", list_models, "List the shipped models."),
    ("tables", show_tables, "Print the paper's tables beside our results."),
):
    app.command(name, short_help=short_help)(command)
app.add_typer(data_app, name="data")
app.add_typer(cache_app, name="cache", short_help="Show the size of the cache, and clear it.")
app.add_typer(bench_app, name="bench", short_help="Measure speed.")

# Wrong usage, such as an unknown option: click's ClickException, which newer versions of typer keep inside.
CliUsageError: Any = next(kind for kind in typer.BadParameter.__mro__ if kind.__name__ == "ClickException")


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"gpldla {__version__}")
        raise typer.Exit


@app.callback()
def _global_options(
    plugins: Annotated[
        list[str] | None,
        typer.Option(
            "--import",
            metavar="MODULE",
            help="Import a Python module that registers heads, backbones or data sets; may be repeated."
            " Example: gpldla --import my_backbones fit photos/ --model my-backbone -o birds.safetensors",
        ),
    ] = None,
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    if plugins:
        from gpldla.utils.plugins import import_plugin

        for name in plugins:
            import_plugin(name)


def main() -> None:
    """Run the command line; wrong input ends with exit code 2 and one sentence."""
    prepare_process()
    # File names need not be valid Unicode, and not every terminal can show every character.
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    try:
        code = app(standalone_mode=False)
    except UserError as error:
        print(visible(f"gpldla: {error}"), file=sys.stderr)
        code = 2
    except RunError as error:
        print(visible(f"gpldla: {error}"), file=sys.stderr)
        code = 1
    except CliUsageError as error:
        message = error.format_message()
        if "\n" not in message:  # else no command was given, and the message is the help itself
            message = f"gpldla: {message}{'' if message[-1:] in '.?' else '.'} See gpldla --help."
        print(visible(message), file=sys.stderr)
        code = 2
    except OSError as error:  # a full disk or a removed folder: a traceback would explain nothing
        print(visible(f"gpldla: {error}; check that the path exists and can be written to."), file=sys.stderr)
        code = 2
    except (typer.Abort, KeyboardInterrupt):
        code = 130
    sys.exit(code if isinstance(code, int) else 0)
