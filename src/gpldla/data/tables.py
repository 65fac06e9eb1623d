"""Tables of texts as people have them: CSV of any delimiter and encoding, TSV, JSON lines, Parquet, Excel."""

import codecs
import csv
import io
import json
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from gpldla.utils.errors import UserError, did_you_mean, first_line
from gpldla.utils.parquet_sizes import refuse_bombs

STANDARD_INPUT = "-"
DELIMITERS = (",", ";", "\t", "|")
NAMES = {",": "commas", ";": "semicolons", "\t": "tabs", "|": "vertical bars"}
SNIFFED_ROWS = 200  # of a CSV file, from which its delimiter is found
BOMS = ((codecs.BOM_UTF8, "utf-8-sig"), (codecs.BOM_UTF16_LE, "utf-16"), (codecs.BOM_UTF16_BE, "utf-16"))
FALLBACK = "windows-1252"  # what most files that are not UTF-8 are in
LINE = "text"  # what the only column of a text file is called
TABLES = (".csv", ".tsv", ".tab", ".jsonl", ".ndjson", ".json", ".parquet", ".xlsx")


@dataclass(frozen=True)
class Table:
    """The values of a table, which are strings where the file has no other types.

    name:    of the file, for messages
    columns: the values of each column, in the order of the file
    places:  where each row stands, such as "line 7"
    notes:   what was found out about the file and may be wrong, as sentences
    """

    name: str
    columns: dict[str, list[Any]]
    places: list[str]
    notes: list[str] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.places)

    def column(self, name: str) -> list[str]:
        """Return a column as strings, an empty cell as ""; a missing one raises a sentence."""
        if name not in self.columns:
            hint = did_you_mean(name, self.columns)
            if len(self.columns) == 1 and not hint.startswith("; did"):
                hint += " If its cells are separated by another character, name it with --delimiter."
            raise UserError(f"{self.name} has no column {name!r}{hint}")
        return [cell_text(value) for value in self.columns[name]]

    def filled(self, name: str) -> list[str]:
        """Return a column in which no cell may be empty."""
        cells = [cell.strip() for cell in self.column(name)]
        for cell, place in zip(cells, self.places):
            if not cell:
                raise UserError(
                    f"{self.name}, {place}: the column {name!r} is empty; fill it in, remove the row, or add"
                    " --skip-bad."
                )
        if not cells:
            raise UserError(f"{self.name} holds no rows below its header.")
        return cells

    def without_empty(self, *names: str) -> tuple["Table", list[str]]:
        """Return the table without rows in which one of these columns is empty, and a sentence per row."""
        problems: dict[int, str] = {}
        for name in names:
            for row, cell in enumerate(self.column(name)):
                if not cell.strip():
                    problems.setdefault(
                        row, f"{self.name}, {self.places[row]}: the column {name!r} is empty."
                    )
        return self.where([row not in problems for row in range(len(self))]), list(problems.values())

    def others(self, *names: str) -> dict[str, list[Any]]:
        """Return all columns but these."""
        return {name: values for name, values in self.columns.items() if name not in names}

    def where(self, kept: Sequence[bool]) -> "Table":
        """Return the table with some of its rows."""
        columns = {
            name: [value for value, keep in zip(values, kept) if keep]
            for name, values in self.columns.items()
        }
        places = [place for place, keep in zip(self.places, kept) if keep]
        return Table(self.name, columns, places, self.notes)


def is_table(path: Path) -> bool:
    """Return whether a name is that of a table."""
    return str(path) == STANDARD_INPUT or path.suffix.lower() in TABLES


def passthrough_names(names: Iterable[str], reserved: Iterable[str]) -> dict[str, str]:
    """Return the name in an output of each column of a table, with `input_` before it where that is taken.

    reserved: names of the output's own columns
    """
    own, listed = set(reserved), list(names)
    taken = own | set(listed)
    new_names = {}
    for name in listed:
        new = name
        if name in own:
            while new in taken:
                new = f"input_{new}"
            taken.add(new)
        new_names[name] = new
    return new_names


