"""Which source the arguments of a command name."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from gpldla.bulk.sources.base import Accepted, Source
from gpldla.bulk.sources.parquet_columns import parquet_source
from gpldla.bulk.sources.picture_files import PictureFiles
from gpldla.bulk.sources.stored_images import StoredImages
from gpldla.bulk.sources.table_rows import LINES, table_source
from gpldla.utils.errors import UserError

if TYPE_CHECKING:
    from gpldla.data import Access


def find_source(
    given: Sequence[str],
    accepted: Accepted,
    *,
    column: str | None,
    size: int,
    access: "Access",
    reserved: Sequence[str],
    reading: tuple[str | None, str | None] = (None, None),
) -> Source:
    """Return the source that the arguments of a command name.

    size: of the network's input, in pixels; reserved: names of the output's own columns
    reading: encoding and delimiter of CSV files, None: found out
    """
    kinds = {_kind_of_argument(argument, accepted.reads) for argument in given}
    if len(kinds) > 1 or (kinds == {"data set"} and len(given) > 1):
        raise UserError(
            "Give pictures and folders of them, or tables, or Parquet files and folders of them, or one data"
            f" set; not {' and '.join(sorted(kinds))} at once."
        )
    base = str(Path.cwd())
    if kinds == {"Parquet"}:
        return parquet_source(_parquet_files(given), base, column, accepted, reserved)
    if kinds == {"tables"}:
        return table_source(given, base, column, accepted, reading, reserved, access)
    if column is not None:
        raise UserError("--column names a column of Parquet files or tables, and none are given.")
    if accepted.reads != "pictures":
        raise UserError(
            "This classifier reads texts; with a folder for the answers give them as a .txt file or a table."
        )
    if kinds == {"data set"}:
        return StoredImages(given[0], size, access)
    return PictureFiles(list(given), base)


def _kind_of_argument(argument: str, reads: str) -> str:
    from gpldla.data import list_sets
    from gpldla.data.tables import STANDARD_INPUT, is_table

    path = Path(argument)
    if argument == STANDARD_INPUT:
        raise UserError(
            "Standard input cannot be resumed; write its answers to a file: --output answers.csv."
        )
    if path.is_dir():
        has_parquet = any(True for _ in _parquet_below(path))
        if not has_parquet:
            return "pictures"
        from gpldla.data.user_files import pictures_below

        if pictures_below(path):
            raise UserError(f"The folder {path} holds both pictures and Parquet files; give them separately.")
        return "Parquet"
    if path.is_file():
        suffix = path.suffix.lower()
        if suffix == ".parquet":
            return "Parquet"
        return "tables" if is_table(path) or (suffix == LINES and reads == "texts") else "pictures"
    if argument.startswith("folder:") or argument in list_sets():
        return "data set"
    raise UserError(f"There is no file or folder {argument}, nor a data set of that name.")


def _parquet_below(folder: Path) -> Iterator[Path]:
    from gpldla.data.source_files import files_below

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
