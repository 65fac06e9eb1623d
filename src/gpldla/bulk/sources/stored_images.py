"""The images of a data set as a source."""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from gpldla.bulk.sources.base import CONTENT, ITEM, Kind, Source, Survey, Unit

if TYPE_CHECKING:
    from gpldla.data import Access, ImageSet


@dataclass(frozen=True)
class StoredImages(Source):
    """The images of a data set, from its packed store; `size` is the network's input size in pixels."""

    name: str
    size: int
    access: "Access"
    kind: Kind = "pictures"
    _opened: "list[ImageSet]" = field(default_factory=list, repr=False, compare=False)

    def __getstate__(self) -> dict[str, Any]:
        # Another process opens the store itself, from the same folders, and has no console.
        from gpldla.data import Access, DataPaths

        paths = DataPaths(self.access.data_paths.root.absolute(), self.access.data_paths.cache.absolute())
        return vars(self) | {"access": Access(paths, skip_bad=self.access.skip_bad), "_opened": []}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)

    def _images(self) -> "ImageSet":
        from gpldla.data import load_set

        if not self._opened:
            self._opened.append(load_set(self.name, size=self.size, access=self.access))
        return self._opened[0]

    def survey(self, chunk_size: int) -> Survey:
        """Open the store, after packing it if needed; each chunk is a unit."""
        images = self._images()
        facts = [self.name, images.class_names, images.counts.tolist(), images.images.shape]
        edges = [*range(0, len(images.images), chunk_size), len(images.images)]
        units = [
            Unit(index, [end - start], [start, end]) for index, (start, end) in enumerate(pairwise(edges))
        ]
        return Survey(units, hashlib.sha256(repr(facts).encode()).hexdigest())

    def read(self, unit: Unit) -> Iterator[tuple[int, pa.Table]]:
        """Yield the pixels, with the class of each image as `label`."""
        images = self._images()
        indices = np.arange(*unit.where)
        labels = np.searchsorted(np.cumsum(images.counts), indices, side="right")
        names = [images.class_names[label] for label in labels]
        indices_in_class = indices - images.offsets[labels]
        items = [f"{self.name}/{name}/{i}" for name, i in zip(names, indices_in_class)]
        columns = {
            ITEM: pa.array(items, pa.string()),
            CONTENT: pa.array([pixels.tobytes() for pixels in images.read(indices)], pa.binary()),
            "label": pa.array(names, pa.string()),
        }
        yield unit.first, pa.table(columns)

    def picture(self, content: bytes) -> np.ndarray:
        """Return pixels [height, width] or [height, width, 3]."""
        pixels = np.frombuffer(content, np.uint8).reshape(self._images().images.shape[1:])
        return pixels.transpose(1, 2, 0).squeeze(-1) if len(pixels) == 1 else pixels.transpose(1, 2, 0)
