"""How commands are told about tables: which columns are read, and in which encoding."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gpldla.cli.options import messages
from gpldla.utils.errors import UserError
from gpldla.utils.progress import say

if TYPE_CHECKING:
    from gpldla.data.tables import Table

Text = Annotated[str | None, typer.Option(help="Column of the texts in a table; default: text or item.")]
Picture = Annotated[
    str | None,
    typer.Option(help="Column of the paths of pictures in a table; default: picture or item."),
]
Label = Annotated[str | None, typer.Option(help="Column of the labels in a table; default: label.")]
Encoding = Annotated[
    str | None,
    typer.Option(help="Encoding of a CSV or text file; default: UTF-8, else windows-1252, and it is said."),
]
Delimiter = Annotated[
    str | None, typer.Option(help="Character between the cells of CSV; default: found out.")
]


@dataclass(frozen=True)
class TableOptions:
    """Which columns of a table are read, and how; None: found out.

    skip_bad: leave rows out whose text, picture or label is missing, and say so, instead of an error
    """

    text: str | None = None
    picture: str | None = None
    label: str | None = None
    encoding: str | None = None
    delimiter: str | None = None
    skip_bad: bool = False

    def __post_init__(self) -> None:
        if self.text is not None and self.picture is not None:
            raise UserError("Choose one of --text and --picture.")

    @property
    def item(self) -> str | None:
        """The column of the texts or pictures, if it is named."""
        return self.text if self.text is not None else self.picture

    def for_classifier_of(self, reads: str) -> None:
        """Refuse the column of other things than a classifier reads."""
        if (self.picture if reads == "texts" else self.text) is not None:
            other = "--picture" if reads == "texts" else "--text"
            raise UserError(f"The classifier is one of {reads}; leave out {other}.")

    def open(self, source: Path) -> "Table":
        """Read a table, and say on stderr what was guessed about it."""
        from gpldla.data.tables import open_table

        wanted = [name for name in (self.item, self.label) if name is not None]
        return _with_notes(open_table(source, wanted, encoding=self.encoding, delimiter=self.delimiter))

    def open_lines(self, source: Path) -> "Table":
        """Read a file of one item per line."""
        from gpldla.data.tables import open_lines

        return _with_notes(open_lines(source, self.encoding))

    def item_column(self, table: "Table", reads: str) -> str:
        """Return the column of texts or pictures: the named one, the usual ones, or the only one."""
        only = [*table.columns] if len(table.columns) == 1 else []
        return _column(table, self.item, ("item", reads[:-1], *only), f"--{reads[:-1]}")

    def label_column(self, table: "Table") -> str:
        """Return the column of labels: the named one, or the usual one."""
        return _column(table, self.label, ("label",), "--label")

    def filled(self, table: "Table", *columns: str) -> "Table":
        """Return a table without the rows in which these columns are empty, if these are to be skipped."""
        if not self.skip_bad:
            return table
        kept, problems = table.without_empty(*columns)
        for sentence in problems:
            say(messages, f"Left out: {sentence}")
        if not len(kept) and len(table):
            raise UserError(f"No row of {table.name} has all of {', '.join(columns)}; fill them in.")
        return kept


def _with_notes(table: "Table") -> "Table":
    for note in table.notes:
        say(messages, note)
    return table


def _column(table: "Table", named: str | None, usual: Sequence[str], option: str) -> str:
    if named is not None:
        return named
    found = next((name for name in usual if name in table.columns), None)
    if found is None:
        raise UserError(
            f"Name a column of {table.name} with {option}; its columns are {', '.join(table.columns)}."
        )
    return found


def table_items(table: "Table", column: str, reads: str, *, skip_bad: bool = False) -> list[Any]:
    """Return the texts of a table, or the pictures whose paths it holds.

    skip_bad: also return pictures that do not exist, which `readable_indices` then leaves out
    """
    from gpldla.data.pictures import local_file

    cells = table.filled(column)
    if reads == "texts":
        return list(cells)
    beside = Path(table.name).parent
    pictures: list[Any] = []
    for cell, place in zip(cells, table.places):
        given = Path(local_file(cell))
        found = next((path for path in (given, beside / given) if path.is_file()), None)
        if found is None and not skip_bad:
            raise UserError(f"{table.name}, {place}: there is no picture {cell}, here or beside the table.")
        pictures.append(found or given)
    return pictures
