"""Short names of items for tables: paths without the folders that all share, texts in one line."""

import os.path
from collections.abc import Sequence
from pathlib import Path

from gpldla.data.source_files import is_image

LONG = 40  # characters, from which on the folder that all paths share is left out
LINE = 200  # characters of a text that are shown


def short_names(names: Sequence[str]) -> tuple[list[str], str | None]:
    """Return what to call items in a table, and a caption with the folder that was left out, or None."""
    if not names or not all(is_image(name) and "\n" not in name for name in names):
        return [_one_line(name) for name in names], None
    if max(map(len, names)) <= LONG:
        return list(names), None
    try:
        folder = os.path.commonpath([os.path.dirname(name) for name in names])  # noqa: PTH120 (any string)
    except ValueError:  # relative and absolute paths
        return list(names), None
    if folder in ("", os.sep):
        return list(names), None
    return [str(Path(name).relative_to(folder)) for name in names], f"in {folder}"


def _one_line(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= LINE else f"{line[: LINE - 1]}…"
