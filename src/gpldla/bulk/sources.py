"""What bulk scoring reads: folders of pictures, Parquet files and data sets, cut into numbered chunks.

A chunk is an Arrow table with a name and what the classifier sees of each item, and all that is passed on
to the output. The same command cuts the same source in the same way, in any process.
"""

import hashlib
import os
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from io import BytesIO
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from gpldla.data.source_files import files_below
from gpldla.utils.errors import UserError, did_you_mean

if TYPE_CHECKING:
    from PIL import Image

    from gpldla.data import Access, ImageSet
    from gpldla.data.decoding import Mode

# gpldla.data loads torch, which processes that only read Parquet files do without: it is imported on demand.

Kind = Literal["pictures", "texts", "embeddings"]
ITEM, CONTENT = "item", " content"  # the space keeps it apart from the columns of users
# About ten seconds of work on a CPU and some ten megabytes: what is lost at most, and what memory holds.
CHUNK_SIZES: dict[Kind, int] = {"pictures": 512, "texts": 4096, "embeddings": 8192}
READ_BUFFER_BYTES = 1 << 20  # bytes of each column; else a whole row group is read before its first row comes


@dataclass(frozen=True)
class Unit:
    """Some chunks that are read in one go.

    first: number of the first chunk
    sizes: rows of each chunk
    where: what the source finds them by, as JSON can hold it
    """

    first: int
    sizes: list[int]
    where: list[Any]

    @property
    def chunks(self) -> list[tuple[int, int]]:
        """The number and the rows of each chunk."""
        return list(enumerate(self.sizes, self.first))


@dataclass(frozen=True)
class Survey:
    """All of a source.

    fingerprint: changes when files come or go, or Parquet files change their size
    """

    units: list[Unit]
    fingerprint: str

    @property
    def chunks(self) -> list[tuple[int, int]]:
        """The number and the rows of every chunk."""
        return [chunk for unit in self.units for chunk in unit.chunks]


@dataclass(frozen=True)
class Input:
    """What a classifier can be given: pictures or texts, and features of a width or none."""

    reads: str
    feature_dim: int | None


class Source(ABC):
    """Where chunks come from. It is small, and goes to other processes; what it lists is in the units."""

    kind: Kind

    @abstractmethod
    def survey(self, chunk_size: int) -> Survey:
        """List everything, cut into chunks of at most so many rows."""

    @abstractmethod
    def read(self, unit: Unit) -> Iterator[tuple[int, pa.Table]]:
        """Yield the chunks of a unit with their numbers."""

    @abstractmethod
    def picture(self, content: bytes, mode: "Mode") -> "Image.Image":
        """Decode one content; raises whatever the decoder raises."""


@dataclass(frozen=True)
class PictureFiles(Source):
    """Pictures, and folders of them; `base` is the folder that relative paths start from."""

    given: list[str]
    base: str
    kind: Kind = "pictures"

    def survey(self, chunk_size: int) -> Survey:
        """List all pictures; each chunk is a unit. One that could not be read may be mended meanwhile."""
        from gpldla.data.user_files import pictures_below

        files: list[str] = []
        for argument in self.given:
            folder = Path(argument)
            found = pictures_below(folder) if folder.is_dir() else [folder]
            if not found:
                raise UserError(f"The folder {folder} holds no pictures and no Parquet files.")
            files += map(str, found)
        digest = hashlib.sha256()
        for file in files:
            digest.update(f"{_printable(file)}\n".encode())
        parts = [files[first : first + chunk_size] for first in range(0, len(files), chunk_size)]
        return Survey(
            [Unit(number, [len(part)], part) for number, part in enumerate(parts)], digest.hexdigest()
        )

    def read(self, unit: Unit) -> Iterator[tuple[int, pa.Table]]:
        """Yield the paths; they are read where they are decoded."""
        items = [_printable(file) for file in unit.where]
        # As bytes, as the names of files need not be Unicode.
        paths = [os.fsencode(file) for file in unit.where]
        yield (
            unit.first,
            pa.table({ITEM: pa.array(items, pa.string()), CONTENT: pa.array(paths, pa.binary())}),
        )

    def picture(self, content: bytes, mode: "Mode") -> "Image.Image":
        """Read a file."""
        from gpldla.data.decoding import read_picture

        return read_picture(Path(self.base) / os.fsdecode(content), mode)


