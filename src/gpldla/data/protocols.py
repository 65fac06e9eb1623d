"""Protocols: which classes of which data set are base, validation and novel."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from gpldla.data.splits import PARTS
from gpldla.data.store import ImageSet
from gpldla.utils.errors import UserError
from gpldla.utils.registry import Registry

PLUGINS = "gpldla.datasets"  # entry points with data sets and protocols of other packages
ALL = "all"  # the classes of all parts of a set together


@dataclass(frozen=True)
class Part:
    """Some classes of an image set. Its images have the indices 0 .. n-1, sorted by class."""

    image_set: ImageSet
    classes: tuple[int, ...]

    @cached_property
    def counts(self) -> np.ndarray:
        """Images per class, int64 [n_classes]."""
        return self.image_set.counts[list(self.classes)]

    @cached_property
    def class_names(self) -> list[str]:
        """The name of each class."""
        return [self.image_set.class_names[c] for c in self.classes]

    @cached_property
    def indices(self) -> np.ndarray:
        """Index in the image set of each image of the part, int64 [n]."""
        offsets = self.image_set.offsets
        runs = [np.arange(self.image_set.counts[c]) + offsets[c] for c in self.classes]
        return np.concatenate(runs)

    def read(self, indices: np.ndarray | slice) -> np.ndarray:
        """Return copies of the images with these indices in the part, uint8 [n, channels, height, width]."""
        return self.image_set.read(self.indices[indices])

    @cached_property
    def groups(self) -> np.ndarray | None:
        """Group of each image, int64 [n], or None."""
        return None if self.image_set.groups is None else self.image_set.groups[self.indices]


@dataclass(frozen=True)
class Protocol:
    """An opened protocol: its parts by name, some of "base", "validation" and "novel"."""

    name: str
    parts: dict[str, Part]

    def part(self, name: str) -> Part:
        """Return a part, or raise a sentence if the protocol has none of that name."""
        if name not in self.parts:
            have = " and ".join(self.parts)
            raise UserError(
                f"Data set {self.name!r} has no {name} classes, only {have}; choose another data set."
            )
        return self.parts[name]


# Each part of a protocol is a part of a data set, by the names of both.
PROTOCOLS: Registry[dict[str, tuple[str, str]]] = Registry("protocol", group=PLUGINS)


def register_protocol(name: str, **parts: tuple[str, str]) -> None:
    """Register a protocol; a data set's file calls this for combinations with other data sets.

    parts: base, validation and novel, or some of them, as (data set, part), where part may be `ALL`
    """
    for part, (set_name, part_of_set) in parts.items():
        if part not in PARTS or part_of_set not in (*PARTS, ALL):
            raise UserError(
                f"Protocol {name!r} has {part} = {set_name!r}, {part_of_set!r}; parts are {', '.join(PARTS)},"
                f" and {ALL} for those of a data set together."
            )
    PROTOCOLS.register(name)(parts)
