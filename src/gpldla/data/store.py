"""Packed image stores: one memory-mapped uint8 array with its manifest, opened in milliseconds."""

import hashlib
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from gpldla.errors import UserError

FORMAT = 1


@dataclass(frozen=True)
class ImageSet:
    """Images of one data set, sorted by class.

    images:      uint8 [n_images, channels, height, width], often memory-mapped
    class_names: one name a class
    counts:      int64 [n_classes], images a class; class j owns a contiguous run of `images`
    groups:      int64 [n_images] or None; images of one group are siblings (fonts of one family,
                 drawings of one person), which an honest test keeps apart
    """

    name: str
    images: np.ndarray
    class_names: tuple[str, ...]
    counts: np.ndarray
    groups: np.ndarray | None = None

    def __post_init__(self) -> None:
        if self.images.dtype != np.uint8 or self.images.ndim != 4:
            raise UserError(f"Images of {self.name!r} must be uint8 [n, channels, height, width].")
        if len(self.class_names) != len(self.counts) or int(self.counts.sum()) != len(self.images):
            raise UserError(f"Class counts of {self.name!r} do not add up to its {len(self.images)} images.")
        if self.groups is not None and self.groups.shape != (len(self.images),):
            raise UserError(f"{self.name!r} must have one group for each of its {len(self.images)} images.")

    @property
    def offsets(self) -> np.ndarray:
        """Index of the first image of each class, int64 [n_classes]."""
        return np.concatenate([[0], np.cumsum(self.counts)[:-1]]).astype(np.int64)

    @property
    def labels(self) -> np.ndarray:
        """Class index of each image, int64 [n_images]."""
        return np.repeat(np.arange(len(self.counts)), self.counts)


def cache_folder(cache: str | Path | None = None) -> Path:
    """Return where packed stores live: `cache`, then GPLDLA_CACHE, then the platform's cache folder."""
    chosen = cache or os.environ.get("GPLDLA_CACHE")
    return Path(chosen).expanduser() if chosen else _platform_cache() / "gpldla"


def _platform_cache() -> Path:
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")


def write_store(folder: Path, image_set: ImageSet, source: dict[str, Any]) -> None:
    """Write `image_set` to `folder`, which appears whole or not at all."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    unfinished = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        np.save(unfinished / "images.npy", image_set.images)
        if image_set.groups is not None:
            np.save(unfinished / "groups.npy", image_set.groups.astype(np.int64))
        manifest = {
            "format": FORMAT,
            "name": image_set.name,
            "source": source,
            "shape": list(image_set.images.shape),
            "sha256": hashlib.sha256(np.ascontiguousarray(image_set.images).data).hexdigest(),
            "classes": [
                {"name": name, "images": int(count)}
                for name, count in zip(image_set.class_names, image_set.counts)
            ],
        }
        (unfinished / "manifest.json").write_text(json.dumps(manifest, ensure_ascii=False, indent=1), "utf-8")
        unfinished.chmod(0o755)  # mkdtemp's 0700 would lock other users out of a shared cache
        try:
            unfinished.rename(folder)
        except OSError:
            if not (folder / "manifest.json").exists():  # else another process has just written the same
                raise
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def open_store(folder: Path) -> ImageSet:
    """Open a store written by `write_store`; the images stay on disk until they are read."""
    try:
        manifest = json.loads((folder / "manifest.json").read_text("utf-8"))
        images = np.load(folder / "images.npy", mmap_mode="r", allow_pickle=False)
        groups_file = folder / "groups.npy"
        groups = np.load(groups_file, allow_pickle=False) if groups_file.exists() else None
        if manifest["format"] != FORMAT:
            raise ValueError(f"format {manifest['format']}, not {FORMAT}")
        return ImageSet(
            name=manifest["name"],
            images=images,
            class_names=tuple(c["name"] for c in manifest["classes"]),
            counts=np.array([c["images"] for c in manifest["classes"]], dtype=np.int64),
            groups=groups,
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError, EOFError) as error:
        raise UserError(
            f"{folder} is not a readable store ({error}); delete it and it is packed anew."
        ) from error


def cached_store(
    name: str,
    settings: dict[str, Any],
    make: Callable[[], ImageSet],
    *,
    cache: str | Path | None = None,
    announce: Callable[[str], None] = lambda message: None,
) -> ImageSet:
    """Open the store that `settings` describe, making it first where it is missing.

    `settings` are what the images depend on; they become part of the folder's name, so that other
    settings never meet a stale store.
    """
    fingerprint = hashlib.sha256(json.dumps([FORMAT, settings], sort_keys=True).encode()).hexdigest()[:10]
    folder = cache_folder(cache) / f"{name}-{fingerprint}"
    if not (folder / "manifest.json").exists():
        announce(f"Preparing {name} in {folder}")
        image_set = make()
        try:
            write_store(folder, image_set, settings)
        except OSError as error:
            raise UserError(f"{folder} cannot be written ({error}); choose another cache folder.") from None
    return open_store(folder)


def image_set_from_classes(
    name: str,
    class_names: Sequence[str],
    images_of_class: Sequence[np.ndarray],
    groups_of_class: Sequence[np.ndarray] | None = None,
) -> ImageSet:
    """Join one uint8 array [n_j, channels, height, width] a class to an ImageSet."""
    return ImageSet(
        name=name,
        images=np.concatenate(list(images_of_class)),
        class_names=tuple(class_names),
        counts=np.array([len(images) for images in images_of_class], dtype=np.int64),
        groups=None if groups_of_class is None else np.concatenate(list(groups_of_class)).astype(np.int64),
    )