@dataclass(frozen=True)
class ParquetRows(Source):
    """One column of Parquet files.

    names: those of the other columns in the output, see `_passthrough_names`
    """

    files: list[str]
    base: str
    column: str
    kind: Kind
    names: dict[str, str]

    def survey(self, chunk_size: int) -> Survey:
        """Cut each file; a unit is a run of row groups, as nothing shorter can be read alone."""
        digest = hashlib.sha256(self.column.encode())
        units: list[Unit] = []
        number = 0
        for file in self.files:
            with _open_parquet(Path(file)) as opened:
                groups = [opened.metadata.row_group(i).num_rows for i in range(opened.num_row_groups)]
            digest.update(f"{_printable(file)}\0{Path(file).stat().st_size}\0{groups}\n".encode())
            for first, last in _runs(groups, chunk_size):
                row, rows = sum(groups[:first]), sum(groups[first:last])
                sizes = [min(chunk_size, rows - start) for start in range(0, rows, chunk_size)]
                units.append(Unit(number, sizes, [file, first, last, row]))
                number += len(sizes)
        if not units:
            raise UserError(f"{_all_of(self.files)} no rows.")
        return Survey(units, digest.hexdigest())

    def read(self, unit: Unit) -> Iterator[tuple[int, pa.Table]]:
        """Stream the rows of some row groups."""
        file, first, last, row = unit.where
        with _open_parquet(Path(self.base) / file, file) as opened:
            # Small batches, of which no more than a chunk is waiting.
            batches = opened.iter_batches(max(unit.sizes), row_groups=list(range(first, last)))
            for number, table in enumerate(_cut(_readable(batches, file), unit.sizes), unit.first):
                yield number, self._chunk(table, file, row)
                row += table.num_rows

    def _chunk(self, table: pa.Table, file: str, row: int) -> pa.Table:
        name = _printable(file)
        items = pa.array([f"{name}#{i}" for i in range(row, row + table.num_rows)], pa.string())
        columns = {ITEM: items, CONTENT: _plain(table.column(self.column))}
        if pa.types.is_struct(columns[CONTENT].type):
            columns[CONTENT] = pa.chunked_array([part.field("bytes") for part in columns[CONTENT].chunks])
        # Without what a field or a type says of itself: only a reader that knows its code would understand.
        return pa.table(columns | {new: _plain(table.column(old)) for old, new in self.names.items()})

    def picture(self, content: bytes, mode: "Mode") -> "Image.Image":
        """Decode the bytes of a picture file."""
        from gpldla.data.decoding import read_picture

        return read_picture(BytesIO(content), mode)  # type: ignore[arg-type]


@dataclass(frozen=True)
class StoredImages(Source):
    """The images of a data set, from its packed store; `size` is what the network sees, in pixels."""

    name: str
    size: int
    access: "Access"
    kind: Kind = "pictures"
    _opened: "list[ImageSet]" = field(default_factory=list, repr=False, compare=False)

    def __getstate__(self) -> dict[str, Any]:
        # Another process opens the store itself, from the same folders, and has nobody to tell.
        from gpldla.data import Access, DataPaths

        places = DataPaths(self.access.data_paths.root.absolute(), self.access.data_paths.cache.absolute())
        return vars(self) | {"access": Access(places, skip_bad=self.access.skip_bad), "_opened": []}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)

    def _images(self) -> "ImageSet":
        from gpldla.data import load_set

        if not self._opened:
            self._opened.append(load_set(self.name, size=self.size, access=self.access))
        return self._opened[0]

    def survey(self, chunk_size: int) -> Survey:
        """Open the store, packed first where needed; each chunk is a unit."""
        images = self._images()
        facts = [self.name, images.class_names, images.counts.tolist(), images.images.shape]
        edges = [*range(0, len(images.images), chunk_size), len(images.images)]
        units = [
            Unit(number, [end - start], [start, end]) for number, (start, end) in enumerate(pairwise(edges))
        ]
        return Survey(units, hashlib.sha256(repr(facts).encode()).hexdigest())

    def read(self, unit: Unit) -> Iterator[tuple[int, pa.Table]]:
        """Yield the pixels, with the class of each image as `label`."""
        images = self._images()
        numbers = np.arange(*unit.where)
        labels = np.searchsorted(np.cumsum(images.counts), numbers, side="right")
        names = [images.class_names[label] for label in labels]
        places = numbers - images.offsets[labels]
        columns = {
            ITEM: pa.array([f"{self.name}/{name}/{i}" for name, i in zip(names, places)], pa.string()),
            CONTENT: pa.array([pixels.tobytes() for pixels in images.read(numbers)], pa.binary()),
            "label": pa.array(names, pa.string()),
        }
        yield unit.first, pa.table(columns)

    def picture(self, content: bytes, mode: "Mode") -> "Image.Image":
        """Turn pixels [channels, height, width] to a picture."""
        from PIL import Image

        from gpldla.data.decoding import in_mode

        pixels = np.frombuffer(content, np.uint8).reshape(self._images().images.shape[1:])
        return in_mode(Image.fromarray(pixels.transpose(1, 2, 0).squeeze()), mode)


