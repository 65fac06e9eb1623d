"""The command `gpldla fit`."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gpldla.cli.items import feature_cache, readable_indices, report_ignored_files
from gpldla.cli.options import DEFAULT_DEVICE, AsJson, Cache, Device, SkipBad, messages, wide_console
from gpldla.utils.errors import UserError
from gpldla.utils.progress import Reporter, say

if TYPE_CHECKING:
    from gpldla.classifier.model import FewShotModel

SINGLE_EXAMPLES = (
    "How certain the answers are is estimated from single examples; a second example per class would measure"
    " it."
)
DEFAULT_MODELS = {"pictures": "efficientnet-lite0", "texts": "all-minilm-l6-v2"}


def fit(
    source: Annotated[
        Path, typer.Argument(help="A folder with one folder per class, or a CSV file of texts.")
    ],
    output: Annotated[Path, typer.Option("--output", "-o", help="File for the classifier.")],
    text: Annotated[str | None, typer.Option(help="Column of the texts in a CSV file.")] = None,
    label: Annotated[str | None, typer.Option(help="Column of the labels in a CSV file.")] = None,
    model: Annotated[
        str | None,
        typer.Option(
            help="A pretrained backbone, the folder of a trained model, or the name of a shipped one;"
            f" default: {DEFAULT_MODELS['pictures']} for pictures, {DEFAULT_MODELS['texts']} for texts."
        ),
    ] = None,
    support: Annotated[
        bool,
        typer.Option(
            "--support/--no-support", help="Keep the examples' features, so that more can be added."
        ),
    ] = True,
    skip_bad: SkipBad = False,
    as_json: AsJson = False,
    device: Device = DEFAULT_DEVICE,
    cache: Cache = None,
) -> None:
    """Fit a classifier to a few labelled pictures or texts, and report its leave-one-out accuracy.

    Example: gpldla fit photos/ -o birds.safetensors

    Texts: gpldla fit texts.csv --text question --label topic -o topics.safetensors
    """
    from gpldla.classifier.answers import json_class_names, summarise
    from gpldla.classifier.resolve import resolve_model
    from gpldla.reports.terminal import fit_tables, leave_one_out_line
    from gpldla.utils.devices import torch_device
    from gpldla.utils.files import check_output

    if output.is_dir():
        raise UserError(f"{output} is a folder; name a file, such as {output / 'classifier.safetensors'}.")
    check_output(output, source)
    items, labels = _labelled_items(source, text, label)
    kind = "pictures" if text is None else "texts"
    loaded = resolve_model(model or DEFAULT_MODELS[kind]).to(torch_device(device))
    if loaded.backbone.reads != kind:
        raise UserError(
            f"Backbone {loaded.backbone_name!r} reads {loaded.backbone.reads}, not {kind};"
            " choose another --model."
        )
    if skip_bad and kind == "pictures":
        items, labels = _readable_items(items, labels, loaded)
    classifier = loaded.adapt(items, labels, cache=feature_cache(loaded, cache), reporter=Reporter(messages))
    json_class_names(classifier.classes)  # refuse now what `predict` could not write
    summary = summarise(classifier, items)
    if classifier.has_novelty:
        classifier.calibrate_novelty()  # kept in the file, so that `predict` need not
    classifier.save(output, support=support)
    if as_json:
        typer.echo(json.dumps({"file": str(output), **summary.as_json()}, indent=2))
        return
    console = wide_console()
    for table in fit_tables(summary):
        console.print(table)
    say(console, leave_one_out_line(summary))
    if getattr(classifier.task.posterior, "from_single_examples", False):
        say(console, SINGLE_EXAMPLES)
    say(console, f"Wrote {output}. Next: gpldla predict {output} {'IMAGES' if text is None else 'TEXTS'}")


def _labelled_items(source: Path, text: str | None, label: str | None) -> tuple[list[Any], list[str]]:
    """Return the pictures of a folder or the texts of a table, and their labels."""
    from gpldla.data.user_files import read_class_folders, read_table

    if (text is None) != (label is None):
        raise UserError("Texts need both --text COLUMN and --label COLUMN.")
    if text is not None and label is not None:
        texts, labels = read_table(source, [text, label])
        return texts, labels
    if source.is_file():
        raise UserError(f"{source} is a file; name its columns with --text and --label, or give a folder.")
    pictures, labels = read_class_folders(source)
    report_ignored_files(source)
    return pictures, labels


def _readable_items(
    items: list[Any], labels: list[str], model: "FewShotModel"
) -> tuple[list[Any], list[str]]:
    kept = readable_indices(items, model)
    emptied = set(labels) - {labels[i] for i in kept}
    if emptied:
        raise UserError(f"No picture of the class {min(emptied)} can be read; add some or remove it.")
    return [items[i] for i in kept], [labels[i] for i in kept]
