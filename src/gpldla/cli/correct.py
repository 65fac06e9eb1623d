"""The commands that correct a classifier: `gpldla add`, `gpldla relabel` and `gpldla remove`."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gpldla.cli.items import feature_cache, readable_indices, report_ignored_files
from gpldla.cli.labelled import warn_of_labels
from gpldla.cli.options import DEFAULT_DEVICE, Cache, Device, SkipBad, load_classifier, messages
from gpldla.cli.table_options import (
    Delimiter,
    Encoding,
    Label,
    Picture,
    TableOptions,
    Text,
    table_items,
)
from gpldla.utils.errors import UserError, did_you_mean
from gpldla.utils.progress import Reporter, say

if TYPE_CHECKING:
    from gpldla.classifier.few_shot import FewShotClassifier

File = Annotated[Path, typer.Argument(help="A file written by `gpldla fit`.")]
New = Annotated[
    Path | None,
    typer.Option("--output", "-o", help="Write the new classifier here; default: FILE is replaced."),
]
ITEM_HELP = "An example by its name, the end of its path, or #N with its number in `gpldla info --items`."


def add(
    file: File,
    source: Annotated[
        Path,
        typer.Argument(help="A folder with one folder per class, or a table; - for standard input."),
    ],
    output: New = None,
    text: Text = None,
    picture: Picture = None,
    label: Label = None,
    encoding: Encoding = None,
    delimiter: Delimiter = None,
    skip_bad: SkipBad = False,
    device: Device = DEFAULT_DEVICE,
    cache: Cache = None,
) -> None:
    """Add labelled examples of known or new classes; the result is that of one fit to all of them.

    Example: gpldla add birds.safetensors more-photos/

    A table whose column label was filled in: gpldla suggest birds.safetensors album/ --csv > next.csv,
    then gpldla add birds.safetensors next.csv
    """
    from gpldla.classifier.answer import json_class_names

    def added(classifier: "FewShotClassifier") -> "FewShotClassifier":
        options = TableOptions(text, picture, label, encoding, delimiter, skip_bad)
        items, labels = _new_examples(source, classifier, options)
        model = classifier.model
        if skip_bad and model.backbone.reads == "pictures":
            kept = readable_indices(items, model.preprocessing)
            items, labels = [items[i] for i in kept], [labels[i] for i in kept]
        known = classifier.classes.tolist()
        warn_of_labels(labels, options.label, [str(name) for name in known])
        values = [class_of(name, classifier) for name in labels]
        reporter = Reporter(messages)
        rows = model.embed(items, cache=feature_cache(model, cache), reporter=reporter)
        new = classifier.without_known(items, rows, values)
        if len(new) < len(items):
            say(messages, f"{len(items) - len(new)} of the {len(items)} examples are in {file} already.")
        if not new:
            return classifier
        result = classifier.add_rows(rows[new], [values[i] for i in new], [items[i] for i in new])
        json_class_names(result.classes)
        classes = [str(name) for name in result.classes.tolist() if name not in known]
        say(messages, f"Added {len(new)} examples{_of_new_classes(classes)}.")
        return result

    _change(file, output, device, added)


def relabel(
    file: File,
    item: Annotated[str, typer.Argument(help=ITEM_HELP)],
    label: Annotated[str, typer.Argument(help="The right class.")],
    output: New = None,
    new_class: Annotated[
        bool, typer.Option("--new-class", help="The label is a class that FILE does not have yet.")
    ] = False,
    device: Device = DEFAULT_DEVICE,
) -> None:
    """Correct the label of an example; the result is that of a fit to the right labels.

    Example: gpldla relabel birds.safetensors photos/wren/7.jpg robin
    """

    def relabelled(classifier: "FewShotClassifier") -> "FewShotClassifier":
        known = [str(name) for name in classifier.classes.tolist()]
        if label not in known and not new_class:
            raise UserError(
                f"There is no class {label!r}{did_you_mean(label, known)} Add --new-class to make it one."
            )
        [index] = find_examples(classifier, [item])
        before = str(classifier.labels[index])
        say(messages, f"{_name(classifier, index)}: {before} → {label}.")
        return classifier.relabel([index], [class_of(label, classifier)])

    _change(file, output, device, relabelled)


def remove(
    file: File,
    items: Annotated[list[str], typer.Argument(help=ITEM_HELP)],
    output: New = None,
    device: Device = DEFAULT_DEVICE,
) -> None:
    """Remove examples; the result is that of a fit without them. A class without any left is removed.

    Example: gpldla remove birds.safetensors photos/wren/7.jpg photos/robin/blurred.jpg
    """

    def reduced(classifier: "FewShotClassifier") -> "FewShotClassifier":
        indices = sorted(set(find_examples(classifier, items)))
        for index in indices:
            say(messages, f"Removed {_name(classifier, index)} ({classifier.labels[index]}).")
        result = classifier.remove(indices)
        gone = [str(name) for name in classifier.classes.tolist() if name not in result.classes.tolist()]
        if gone:
            say(messages, f"No examples are left of {', '.join(gone)}: removed.")
        return result

    _change(file, output, device, reduced)


def _change(
    file: Path,
    output: Path | None,
    device: str,
    change: Callable[["FewShotClassifier"], "FewShotClassifier"],
) -> None:
    """Load a classifier, change it, write it, and say how well its examples are predicted by each other."""
    from gpldla.classifier.answers import summarise
    from gpldla.reports.terminal import leave_one_out_line
    from gpldla.utils.files import ReplacedFile, check_output

    target = output or file
    check_output(target)
    replaced = ReplacedFile(target)
    before = load_classifier(file, device)
    changed = change(before)
    if changed is before and output is None:
        say(messages, f"Nothing has changed in {file}.")
        return
    if changed.has_novelty:
        changed.calibrate_novelty()  # kept in the file, so that `predict` need not
    summary = summarise(changed, changed.item_names())
    with replaced.writing():
        changed.save(target, names=before.names is not None)  # a file without names stays so
    counts = f"{len(changed.labels)} examples of {len(changed.classes)} classes"
    say(messages, f"{leave_one_out_line(summary)} Wrote {target}: {counts}.")


def _new_examples(
    source: Path, classifier: "FewShotClassifier", options: TableOptions
) -> tuple[list[Any], list[str]]:
    """Return the items and labels to be added, of a folder or a table, as the classifier reads them."""
    from gpldla.data.tables import is_table
    from gpldla.data.user_files import read_class_folders

    reads = classifier.model.backbone.reads
    if source.is_dir() or not is_table(source):
        if reads == "texts":
            raise UserError(f"The classifier is one of texts; {source} is no table of them.")
        pictures, labels = read_class_folders(source, at_least=1)
        report_ignored_files(source)
        return list(pictures), labels
    options.for_classifier_of(reads)
    table = options.open(source)
    item, label = options.item_column(table, reads), options.label_column(table)
    filled = [bool(cell.strip()) for cell in table.column(label)]
    if not any(filled):
        raise UserError(f"The column {label!r} of {source} is empty; fill in the labels.")
    if not all(filled):
        say(messages, f"{len(filled) - sum(filled)} rows of {source} have no label: left out.")
        table = table.where(filled)
    table = options.filled(table, item)
    return table_items(table, item, reads, skip_bad=options.skip_bad), table.filled(label)


def find_examples(classifier: "FewShotClassifier", items: list[str]) -> list[int]:
    """Return the indices of examples by name, by the end of a path, or by "#" and a number."""
    names = classifier.names or ()
    which = [
        int(item[1:]) if item.startswith("#") and item[1:].isdigit() and item not in names else item
        for item in items
    ]
    return classifier.find(which)


def class_of(label: str, classifier: "FewShotClassifier") -> Any:
    """Return a class as the classifier has it: they may be numbers, if Python has made the file."""
    classes = classifier.classes.tolist()
    known = {str(name): name for name in classes}
    if label in known or all(isinstance(name, str) for name in classes):
        return known.get(label, label)
    try:
        return type(classes[0])(label)
    except ValueError:
        raise UserError(f"The classes are numbers, such as {classes[0]}, and {label!r} is none.") from None


def _name(classifier: "FewShotClassifier", index: int) -> str:
    return classifier.item_names()[index]


def _of_new_classes(classes: list[str]) -> str:
    if not classes:
        return ""
    return f", with the new {'class' if len(classes) == 1 else 'classes'} {', '.join(classes)}"