def find_source(
    given: Sequence[str],
    can_read: Input,
    *,
    column: str | None,
    size: int,
    access: "Access",
    reserved: Sequence[str],
) -> Source:
    """Return what the arguments of a command stand for.

    size: of the network's input, in pixels; reserved: names that columns of the output have already
    """
    kinds = {_kind_of_argument(argument) for argument in given}
    if len(kinds) > 1 or (kinds == {"data set"} and len(given) > 1):
        raise UserError(
            "Give pictures and folders of them, or Parquet files and folders of them, or one data set;"
            f" not {' and '.join(sorted(kinds))} at once."
        )
    base = str(Path.cwd())
    if kinds == {"Parquet"}:
        return _parquet_source(_parquet_files(given), base, column, can_read, reserved)
    if column is not None:
        raise UserError("--column names a column of Parquet files, and none are given.")
    if can_read.reads != "pictures":
        raise UserError(
            "This classifier reads texts; put them, or their embeddings, into a column of a Parquet file."
        )
    if kinds == {"data set"}:
        return StoredImages(given[0], size, access)
    return PictureFiles(list(given), base)


def _kind_of_argument(argument: str) -> str:
    from gpldla.data import list_sets

    path = Path(argument)
    if path.is_dir():
        has_parquet = any(True for _ in _parquet_below(path))
        if not has_parquet:
            return "pictures"
        from gpldla.data.user_files import pictures_below

        if pictures_below(path):
            raise UserError(f"The folder {path} holds both pictures and Parquet files; give them one by one.")
        return "Parquet"
    if path.is_file():
        return "Parquet" if path.suffix.lower() == ".parquet" else "pictures"
    if argument.startswith("folder:") or argument in list_sets():
        return "data set"
    raise UserError(f"There is no file or folder {argument}, nor a data set of that name.")


def _parquet_below(folder: Path) -> Iterator[Path]:
    for path in files_below(folder):
        hidden = any(part.startswith("_") for part in path.relative_to(folder).parts)
        if path.suffix.lower() == ".parquet" and not hidden:
            yield path


def _parquet_files(given: Sequence[str]) -> list[str]:
    files: list[str] = []
    for argument in given:
        path = Path(argument)
        files += map(str, sorted(_parquet_below(path))) if path.is_dir() else [argument]
    return files


def _parquet_source(
    files: list[str], base: str, column: str | None, can_read: Input, reserved: Sequence[str]
) -> ParquetRows:
    first, schema = files[0], _schema(files[0])
    for file in files[1:]:
        if not _schema(file).equals(schema):
            raise UserError(f"{first} and {file} have different columns; score them one by one.")
    repeated = {name for name in schema.names if schema.names.count(name) > 1}
    if repeated:
        raise UserError(f"{first} has several columns of the name {min(repeated)!r}; rename them.")
    kinds = {each.name: kind for each in schema if (kind := _kind_of_column(each.type, can_read))}
    column = column or _only_candidate(kinds, schema, first)
    if column not in schema.names:
        raise UserError(f"{first} has no column {column!r}{did_you_mean(column, schema.names)}")
    if column not in kinds:
        raise UserError(
            f"The column {column!r} of {first} is of type {schema.field(column).type};"
            f" this classifier scores {_wanted(can_read)}."
        )
    others = [name for name in schema.names if name != column]
    return ParquetRows(files, base, column, kinds[column], _passthrough_names(others, reserved))


