"""The user's own files: class folders of pictures."""

import os
from collections.abc import Sequence
from pathlib import Path

from gpldla.data.decoding import how_to_read_heic
from gpldla.data.pictures import picture_pixels
from gpldla.data.preprocessing import Preprocessing
from gpldla.data.source_files import files_below, is_hidden, is_image
from gpldla.utils.errors import UserError
from gpldla.utils.parallel import map_in_threads

OTHER_PICTURES = frozenset(
    {".heic", ".heif", ".jxl", ".svg", ".psd", ".eps", ".dng", ".cr2", ".cr3", ".nef", ".arw", ".raf", ".rw2"}
)

# What the parts of a data set are called as folders.
PARTS = {
    **dict.fromkeys(("train", "training", "base"), "train"),
    **dict.fromkeys(("val", "valid", "validation", "dev"), "validation"),
    **dict.fromkeys(("test", "testing", "novel"), "test"),
}


def read_class_folders(folder: Path, *, at_least: int = 2) -> tuple[list[Path], list[str]]:
    """Return the pictures below each folder of `folder`, with the folder's name as label.

    at_least: how many class folders there must be
    """
    if not folder.is_dir():
        raise UserError(f"There is no folder {folder}; name one that holds one folder of pictures per class.")
    pictures: list[Path] = []
    labels: list[str] = []
    names = _folders_in(folder)
    if len(names) < at_least:
        count = "no folders" if not names else f"only one folder, {names[0].name}"
        least = "at least two" if at_least == 2 else f"at least {at_least}"
        raise UserError(f"{folder} holds {count}; give one folder of pictures per class, {least}.")
    for class_folder in names:
        found = pictures_below(class_folder)
        if not found:
            raise UserError(f"The class folder {class_folder} holds no pictures; add some or remove it.")
        pictures += found
        labels += [class_folder.name] * len(found)
    return pictures, labels


def split_folders(folder: Path) -> dict[str, Path] | None:
    """Return the parts of a folder that is split into train and test, train first; None of another folder."""
    if not folder.is_dir():
        return None
    parts = {path.name: path for path in _folders_in(folder)}
    known = {name: PARTS.get(name.lower()) for name in parts}
    is_split = len(parts) >= 2 and None not in known.values() and [*known.values()].count("train") == 1
    if not is_split or not all(_folders_in(path) for path in parts.values()):
        return None
    order = ("train", "validation", "test")
    return {name: parts[name] for name in sorted(parts, key=lambda name: order.index(known[name] or ""))}


def without_wrapping(folder: Path) -> Path:
    """Return the folder inside those that hold a single folder and no pictures, as unpacked archives do."""
    inside = folder
    while inside.is_dir() and len(folders := _folders_in(inside)) == 1 and not loose_pictures(inside):
        inside = folders[0]
    return inside if inside.is_dir() and len(_folders_in(inside)) > 1 else folder


def loose_pictures(folder: Path) -> list[Path]:
    """Return the pictures that lie in a folder itself."""
    if not folder.is_dir():
        return []
    return sorted(path for path in folder.iterdir() if path.is_file() and is_image(path.name))


def _folders_in(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.is_dir() and not is_hidden(path.name))


def pictures_below(folder: Path) -> list[Path]:
    """Return all pictures in a folder and the folders in it, including linked ones, sorted."""
    return sorted(path for path in files_below(folder) if is_image(path.name))


def ignored_files(folder: Path) -> str:
    """Return a sentence on the pictures in a folder whose format is not read, or ""."""
    others = sorted(
        path
        for path in files_below(folder)
        if path.suffix.lower() in OTHER_PICTURES and not is_image(path.name)
    )
    if not others:
        return ""
    remedy = next(filter(None, map(how_to_read_heic, others)), "Convert them to JPEG or PNG.")
    return f"Ignored {len(others)} files whose format is not read, such as {printable(others[0])}. {remedy}"


def readable_pictures(pictures: Sequence[Path], preprocessing: Preprocessing) -> tuple[list[int], list[str]]:
    """Return the indices of pictures that can be decoded, and one sentence per picture that cannot."""

    def problem(picture: Path) -> str | None:
        try:
            picture_pixels(picture, preprocessing)
        except UserError as error:
            return str(error)
        return None

    threads = min(16, os.cpu_count() or 1)
    problems = list(map_in_threads(problem, pictures, threads=threads, ahead=4 * threads))
    good = [index for index, sentence in enumerate(problems) if sentence is None]
    return good, [sentence for sentence in problems if sentence is not None]


def printable(item: object) -> str:
    """Return the name of an item as valid Unicode, which file names need not be."""
    return str(item).encode("utf-8", "backslashreplace").decode()
