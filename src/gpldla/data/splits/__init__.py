"""The class lists of the protocols: one text file a part, one class a line."""

from functools import cache
from pathlib import Path

PARTS = ("base", "validation", "novel")


@cache
def class_lists(set_name: str) -> dict[str, tuple[str, ...]]:
    """Return the classes of each part of a data set, as far as it has parts that are written down."""
    files = {part: Path(__file__).with_name(f"{set_name}-{part}.txt") for part in PARTS}
    return {
        part: tuple(file.read_text("utf-8").split("\n")[:-1]) for part, file in files.items() if file.exists()
    }