def open_lines(file: Path, encoding: str | None = None) -> Table:
    """Read the lines of a text file that are not blank, as the column `text`; "-" is standard input."""
    text, notes = _decoded(file, _content(file), encoding)
    numbered = [(number, line.strip()) for number, line in enumerate(text.split("\n"), 1) if line.strip()]
    if not numbered:
        raise UserError(f"{file} holds no lines; write one item per line.")
    return Table(
        str(file), {LINE: [line for _, line in numbered]}, [f"line {number}" for number, _ in numbered], notes
    )


def open_table(
    file: Path, wanted: Sequence[str] = (), *, encoding: str | None = None, delimiter: str | None = None
) -> Table:
    """Read a table with a header; "-" is CSV or JSON lines on standard input.

    wanted: columns that it must have; they also tell the delimiter of a CSV file
    encoding, delimiter: of CSV; None: found out, see `Table.notes`
    """
    suffix = file.suffix.lower()
    content = _content(file)
    if suffix in (".parquet", ".xlsx"):
        table = _through_pandas(file, content, suffix)
    else:
        text, notes = _decoded(file, content, encoding)
        if suffix in (".jsonl", ".ndjson", ".json") or (str(file) == STANDARD_INPUT and text[:1] == "{"):
            table = _from_json(file, text, notes)
        else:
            if suffix in (".tsv", ".tab"):
                delimiter = delimiter or "\t"
            table = _from_csv(file, text, notes, wanted, delimiter)
    for name in wanted:
        table.column(name)
    return table


def _content(file: Path) -> bytes:
    try:
        return sys.stdin.buffer.read() if str(file) == STANDARD_INPUT else file.read_bytes()
    except FileNotFoundError:
        raise UserError(f"There is no file {file}.") from None
    except OSError as error:
        raise UserError(f"{file} cannot be read as a table ({error}).") from None


def _decoded(file: Path, content: bytes, encoding: str | None) -> tuple[str, list[str]]:
    """Return the text of a file, and a sentence where its encoding is a guess."""
    found = encoding or next((name for bom, name in BOMS if content.startswith(bom)), "utf-8")
    try:
        return content.decode(found), []
    except LookupError:
        raise UserError(f"There is no encoding {found!r}; use one such as utf-8 or {FALLBACK}.") from None
    except UnicodeError as error:
        if encoding is not None or found != "utf-8":
            raise UserError(
                f"{file} cannot be read in the encoding {found} ({first_line(error)}); name another with"
                " --encoding."
            ) from None
    if b"\0" in content[:4096]:
        raise UserError(
            f"{file} cannot be read as a table: it is not text, or in an encoding such as utf-16-le, which"
            " --encoding names."
        )
    text = content.decode(FALLBACK, errors="replace")
    return text, [f"{file} is not in UTF-8; it was read as {FALLBACK}. --encoding names another."]


def _from_csv(file: Path, text: str, notes: list[str], wanted: Sequence[str], delimiter: str | None) -> Table:
    if delimiter is not None and len(delimiter) != 1:
        raise UserError(f"A delimiter is one character, not {delimiter!r}; for tabs use --delimiter $'\\t'.")
    used = delimiter or _sniffed(text, wanted)
    if delimiter is None and used != ",":
        notes = [*notes, f"{file} is separated by {NAMES[used]}. --delimiter names another character."]
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=used, strict=True)
    rows: list[list[str]] = []
    places: list[str] = []
    names: list[str] | None = None
    try:
        for row in reader:
            if not row:
                continue
            if names is None:
                names = [name.strip() for name in row]
                continue
            if any(row[len(names) :]):
                raise UserError(
                    f"{file}, line {reader.line_num}: there are more cells than columns;"
                    f" put quotes around texts with {NAMES.get(used, 'the delimiter')}."
                )
            rows.append(row[: len(names)] + [""] * (len(names) - len(row)))
            places.append(f"line {reader.line_num}")
    except csv.Error as error:
        raise UserError(f"{file} cannot be read as a CSV file ({first_line(error)}).") from None
    if not names:
        raise UserError(f"{file} is empty; give it a header and rows.")
    for name in names:
        if name in wanted and names.count(name) > 1:
            raise UserError(f"{file} has two columns {name!r}; rename one of them.")
    names = [name + f".{names[:i].count(name)}" * (name in names[:i]) for i, name in enumerate(names)]
    cells: Iterable[Sequence[str]] = zip(*rows) if rows else ((),) * len(names)
    return Table(str(file), {name: list(column) for name, column in zip(names, cells)}, places, notes)


