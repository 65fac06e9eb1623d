"""The labelled pictures and texts that `gpldla fit` and `gpldla add` read."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gpldla.cli.items import readable_indices, report_ignored_files
from gpldla.cli.options import messages
from gpldla.utils.errors import UserError
from gpldla.utils.progress import say

if TYPE_CHECKING:
    from gpldla.classifier.model import FewShotModel
    from gpldla.data.tables import Table

Text = Annotated[str | None, typer.Option(help="Column of the texts in a table.")]
Picture = Annotated[str | None, typer.Option(help="Column of the paths of pictures in a table.")]
Label = Annotated[str | None, typer.Option(help="Column of the labels in a table.")]
Encoding = Annotated[
    str | None,
    typer.Option(help="Encoding of a CSV file; default: UTF-8, else windows-1252, and it is said."),
]
Delimiter = Annotated[
    str | None, typer.Option(help="Character between the cells of CSV; default: found out.")
]


@dataclass(frozen=True)
class Labelled:
    """Pictures or texts with one label each.

    kind: "pictures" or "texts"
    parts: further pictures to measure the classifier on, by the name of their folder, such as "test"
    """

    kind: str
    items: list[Any]
    labels: list[str]
    parts: dict[str, tuple[list[Any], list[str]]] = field(default_factory=dict)

    def readable(self, model: "FewShotModel") -> "Labelled":
        """Return these without the pictures that cannot be read, which are listed on stderr."""
        if self.kind == "texts":
            return self
        kept = readable_indices(self.items, model.preprocessing)
        emptied = set(self.labels) - {self.labels[i] for i in kept}
        if emptied:
            raise UserError(f"No picture of the class {min(emptied)} can be read; add some or remove it.")
        parts = {}
        for name, (items, labels) in self.parts.items():
            good = readable_indices(items, model.preprocessing)
            parts[name] = ([items[i] for i in good], [labels[i] for i in good])
        return Labelled(self.kind, [self.items[i] for i in kept], [self.labels[i] for i in kept], parts)


@dataclass(frozen=True)
class TableOptions:
    """Which columns of a table are read, and how; None: found out."""

    text: str | None = None
    picture: str | None = None
    label: str | None = None
    encoding: str | None = None
    delimiter: str | None = None

    def open(self, source: Path) -> "Table":
        """Read a table, and say on stderr what was guessed about it."""
        from gpldla.data.tables import open_table

        wanted = [name for name in (self.text or self.picture, self.label) if name is not None]
        table = open_table(source, wanted, encoding=self.encoding, delimiter=self.delimiter)
        for note in table.notes:
            say(messages, note)
        return table


def labelled_items(source: Path, options: TableOptions) -> Labelled:
    """Return what `gpldla fit` is given: a folder of class folders or the named columns of a table."""
    column = options.text or options.picture
    if (column is None) != (options.label is None):
        raise UserError("A table needs both --text (or --picture) COLUMN and --label COLUMN.")
    if options.text is not None and options.picture is not None:
        raise UserError("Choose one of --text and --picture.")
    if column is not None and options.label is not None:
        table = options.open(source)
        labels = table.filled(options.label)
        items, kind = table_items(table, column, texts=options.text is not None)
        labelled = Labelled(kind, items, labels)
    elif source.is_file() or str(source) == "-":
        raise UserError(
            f"{source} is a file; name its columns with --text (or --picture) and --label, or give a folder."
        )
    else:
        labelled = _from_folder(source)
    warn_of_labels(labelled.labels, options.label)
    return labelled


def table_items(table: "Table", column: str, *, texts: bool) -> tuple[list[Any], str]:
    """Return the texts of a table, or the pictures whose paths it holds, and which of both they are."""
    cells = table.filled(column)
    if texts:
        return list(cells), "texts"
    beside = Path(table.name).parent
    pictures = []
    for cell, place in zip(cells, table.places):
        found = next((path for path in (Path(cell), beside / cell) if path.is_file()), None)
        if found is None:
            raise UserError(f"{table.name}, {place}: there is no picture {cell}, here or beside the table.")
        pictures.append(found)
    return pictures, "pictures"


def _from_folder(folder: Path) -> Labelled:
    from gpldla.data.user_files import loose_pictures, read_class_folders, split_folders

    parts = split_folders(folder)
    if parts is None:
        labelled = Labelled("pictures", *read_class_folders(folder))
        if loose := loose_pictures(folder):
            say(messages, f"{len(loose)} pictures lie in {folder} itself, in no class folder: left out.")
    else:
        train, *others = parts
        held_out = f", and {' and '.join(others)} tests it" if others else ""
        say(messages, f"{folder} holds {' and '.join(parts)}: {train} fits the classifier{held_out}.")
        tests = {name: read_class_folders(parts[name], at_least=1) for name in others}
        labelled = Labelled("pictures", *read_class_folders(parts[train]), tests)
    report_ignored_files(folder)
    return labelled


def warn_of_labels(labels: Sequence[str], column: str | None, known: Sequence[str] = ()) -> None:
    """Say on stderr what is odd about labels; known: classes of the classifier that they are added to."""
    from gpldla.data.label_checks import label_warnings

    for sentence in label_warnings(labels, column, known):
        say(messages, f"Warning: {sentence}")


def default_columns(options: TableOptions, reads: str, table: "Table") -> tuple[str, str]:
    """Return the columns of items and labels: those named, else those that `gpldla suggest --csv` writes."""
    item = options.text or options.picture or _first(("item", reads[:-1]), table.columns.__contains__)
    label = options.label or _first(("label",), table.columns.__contains__)
    for column, option in ((item, f"--{reads[:-1]}"), (label, "--label")):
        if column is None:
            listed = ", ".join(table.columns)
            raise UserError(f"Name a column of {table.name} with {option}; its columns are {listed}.")
    assert item is not None
    assert label is not None
    return item, label


def _first(names: Sequence[str], condition: Callable[[str], bool]) -> str | None:
    return next((name for name in names if condition(name)), None)
