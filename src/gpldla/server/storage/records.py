"""Rows of the database as plain objects."""

from collections import Counter
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class NewExample:
    """An example to be stored; features: float32 [d]; text: None for a picture; thumbnail: WebP or None."""

    name: str
    features: np.ndarray
    text: str | None = None
    thumbnail: bytes | None = None


@dataclass(frozen=True)
class ExampleRecord:
    """A stored example, without its features and its thumbnail."""

    id: str
    label: str
    name: str
    text: str | None
    has_thumbnail: bool


@dataclass(frozen=True)
class TaskRecord:
    """A stored task; times are seconds since 1970; network: the fingerprint of what embeds its items."""

    id: str
    kind: str
    name: str
    network: str
    created: float
    expires: float
    revision: int
    counts: Counter[str]
