"""Pictures and texts as pages show them, each with what the classifier says of it."""

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any, NamedTuple

import numpy as np

from gpldla.data.thumbnails import thumbnail_of
from gpldla.data.user_files import printable

TEXT_LENGTH = 240
BARS, LEAST_SHOWN = 2, 0.005  # classes below an item, and the least probability of a second one


class Bar(NamedTuple):
    """The probability of a class; mark: "right" or "wrong", "" where that is not known."""

    name: str
    share: float
    mark: str


@dataclass(frozen=True)
class ShownItem:
    """An item, its picture as a data URI or its text, and the most probable classes."""

    name: str
    picture: str | None
    text: str | None
    note: str
    bars: list[Bar]

    @property
    def short_name(self) -> str:
        """The last two parts of a path."""
        return "/".join(PurePath(self.name).parts[-2:])


def shown_item(
    item: Any,
    proba: np.ndarray,
    classes: Sequence[Any],
    *,
    reads: str,
    note: str = "",
    truth: int | None = None,
) -> ShownItem:
    """Return an item with its most probable classes.

    item: the path of a picture, or a text (reads: "pictures" or "texts"); proba [C]; truth: the index of its
    label, which is among the bars, or None
    """
    ranked = np.argsort(-proba, kind="stable")[:BARS].tolist()
    if truth is not None and truth not in ranked:
        ranked[-1] = truth
    ranked = [c for c in ranked if c in (ranked[0], truth) or proba[c] >= LEAST_SHOWN]
    bars = [Bar(printable(classes[c]), float(proba[c]), _mark(c, ranked[0], truth)) for c in ranked]
    name = printable(item)
    if reads == "texts":
        text = name if len(name) <= TEXT_LENGTH else name[: TEXT_LENGTH - 1].rstrip() + "…"
        return ShownItem(name, None, text, note, bars)
    return ShownItem(name, _picture(item), None, note, bars)


def _mark(c: int, answer: int, truth: int | None) -> str:
    if truth is None or c not in (answer, truth):
        return ""
    return "right" if c == truth else "wrong"


def _picture(item: Any) -> str | None:
    content = thumbnail_of(item)
    return None if content is None else "data:image/webp;base64," + base64.b64encode(content).decode()
