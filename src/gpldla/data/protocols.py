"""Which classes of which data set are base, validation and novel."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from gpldla.data.splits import PARTS
from gpldla.data.store import ImageSet
from gpldla.utils.errors import UserError


@dataclass(frozen=True)
class Part:
    """Some classes of an image set. Its images are numbered 0 .. n-1, sorted by class."""

    image_set: ImageSet
    classes: tuple[int, ...]

    @cached_property
    def counts(self) -> np.ndarray:
        """Images a class, int64 [n_classes]."""
        return self.image_set.counts[list(self.classes)]

    @cached_property
    def class_names(self) -> list[str]:
        """One name a class."""
        return [self.image_set.class_names[c] for c in self.classes]

    @cached_property
    def indices(self) -> np.ndarray:
        """Where in the image set each image of the part lies, int64 [n]."""
        offsets = self.image_set.offsets
        runs = [np.arange(self.image_set.counts[c]) + offsets[c] for c in self.classes]
        return np.concatenate(runs)

    def read(self, numbers: np.ndarray | slice) -> np.ndarray:
        """Return copies of the images with these numbers, uint8 [n, channels, height, width]."""
        return self.image_set.read(self.indices[numbers])

    @cached_property
    def groups(self) -> np.ndarray | None:
        """Group of each image, int64 [n], or None."""
        return None if self.image_set.groups is None else self.image_set.groups[self.indices]


@dataclass(frozen=True)
class Protocol:
    """A benchmark: its parts by name, some of "base", "validation" and "novel"."""

    name: str
    parts: dict[str, Part]

    def part(self, name: str) -> Part:
        """Return a part, or say that the protocol has none of that name."""
        if name not in self.parts:
            have = " and ".join(self.parts)
            raise UserError(
                f"Data set {self.name!r} has no {name} classes, only {have}; choose another data set."
            )
        return self.parts[name]


ALL = "all"  # the classes of all parts together


def _own_parts(set_name: str) -> dict[str, tuple[str, str]]:
    return {part: (set_name, part) for part in PARTS}


# Each part of a protocol is a part of a data set.
PROTOCOLS: dict[str, dict[str, tuple[str, str]]] = {
    "glyphs": _own_parts("glyphs"),
    "digits": {"novel": ("digits", "novel")},
    # Learn on printed letters, choose on a script not learned from, test on handwritten digits.
    "glyphs-digits": {**_own_parts("glyphs"), "novel": ("digits", "novel")},
    "cub": _own_parts("cub"),
    "miniimagenet": _own_parts("miniimagenet"),
    "tieredimagenet": _own_parts("tieredimagenet"),
    "tinyimagenet-mini": _own_parts("tinyimagenet-mini"),
    "omniglot-emnist": {
        "base": ("omniglot", "base"),
        "validation": ("emnist", "validation"),
        "novel": ("emnist", "novel"),
    },
    "mini-cub": {**_own_parts("cub"), "base": ("miniimagenet", ALL)},
    "tinyimagenet-cub": {**_own_parts("cub"), "base": ("tinyimagenet-mini", ALL)},
}
