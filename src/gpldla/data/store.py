"""Packed image stores: one memory-mapped uint8 array with its manifest, opened in milliseconds."""

import glob
import hashlib
import json
import mmap
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from gpldla.utils.errors import UserError
from gpldla.utils.files import write_json

FORMAT = 2
IMAGES, MANIFEST = "images.u8", "manifest.json"
ARRAYS = ("groups", "shapes")  # optional, one file each
ABANDONED_AFTER = 3600.0  # seconds without a write after which an unfinished store is removed


def _eighth_of_memory() -> int:
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 8
    except (AttributeError, ValueError, OSError):  # such as on Windows
        return 1 << 30


RELEASE_EVERY = _eighth_of_memory()  # bytes read from a store before its pages are given back


@dataclass(frozen=True)
class ImageSet:
    """Images of one data set, sorted by class.

    images:      uint8 [n_images, channels, height, width], often memory-mapped
    class_names: one name per class
    counts:      int64 [n_classes], images per class; class j has a contiguous run of `images`
    groups:      int64 [n_images] or None; images of one group are related (fonts of one family)
                 and should not be both support and query
    shapes:      int32 [n_images, 2] or None; height and width before an image was made square
    mapping:     the memory map of `images`, where there is one
    """

    name: str
    images: np.ndarray
    class_names: tuple[str, ...]
    counts: np.ndarray
    groups: np.ndarray | None = None
    shapes: np.ndarray | None = None
    mapping: mmap.mmap | None = field(default=None, repr=False, compare=False)
    _read: list[int] = field(default_factory=lambda: [0], init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.images.dtype != np.uint8 or self.images.ndim != 4:
            raise UserError(f"Images of {self.name!r} must be uint8 [n, channels, height, width].")
        if len(self.class_names) != len(self.counts) or int(self.counts.sum()) != len(self.images):
            raise UserError(f"Class counts of {self.name!r} do not add up to its {len(self.images)} images.")
        if self.groups is not None and self.groups.shape != (len(self.images),):
            raise UserError(f"{self.name!r} must have one group for each of its {len(self.images)} images.")
        if self.shapes is not None and self.shapes.shape != (len(self.images), 2):
            raise UserError(f"{self.name!r} must have one shape for each of its {len(self.images)} images.")

    @property
    def offsets(self) -> np.ndarray:
        """Index of the first image of each class, int64 [n_classes]."""
        return np.concatenate([[0], np.cumsum(self.counts)[:-1]]).astype(np.int64)

    @property
    def labels(self) -> np.ndarray:
        """Class index of each image, int64 [n_images]."""
        return np.repeat(np.arange(len(self.counts)), self.counts)

    def read(self, indices: np.ndarray) -> np.ndarray:
        """Return copies of some images, uint8 [len(indices), channels, height, width].

        Pages of the mapping are released after every RELEASE_EVERY bytes, so that memory use does not grow
        with the store; the system keeps them in its page cache while it has room.
        """
        copies = np.take(self.images, indices, axis=0)
        if self.mapping is not None and hasattr(mmap, "MADV_DONTNEED"):
            self._read[0] += copies.nbytes
            if self._read[0] >= RELEASE_EVERY:
                self._read[0] = 0
                self.mapping.madvise(mmap.MADV_DONTNEED)
        return copies


class StoreWriter:
    """Writes images one after the other to a store that appears only when it is complete."""

    def __init__(self, unfinished: Path, image_shape: tuple[int, int, int]) -> None:
        self._folder, self._image_shape = unfinished, image_shape
        self._file = (unfinished / IMAGES).open("wb")
        self._hash = hashlib.sha256()
        self._count = 0

    def add(self, images: np.ndarray) -> None:
        """Append images, uint8 [n, channels, height, width]."""
        content = np.ascontiguousarray(images).data
        self._file.write(content)
        self._hash.update(content)
        self._count += len(images)

    def finish(
        self,
        name: str,
        class_names: Sequence[str],
        counts: Sequence[int] | np.ndarray,
        source: dict[str, Any],
        **arrays: np.ndarray | None,
    ) -> None:
        """Write the manifest, and `groups` and `shapes` if they are given."""
        self._file.flush()
        os.fsync(self._file.fileno())  # a power cut must not leave a store that only looks complete
        self.close()
        for array_name, array in arrays.items():
            if array is not None:
                np.save(self._folder / f"{array_name}.npy", array)
        manifest = {
            "format": FORMAT,
            "name": name,
            "source": source,
            "shape": [self._count, *self._image_shape],
            "sha256": self._hash.hexdigest(),
            "classes": [
                {"name": class_name, "images": int(count)} for class_name, count in zip(class_names, counts)
            ],
        }
        write_json(self._folder / MANIFEST, manifest, indent=1)

    def close(self) -> None:
        """Close the file of images."""
        self._file.close()


@contextmanager
def new_store(folder: Path, image_shape: tuple[int, int, int]) -> Iterator[StoreWriter]:
    """Yield a writer for the store `folder`, which appears complete at the end or not at all."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    _remove_abandoned(folder)
    unfinished = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    writer = StoreWriter(unfinished, image_shape)
    try:
        yield writer
        unfinished.chmod(0o755)  # mkdtemp's 0700 would lock other users out of a shared cache
        try:
            unfinished.rename(folder)
        except OSError:
            if not (folder / MANIFEST).exists():  # else another process has just written the same
                raise
    finally:
        writer.close()
        shutil.rmtree(unfinished, ignore_errors=True)


def _remove_abandoned(folder: Path) -> None:
    """Remove unfinished copies of the same store that killed processes left."""
    for path in folder.parent.glob(f".{glob.escape(folder.name)}-*"):
        try:
            last_write = max(file.stat().st_mtime for file in [path, *path.iterdir()])
        except OSError:  # its owner has just finished
            continue
        if time.time() - last_write > ABANDONED_AFTER:
            shutil.rmtree(path, ignore_errors=True)


def write_store(folder: Path, image_set: ImageSet, source: dict[str, Any]) -> None:
    """Write an image set in memory to `folder`."""
    with new_store(folder, image_set.images.shape[1:]) as writer:
        writer.add(image_set.images)
        writer.finish(
            image_set.name,
            image_set.class_names,
            image_set.counts,
            source,
            groups=image_set.groups,
            shapes=image_set.shapes,
        )


def open_store(folder: Path) -> ImageSet:
    """Open a store; the images stay on disk until they are read."""
    try:
        manifest = read_manifest(folder)
        mapping, images = _map_images(folder / IMAGES, tuple(manifest["shape"]))
        arrays = {
            name: np.load(folder / f"{name}.npy", allow_pickle=False) if path.exists() else None
            for name in ARRAYS
            for path in [folder / f"{name}.npy"]
        }
        return ImageSet(
            name=manifest["name"],
            images=images,
            class_names=tuple(c["name"] for c in manifest["classes"]),
            counts=np.array([c["images"] for c in manifest["classes"]], dtype=np.int64),
            mapping=mapping,
            **arrays,
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError, EOFError) as error:
        raise UserError(
            f"{folder} is not a readable store ({error}); delete it and it is packed again."
        ) from error


def read_manifest(folder: Path) -> dict[str, Any]:
    """Return the manifest of a store; raises OSError or ValueError where it cannot be read."""
    manifest = json.loads((folder / MANIFEST).read_text("utf-8"))
    if not isinstance(manifest, dict):
        raise ValueError("the manifest is not a table")
    if manifest.get("format") != FORMAT:
        raise ValueError(f"format {manifest.get('format')}, not {FORMAT}")
    return manifest


def _map_images(path: Path, shape: tuple[int, ...]) -> tuple[mmap.mmap | None, np.ndarray]:
    size, wanted = path.stat().st_size, int(np.prod(shape, dtype=np.int64))
    if size != wanted:
        raise ValueError(f"{path.name} has {size} bytes, not {wanted}")
    if size == 0:  # an empty file cannot be mapped
        return None, np.empty(shape, np.uint8)
    with path.open("rb") as file:
        mapping = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    return mapping, np.frombuffer(mapping, np.uint8).reshape(shape)


def store_folder(cache: Path, name: str, settings: dict[str, Any]) -> Path:
    """Return the folder of the store with these settings, which its images depend on.

    A hash of the settings is part of the name, so that other settings never open a stale store.
    """
    text = json.dumps([FORMAT, settings], sort_keys=True)
    return cache / f"{name}-{hashlib.sha256(text.encode()).hexdigest()[:10]}"


def cached_store(folder: Path, make: Callable[[], None]) -> ImageSet:
    """Open the store `folder`; if it is missing, `make` writes it first."""
    # In this order: another process may finish the store between the two checks.
    if folder.exists() and not (folder / MANIFEST).exists():
        raise UserError(f"{folder} is not a complete store; delete it and it is packed again.")
    if not (folder / MANIFEST).exists():
        try:
            make()
        except OSError as error:
            raise UserError(f"{folder} cannot be written ({error}); choose another cache folder.") from None
    return open_store(folder)


def image_set_from_classes(
    name: str,
    class_names: Sequence[str],
    images_of_class: Sequence[np.ndarray],
    groups_of_class: Sequence[np.ndarray] | None = None,
) -> ImageSet:
    """Join uint8 arrays [n_j, channels, height, width], one per class, to an ImageSet."""
    return ImageSet(
        name=name,
        images=np.concatenate(list(images_of_class)),
        class_names=tuple(class_names),
        counts=np.array([len(images) for images in images_of_class], dtype=np.int64),
        groups=None if groups_of_class is None else np.concatenate(list(groups_of_class)).astype(np.int64),
    )