def _schema(file: str) -> pa.Schema:
    with _open_parquet(Path(file)) as opened:
        schema = opened.schema_arrow
    return pa.schema([(each.name, _storage(each.type)) for each in schema])


def _kind_of_column(kind: pa.DataType, can_read: Input) -> Kind | None:
    types = pa.types
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        width = kind.list_size if types.is_fixed_size_list(kind) else can_read.feature_dim
        fits = can_read.feature_dim is not None and width == can_read.feature_dim
        return "embeddings" if fits and types.is_floating(kind.value_type) else None
    if can_read.reads == "texts":
        return "texts" if types.is_string(kind) or types.is_large_string(kind) else None
    if types.is_struct(kind):  # as Hugging Face writes pictures
        places = kind.get_all_field_indices("bytes")
        return (
            _kind_of_column(kind.field(places[0]).type, Input("pictures", None)) if len(places) == 1 else None
        )
    return "pictures" if types.is_binary(kind) or types.is_large_binary(kind) else None


def _only_candidate(kinds: dict[str, Kind], schema: pa.Schema, file: str) -> str:
    # Any text may be an id or a comment: it is not what is scored where there are embeddings, too.
    candidates = [name for name, kind in kinds.items() if kind != "texts"] or list(kinds)
    if len(candidates) == 1:
        return candidates[0]
    columns = ", ".join(f"{each.name} ({each.type})" for each in schema)
    if candidates:
        raise UserError(
            f"{file} has several columns that could be scored, {', '.join(candidates)};"
            " name one with --column."
        )
    raise UserError(f"{file} has no column that this classifier can score; its columns are {columns}.")


def _wanted(can_read: Input) -> str:
    what = "bytes of picture files" if can_read.reads == "pictures" else "texts"
    if can_read.feature_dim is None:
        return what
    return f"{what}, and embeddings as lists of {can_read.feature_dim} floating-point numbers"


def _passthrough_names(names: Sequence[str], reserved: Sequence[str]) -> dict[str, str]:
    """Return the name in the output of each other column: with `input_` before it where that is taken."""
    taken = {*reserved, ITEM, CONTENT, *names}
    new_names = {}
    for name in names:
        new = name
        if name in (*reserved, ITEM, CONTENT):
            while new in taken:
                new = f"input_{new}"
            taken.add(new)
        new_names[name] = new
    return new_names


def _open_parquet(path: Path, name: str | None = None) -> pq.ParquetFile:
    try:
        return pq.ParquetFile(path, buffer_size=READ_BUFFER_BYTES, pre_buffer=False)
    except (OSError, ValueError, pa.ArrowException) as error:
        raise UserError(f"{name or path} cannot be read as a Parquet file ({_reason(error)}).") from None


def _readable(batches: Iterable[pa.RecordBatch], file: str) -> Iterator[pa.RecordBatch]:
    try:
        yield from batches
    except (OSError, ValueError, pa.ArrowException) as error:
        raise UserError(f"{file} cannot be read as a Parquet file ({_reason(error)}); get it anew.") from None


def _reason(error: Exception) -> str:
    return str(error).strip().splitlines()[0].rstrip(".") if str(error).strip() else type(error).__name__


def _runs(groups: Sequence[int], most: int) -> Iterator[tuple[int, int]]:
    """Yield runs [first, last) of row groups: small ones joined up to a chunk, large ones alone."""
    first = rows = 0
    for place, count in enumerate(groups):
        if rows and rows + count > most:
            yield first, place
            first, rows = place, 0
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


def _storage(kind: pa.DataType) -> pa.DataType:
    return kind.storage_type if isinstance(kind, pa.BaseExtensionType) else kind


def _plain(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return what lies in a column of an extension type, so that no process needs to know the type."""
    if not isinstance(column.type, pa.BaseExtensionType):
        return column
    return pa.chunked_array([part.storage for part in column.chunks], column.type.storage_type)


def _printable(name: str) -> str:
    """As `own_data.printable`, which would load torch."""
    return name.encode("utf-8", "backslashreplace").decode()


def _all_of(files: Sequence[str]) -> str:
    return f"{files[0]} holds" if len(files) == 1 else f"The {len(files)} Parquet files hold"
