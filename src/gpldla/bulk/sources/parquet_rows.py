"""One column of Parquet files as a source."""

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq

from gpldla.bulk.sources.base import CONTENT, ITEM, Kind, Source, Survey, Unit, printable
from gpldla.utils.errors import UserError
from gpldla.utils.parquet_sizes import refuse_bombs

if TYPE_CHECKING:
    pass

READ_BUFFER_BYTES = 1 << 20  # per column; without it a whole row group is read before its first row is given


@dataclass(frozen=True)
class ParquetRows(Source):
    """One column of Parquet files.

    base:  the folder that relative paths start from
    names: the name in the output of every other column
    """

    files: list[str]
    base: str
    column: str
    kind: Kind
    names: dict[str, str]

    def survey(self, chunk_size: int) -> Survey:
        """Cut each file; a unit is a run of row groups, as a part of a row group cannot be read alone."""
        digest = hashlib.sha256(self.column.encode())
        units: list[Unit] = []
        index = 0
        for file in self.files:
            with open_parquet(Path(file)) as opened:
                groups = [opened.metadata.row_group(i).num_rows for i in range(opened.num_row_groups)]
            digest.update(f"{printable(file)}\0{Path(file).stat().st_size}\0{groups}\n".encode())
            for first, last in _runs(groups, chunk_size):
                row, rows = sum(groups[:first]), sum(groups[first:last])
                sizes = [min(chunk_size, rows - start) for start in range(0, rows, chunk_size)]
                units.append(Unit(index, sizes, [file, first, last, row]))
                index += len(sizes)
        if not units:
            count = len(self.files)
            raise UserError(
                f"{self.files[0]} holds no rows."
                if count == 1
                else f"The {count} Parquet files hold no rows."
            )
        return Survey(units, digest.hexdigest())

    def read(self, unit: Unit) -> Iterator[tuple[int, pa.Table]]:
        """Stream the rows of some row groups."""
        file, first, last, row = unit.where
        with open_parquet(Path(self.base) / file, file) as opened:
            # Small batches, so that no more than a chunk is held in memory.
            batches = opened.iter_batches(max(unit.sizes), row_groups=list(range(first, last)))
            for index, table in enumerate(_cut(_readable(batches, file), unit.sizes), unit.first):
                yield index, self._chunk(table, file, row)
                row += table.num_rows

    def _chunk(self, table: pa.Table, file: str, row: int) -> pa.Table:
        name = printable(file)
        items = pa.array([f"{name}#{i}" for i in range(row, row + table.num_rows)], pa.string())
        columns = {ITEM: items, CONTENT: _plain(table.column(self.column))}
        if pa.types.is_struct(columns[CONTENT].type):
            columns[CONTENT] = pa.chunked_array([part.field("bytes") for part in columns[CONTENT].chunks])
        # Without the metadata of fields and types: only a reader that knows their code would understand it.
        return pa.table(columns | {new: _plain(table.column(old)) for old, new in self.names.items()})

    def picture(self, content: bytes) -> bytes:
        """Return the bytes of a picture file as they are."""
        return content


def open_parquet(path: Path, name: str | None = None) -> pq.ParquetFile:
    """Open a Parquet file; messages give `name`, by default the path."""
    try:
        opened = pq.ParquetFile(path, buffer_size=READ_BUFFER_BYTES, pre_buffer=False)
    except (OSError, ValueError, pa.ArrowException) as error:
        raise UserError(f"{name or path} cannot be read as a Parquet file ({_reason(error)}).") from None
    refuse_bombs(opened.metadata, str(name or path))
    return opened


def _readable(batches: Iterable[pa.RecordBatch], file: str) -> Iterator[pa.RecordBatch]:
    try:
        yield from batches
    except (OSError, ValueError, pa.ArrowException) as error:
        raise UserError(
            f"{file} cannot be read as a Parquet file ({_reason(error)}); get it again."
        ) from None


def _reason(error: Exception) -> str:
    return str(error).strip().splitlines()[0].rstrip(".") if str(error).strip() else type(error).__name__


def _runs(groups: Sequence[int], most: int) -> Iterator[tuple[int, int]]:
    """Yield runs [first, last) of row groups: small ones joined up to a chunk, large ones alone."""
    first = rows = 0
    for index, count in enumerate(groups):
        if rows and rows + count > most:
            yield first, index
            first, rows = index, 0
        rows += count
    if rows:
        yield first, len(groups)


def _cut(batches: Iterable[pa.RecordBatch], sizes: Sequence[int]) -> Iterator[pa.Table]:
    """Yield tables of these sizes from batches of any size."""
    waiting: list[pa.RecordBatch] = []
    coming = iter(sizes)
    missing = next(coming)
    for batch in batches:
        start = 0
        while start < batch.num_rows:
            piece = batch.slice(start, missing)
            waiting.append(piece)
            start, missing = start + piece.num_rows, missing - piece.num_rows
            if missing == 0:
                yield pa.Table.from_batches(waiting)
                waiting, missing = [], next(coming, 0)


def _plain(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return the storage of a column of an extension type, so that no process needs to know the type."""
    if not isinstance(column.type, pa.BaseExtensionType):
        return column
    return pa.chunked_array([part.storage for part in column.chunks], column.type.storage_type)
