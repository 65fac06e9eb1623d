"""The user's own files: class folders of pictures, tables and lists of texts."""

import csv
from collections.abc import Sequence
from pathlib import Path

from gpldla.data.pictures import picture_tensor
from gpldla.data.preprocessing import Preprocessing
from gpldla.data.source_files import files_below, is_hidden, is_image
from gpldla.utils.errors import UserError, did_you_mean

OTHER_PICTURES = frozenset(
    {".heic", ".heif", ".jxl", ".svg", ".psd", ".eps", ".dng", ".cr2", ".cr3", ".nef", ".arw", ".raf", ".rw2"}
)


def read_class_folders(folder: Path) -> tuple[list[Path], list[str]]:
    """Return the pictures below each folder of `folder`, with the folder's name as label."""
    if not folder.is_dir():
        raise UserError(f"There is no folder {folder}; name one that holds one folder of pictures per class.")
    pictures: list[Path] = []
    labels: list[str] = []
    names = sorted(path for path in folder.iterdir() if path.is_dir() and not is_hidden(path.name))
    if len(names) < 2:
        count = "no folders" if not names else f"only one folder, {names[0].name}"
        raise UserError(f"{folder} holds {count}; give one folder of pictures per class, at least two.")
    for class_folder in names:
        found = pictures_below(class_folder)
        if not found:
            raise UserError(f"The class folder {class_folder} holds no pictures; add some or remove it.")
        pictures += found
        labels += [class_folder.name] * len(found)
    return pictures, labels


def pictures_below(folder: Path) -> list[Path]:
    """Return all pictures in a folder and the folders in it, including linked ones, sorted."""
    return sorted(path for path in files_below(folder) if is_image(path.name))


def ignored_files(folder: Path) -> str:
    """Return a sentence on the pictures in a folder whose format is not read, or ""."""
    others = sorted(path for path in files_below(folder) if path.suffix.lower() in OTHER_PICTURES)
    if not others:
        return ""
    return (
        f"Ignored {len(others)} files whose format is not read, such as {printable(others[0])};"
        " convert them to JPEG or PNG."
    )


def readable_pictures(pictures: Sequence[Path], preprocessing: Preprocessing) -> tuple[list[int], list[str]]:
    """Return the indices of pictures that can be decoded, and one sentence per picture that cannot."""
    good, bad = [], []
    for index, picture in enumerate(pictures):
        try:
            picture_tensor(picture, preprocessing)
        except UserError as error:
            bad.append(str(error))
        else:
            good.append(index)
    return good, bad


def read_table(file: Path, columns: Sequence[str]) -> list[list[str]]:
    """Return one list per named column of a CSV file with a header; no cell may be empty."""
    try:
        with file.open(encoding="utf-8-sig", newline="") as opened:
            reader = csv.DictReader(opened, strict=True)
            names = reader.fieldnames
            if not names:
                raise UserError(f"{file} is empty; give it a header and rows.")
            for column in columns:
                if column not in names:
                    raise UserError(f"{file} has no column {column!r}{did_you_mean(column, names)}")
                if names.count(column) > 1:
                    raise UserError(f"{file} has two columns {column!r}; rename one of them.")
            values: list[list[str]] = [[] for _ in columns]
            for row in reader:
                if any(row.get(None) or ()):
                    raise UserError(
                        f"{file}, line {reader.line_num}: there are more cells than columns;"
                        " put quotes around texts with commas."
                    )
                for column, cells in zip(columns, values):
                    cell = (row[column] or "").strip()
                    if not cell:
                        raise UserError(
                            f"{file}, line {reader.line_num}: the column {column!r} is empty;"
                            " fill it in or remove the line."
                        )
                    cells.append(cell)
    except FileNotFoundError:
        raise UserError(f"There is no file {file}.") from None
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise UserError(f"{file} cannot be read as a CSV file in UTF-8 ({error}).") from None
    if not values[0]:
        raise UserError(f"{file} holds no rows below its header.")
    return values


def read_lines(file: Path) -> list[str]:
    """Return the lines of a text file that are not blank."""
    try:
        lines = [line for line in file.read_text("utf-8-sig").split("\n") if line.strip()]
    except FileNotFoundError:
        raise UserError(f"There is no file {file}.") from None
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{file} cannot be read as text in UTF-8 ({error}).") from None
    if not lines:
        raise UserError(f"{file} holds no lines; write one text per line.")
    return lines


def printable(item: object) -> str:
    """Return the name of an item as valid Unicode, which file names need not be."""
    return str(item).encode("utf-8", "backslashreplace").decode()
