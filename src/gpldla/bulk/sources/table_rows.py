"""The rows of tables that are no Parquet files, such as CSV, as a source."""

import hashlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from gpldla.bulk.sources.base import CONTENT, ITEM, Accepted, Kind, Source, Survey, Unit, printable
from gpldla.utils.errors import UserError

if TYPE_CHECKING:
    from gpldla.data import Access
    from gpldla.data.tables import Table

LINES = ".txt"  # files of one item per line


@dataclass(frozen=True)
class TableRows(Source):
    """One column of tables, which are read whole.

    base:    the folder that relative paths start from
    reading: encoding and delimiter, None: found out
    names:   the name in the output of every other column
    """

    files: list[str]
    base: str
    column: str
    kind: Kind
    reading: tuple[str | None, str | None]
    names: dict[str, str]

    def _table(self, file: str) -> "Table":
        return _opened(str(Path(self.base) / file), file, self.reading)

    def survey(self, chunk_size: int) -> Survey:
        """Cut each file; a unit is a file, as CSV cannot be read from its middle."""
        digest = hashlib.sha256(f"{self.column} {self.reading}".encode())
        units: list[Unit] = []
        index = 0
        for file in self.files:
            rows = len(self._table(file))
            with (Path(self.base) / file).open("rb") as opened:
                content = hashlib.file_digest(opened, "sha256").hexdigest()
            digest.update(f"{printable(file)}\0{content}\n".encode())
            sizes = [min(chunk_size, rows - start) for start in range(0, rows, chunk_size)]
            if sizes:
                units.append(Unit(index, sizes, [file]))
            index += len(sizes)
        if not units:
            raise UserError(f"{self.files[0]} holds no rows below its header.")
        return Survey(units, digest.hexdigest())

    def read(self, unit: Unit) -> Iterator[tuple[int, pa.Table]]:
        """Yield the rows of a file; an empty cell of the column has no content."""
        [file] = unit.where
        table = self._table(file)
        column = [cell.strip() for cell in table.column(self.column)]
        contents: list[str | bytes | None] = [cell or None for cell in column]
        kind = pa.string()
        if self.kind == "pictures":
            contents, kind = [self._path(cell, file) if cell else None for cell in column], pa.binary()
        others = {new: list(map(printable, table.column(old))) for old, new in self.names.items()}
        name, start = printable(file), 0
        for index, size in unit.chunks:
            rows = slice(start, start + size)
            columns = {
                ITEM: pa.array([f"{name}#{i}" for i in range(start, start + size)], pa.string()),
                CONTENT: pa.array(contents[rows], kind),
            }
            columns |= {new: pa.array(cells[rows], pa.string()) for new, cells in others.items()}
            yield index, pa.table(columns)
            start += size

    def _path(self, cell: str, file: str) -> bytes:
        """Return the path of a picture, which is relative to the current folder, else to its table."""
        from gpldla.data.pictures import local_file

        path = Path(local_file(cell))
        here, beside = Path(self.base) / path, (Path(self.base) / file).parent / path
        return os.fsencode(here if here.is_file() else beside)

    def picture(self, content: bytes) -> Path:
        """Return the path of a picture."""
        return Path(os.fsdecode(content))


def table_source(
    files: Sequence[str],
    base: str,
    column: str | None,
    accepted: Accepted,
    reading: tuple[str | None, str | None],
    reserved: Sequence[str],
    access: "Access",
) -> TableRows:
    """Return the source of a column of tables or lines, by default of the usual or only one."""
    from gpldla.data.tables import passthrough_names

    tables = [_opened(str(Path(base) / file), file, reading) for file in files]
    for table in tables:
        for note in table.notes:
            access.report.say(note)
        if table.columns.keys() != tables[0].columns.keys():
            raise UserError(
                f"{tables[0].name} and {table.name} have different columns; score them separately."
            )
    names, reads = [*tables[0].columns], accepted.reads
    usual = [name for name in ("item", reads[:-1], *(names if len(names) == 1 else ())) if name in names]
    if column is None and not usual:
        raise UserError(
            f"Name a column of {files[0]} with --{reads[:-1]}; its columns are {', '.join(names)}."
        )
    column = column or usual[0]
    tables[0].column(column)
    others = passthrough_names([name for name in names if name != column], [*reserved, ITEM, CONTENT])
    kind: Kind = "texts" if reads == "texts" else "pictures"
    return TableRows(list(files), base, column, kind, reading, others)


@lru_cache(maxsize=4)
def _opened(path: str, name: str, reading: tuple[str | None, str | None]) -> "Table":
    """Read a table once per process; name: what it is called in messages."""
    from dataclasses import replace

    from gpldla.data.tables import open_lines, open_table

    encoding, delimiter = reading
    if Path(path).suffix.lower() == LINES:
        table = open_lines(Path(path), encoding)
    else:
        table = open_table(Path(path), encoding=encoding, delimiter=delimiter)
    return replace(table, name=name)
