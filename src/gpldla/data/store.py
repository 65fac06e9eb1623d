"""Packed image stores: one memory-mapped uint8 array with its manifest, opened in milliseconds."""

import glob
import hashlib
import json
import math
import mmap
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np

from gpldla.data.store_checksums import ChunkChecksums, ChunkHasher, images_changed
from gpldla.data.store_manifest import FORMAT, MANIFEST, read_manifest, write_manifest
from gpldla.utils.checksums import file_checksum
from gpldla.utils.errors import UserError, first_line
from gpldla.utils.files import write_atomically

IMAGES, CHECKSUMS = "images.u8", "images.sha256"
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
    checksums:   those of `images`, which `read` verifies, where there are some
    """

    name: str
    images: np.ndarray
    class_names: tuple[str, ...]
    counts: np.ndarray
    groups: np.ndarray | None = None
    shapes: np.ndarray | None = None
    mapping: mmap.mmap | None = field(default=None, repr=False, compare=False)
    checksums: ChunkChecksums | None = field(default=None, repr=False, compare=False)
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

        What is read for the first time is compared with its checksum. Pages of the mapping are released
        after every RELEASE_EVERY bytes, so that memory use does not grow with the store; the system keeps
        them in its page cache while it has room.
        """
        copies = np.take(self.images, indices, axis=0)
        verified = 0
        if self.checksums is not None and copies.size:
            size = copies[0].nbytes
            first = (
                np.asarray(indices, np.int64) % len(self.images) * size
            )  # counted from the end if negative
            verified = self.checksums.verify(first, first + size - 1)
        if self.mapping is not None and hasattr(mmap, "MADV_DONTNEED"):
            self._read[0] += copies.nbytes + verified
            if self._read[0] >= RELEASE_EVERY:
                self._read[0] = 0
                self.mapping.madvise(mmap.MADV_DONTNEED)
        return copies


class StoreWriter:
    """Writes images one after the other to a store that appears only when it is complete."""

    def __init__(self, unfinished: Path, image_shape: tuple[int, int, int]) -> None:
        self._folder, self._image_shape = unfinished, image_shape
        self._file = (unfinished / IMAGES).open("wb")
        self._hash, self._chunks = hashlib.sha256(), ChunkHasher()
        self._count = 0

    def add(self, images: np.ndarray) -> None:
        """Append images, uint8 [n, channels, height, width]."""
        content = np.ascontiguousarray(images).reshape(-1).data
        self._file.write(content)
        self._hash.update(content)
        self._chunks.update(content)
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
        digests = self._chunks.digests()
        write_atomically(self._folder / CHECKSUMS, digests)
        sha256 = {IMAGES: self._hash.hexdigest(), CHECKSUMS: hashlib.sha256(digests).hexdigest()}
        for array_name, array in arrays.items():
            if array is not None:
                file = self._folder / f"{array_name}.npy"
                np.save(file, array)
                sha256[file.name] = file_checksum(file)
        facts = {
            "name": name,
            "source": source,
            "shape": [self._count, *self._image_shape],
            "sha256": sha256[IMAGES],
            "files": sha256,
            "classes": [
                {"name": class_name, "images": int(count)} for class_name, count in zip(class_names, counts)
            ],
        }
        write_manifest(self._folder, facts)

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
    """Open a store; the images stay on disk until they are read, and are compared with checksums then."""
    try:
        manifest = read_manifest(folder)
        sha256 = manifest.get("files", {})  # of earlier versions there is none
        mapping, images = _map_images(folder / IMAGES, tuple(manifest["shape"]))
        checksums = None
        if CHECKSUMS in sha256:
            digests = _checked_bytes(folder / CHECKSUMS, sha256)
            checksums = ChunkChecksums(folder, images.reshape(-1), digests)
        return ImageSet(
            name=manifest["name"],
            images=images,
            class_names=tuple(c["name"] for c in manifest["classes"]),
            counts=np.array([c["images"] for c in manifest["classes"]], dtype=np.int64),
            mapping=mapping,
            checksums=checksums,
            **{name: _read_array(folder / f"{name}.npy", sha256) for name in ARRAYS},
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError, EOFError) as error:
        raise UserError(
            f"{folder} is not a readable store ({error}); delete it and it is packed again."
        ) from error


def check_store(folder: Path) -> ImageSet:
    """Open a store and compare all of its images with their checksum; raise a sentence if they differ."""
    opened = open_store(folder)
    if opened.checksums is not None:
        step = max(1, (1 << 26) // max(1, math.prod(opened.images.shape[1:])))
        for first in range(0, len(opened.images), step):
            opened.read(np.arange(first, min(first + step, len(opened.images))))
    elif file_checksum(folder / IMAGES) != read_manifest(folder).get("sha256"):
        raise images_changed(folder)
    return opened


def _checked_bytes(file: Path, sha256: dict[str, str]) -> bytes:
    """Return the content of a file; raises ValueError if it is not the one that was written."""
    content = file.read_bytes()
    if file.name in sha256 and hashlib.sha256(content).hexdigest() != sha256[file.name]:
        raise ValueError(f"the checksum of {file.name} does not match")
    return content


def _read_array(file: Path, sha256: dict[str, str]) -> np.ndarray | None:
    """Return a .npy file of whole numbers, or None where there is none."""
    if not file.exists() and file.name not in sha256:
        return None
    content = _checked_bytes(file, sha256)
    try:
        array = np.load(BytesIO(content), allow_pickle=False)
    except Exception as error:  # NumPy evaluates the header, which raises exceptions of all kinds
        raise ValueError(f"{file.name} is no array ({first_line(error)})") from None
    if not (isinstance(array, np.ndarray) and np.issubdtype(array.dtype, np.integer)):
        raise ValueError(f"{file.name} is no array of whole numbers")
    return array


def _map_images(path: Path, shape: tuple[int, ...]) -> tuple[mmap.mmap | None, np.ndarray]:
    size, wanted = path.stat().st_size, math.prod(shape)
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
