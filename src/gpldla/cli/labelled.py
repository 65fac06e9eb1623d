"""The labelled pictures and texts that `gpldla fit` and `gpldla add` read."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpldla.cli.items import readable_indices, report_ignored_files
from gpldla.cli.options import messages
from gpldla.cli.table_options import TableOptions, table_items
from gpldla.utils.errors import UserError
from gpldla.utils.progress import say

if TYPE_CHECKING:
    from gpldla.classifier.model import FewShotModel
    from gpldla.data.tables import Table


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


def labelled_items(source: Path, options: TableOptions) -> Labelled:
    """Return what `gpldla fit` is given: a folder of class folders, or columns of a table."""
    from gpldla.data.tables import is_table

    column = None
    names_columns = options.item is not None or options.label is not None
    if names_columns and source.is_dir():
        raise UserError(f"{source} is a folder; leave out --text, --picture and --label.")
    if names_columns or (is_table(source) and not source.is_dir()):
        table = options.open(source)
        kind = _kind_of(table, options)
        item, column = options.item_column(table, kind), options.label_column(table)
        table = options.filled(table, item, column)
        items = table_items(table, item, kind, skip_bad=options.skip_bad)
        labelled = Labelled(kind, items, table.filled(column))
    elif source.is_file():
        raise UserError(f"{source} is a file; give a folder of class folders, or a table such as .csv.")
    else:
        labelled = _from_folder(source)
    warn_of_labels(labelled.labels, column)
    return labelled


def _kind_of(table: "Table", options: TableOptions) -> str:
    """Return whether a table holds texts or pictures, by the columns that are named or the usual ones."""
    from gpldla.data.source_files import is_image

    if options.item is not None:
        return "texts" if options.text is not None else "pictures"
    found = next((name for name in ("text", "picture", "item") if name in table.columns), None)
    if found is None:
        listed = ", ".join(table.columns)
        raise UserError(f"Name a column of {table.name} with --text or --picture; its columns are {listed}.")
    is_path = found == "item" and len(table) > 0 and is_image(table.column(found)[0])
    return "pictures" if is_path or found == "picture" else "texts"


def _from_folder(folder: Path) -> Labelled:
    from gpldla.data.user_files import loose_pictures, read_class_folders, split_folders, without_wrapping

    folder, given = without_wrapping(folder), folder
    if folder != given:
        say(messages, f"{given} holds only {folder}, which is used.")
    parts = split_folders(folder)
    if parts is None:
        labelled = Labelled("pictures", *read_class_folders(folder))
        if loose := loose_pictures(folder):
            say(messages, f"{len(loose)} pictures lie in {folder} itself, in no class folder: left out.")
    else:
        train, *others = parts
        tested = f"{' and '.join(others)} {'tests' if len(others) == 1 else 'test'} it"
        say(messages, f"{folder} holds {', '.join(parts)}: {train} fits the classifier, and {tested}.")
        tests = {name: read_class_folders(parts[name], at_least=1) for name in others}
        labelled = Labelled("pictures", *read_class_folders(parts[train]), tests)
    report_ignored_files(folder)
    return labelled


def warn_of_labels(labels: Sequence[str], column: str | None, known: Sequence[str] = ()) -> None:
    """Say on stderr what is odd about labels; known: classes of the classifier that they are added to."""
    from gpldla.data.label_checks import label_warnings

    for sentence in label_warnings(labels, column, known):
        say(messages, f"Warning: {sentence}")
