"""Which classes of which data set are base, validation and novel."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from gpldla.data import digits, glyphs
from gpldla.data.store import ImageSet, cached_store
from gpldla.errors import UserError, did_you_mean

PARTS = ("base", "validation", "novel")


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

    @cached_property
    def groups(self) -> np.ndarray | None:
        """Group of each image, int64 [n], or None."""
        return None if self.image_set.groups is None else self.image_set.groups[self.indices]

    def images(self, device: torch.device | str = "cpu") -> Tensor:
        """Return all images as one tensor, uint8 [n, channels, height, width]."""
        return torch.from_numpy(self.image_set.images[self.indices]).to(device)


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


Loader = Callable[[str], ImageSet]


def _all_novel(image_set: ImageSet) -> dict[str, Part]:
    return {"novel": Part(image_set, tuple(range(len(image_set.counts))))}


def _by_script(image_set: ImageSet) -> dict[str, Part]:
    return {
        name: Part(image_set, tuple(classes)) for name, classes in glyphs.classes_of_part(image_set).items()
    }


_SETS = {"glyphs": glyphs, "digits": digits}
_PROTOCOLS: dict[str, Callable[[Loader], dict[str, Part]]] = {
    "glyphs": lambda load: _by_script(load("glyphs")),
    "digits": lambda load: _all_novel(load("digits")),
    # Learn on printed letters, choose on a script not learned from, test on handwritten digits.
    "glyphs-digits": lambda load: {**_by_script(load("glyphs")), **_all_novel(load("digits"))},
}


def list_sets() -> list[str]:
    """Return the names of the data sets."""
    return sorted(_SETS)


def list_protocols() -> list[str]:
    """Return the names that `load_protocol` knows."""
    return sorted(_PROTOCOLS)


def load_set(
    name: str, *, cache: str | Path | None = None, announce: Callable[[str], None] = lambda message: None
) -> ImageSet:
    """Open a data set by name; prepares it first where needed, and announces that."""
    if name not in _SETS:
        raise UserError(f"There is no data set {name!r}{did_you_mean(name, _SETS)}")
    source = _SETS[name]
    return cached_store(name, source.SETTINGS, source.make, cache=cache, announce=announce)


def load_protocol(
    name: str, *, cache: str | Path | None = None, announce: Callable[[str], None] = lambda message: None
) -> Protocol:
    """Open a protocol by name; prepares its data sets first where needed, and announces that."""
    if name not in _PROTOCOLS:
        raise UserError(f"There is no data set {name!r}{did_you_mean(name, _PROTOCOLS)}")
    return Protocol(
        name, _PROTOCOLS[name](lambda set_name: load_set(set_name, cache=cache, announce=announce))
    )