def _sniffed(text: str, wanted: Sequence[str]) -> str:
    """Return the delimiter under which the header has the wanted columns, or most columns in every row."""

    def score(delimiter: str) -> tuple[int, bool, int]:
        reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
        widths: list[int] = []
        names: list[str] = []
        try:
            for row in reader:
                if row:
                    names = names or [name.strip() for name in row]
                    widths.append(len(row))
                if len(widths) > SNIFFED_ROWS:
                    break
        except csv.Error:
            return -1, False, 0
        width = len(names)
        even = width > 1 and all(other <= width for other in widths)
        return sum(name in names for name in wanted), even, width if even else 0

    return max(DELIMITERS, key=score)  # the first of equals


def _from_json(file: Path, text: str, notes: list[str]) -> Table:
    """Read one object per line, or a list of objects."""
    places: list[str] = []
    records: list[Any] = []
    if text.lstrip()[:1] == "[":
        records = _parsed(text, str(file), list)
        places = [f"record {i}" for i in range(1, len(records) + 1)]
    else:
        for number, line in enumerate(text.split("\n"), 1):
            if line.strip():
                records.append(_parsed(line, f"{file}, line {number}", dict))
                places.append(f"line {number}")
    for record, place in zip(records, places):
        if not isinstance(record, dict):
            raise UserError(f"{file}, {place}: this is no object with named values.")
    names = list(dict.fromkeys(name for record in records for name in record))
    if not names:
        raise UserError(f"{file} is empty; give it rows.")
    return Table(str(file), {name: [record.get(name) for record in records] for name in names}, places, notes)


def _parsed(text: str, where: str, kind: type) -> Any:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{where} is not valid JSON ({first_line(error)}).") from None
    if not isinstance(value, kind):
        raise UserError(f"{where}: give one JSON object per line, or a list of objects.")
    return value


def cell_text(value: Any) -> str:
    """Return a value as a person would write it into a cell."""
    if value is None or value != value:  # NaN: a missing value
        return ""
    if isinstance(value, float) and value.is_integer():  # of a column of whole numbers with gaps
        value = int(value)
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str).strip('"')


def _through_pandas(file: Path, content: bytes, suffix: str) -> Table:
    """Read Parquet or the first sheet of an Excel file with pandas, else with polars."""
    engines = {".parquet": "pyarrow", ".xlsx": "openpyxl"}
    library = next((name for name in ("pandas", "polars") if find_spec(name)), None)
    if library is None or (library == "pandas" and not find_spec(engines[suffix])):
        raise UserError(
            f"{file}: {suffix} files are read through pandas and {engines[suffix]}:"
            f" pip install pandas {engines[suffix]}; or save the table as CSV."
        )
    try:
        if suffix == ".parquet" and find_spec("pyarrow"):
            refuse_bombs(io.BytesIO(content), str(file))
        if library == "pandas":
            import pandas

            if suffix == ".parquet":  # numpy_nullable: whole numbers stay so if some are missing
                frame = pandas.read_parquet(io.BytesIO(content), dtype_backend="numpy_nullable")
            else:  # "NA" may be a label
                frame = pandas.read_excel(io.BytesIO(content), dtype=object, keep_default_na=False)
            columns = {str(name): [_plain(value) for value in frame[name]] for name in frame.columns}
        else:
            import polars

            read = polars.read_parquet if suffix == ".parquet" else polars.read_excel
            columns = {each.name: each.to_list() for each in read(io.BytesIO(content))}
    except UserError:
        raise
    except Exception as error:  # of whatever reads the format
        raise UserError(f"{file} cannot be read as a {suffix} file ({first_line(error)}).") from None
    if not columns:
        raise UserError(f"{file} is empty; give it a header and rows.")
    first = 2 if suffix == ".xlsx" else 1  # rows of a sheet are counted with its header
    count = len(next(iter(columns.values())))
    return Table(str(file), columns, [f"row {first + i}" for i in range(count)])


def _plain(value: Any) -> Any:
    """Return a value of pandas as one of Python; its kinds of missing values become None."""
    if hasattr(value, "item") and getattr(value, "ndim", 0) == 0:
        value = value.item()
    is_missing = type(value).__name__ in ("NAType", "NaTType") or (
        isinstance(value, float) and value != value
    )
    return None if is_missing else value
