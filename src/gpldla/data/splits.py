"""Class lists: which classes of a data set are base, validation and novel."""

from functools import cache
from pathlib import Path

PARTS = ("base", "validation", "novel")


@cache
def read_class_lists(folder: Path, set_name: str) -> dict[str, tuple[str, ...]]:
    """Read the files SET-PART.txt of a folder, one class per line; parts without a file are left out."""
    files = {part: folder / f"{set_name}-{part}.txt" for part in PARTS}
    return {
        part: tuple(file.read_text("utf-8").split("\n")[:-1]) for part, file in files.items() if file.exists()
    }
