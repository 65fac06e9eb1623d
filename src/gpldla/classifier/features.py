"""Features of pictures or texts, computed in batches and cached on disk."""

import hashlib
import os
import sqlite3
import warnings
import zlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

from gpldla.backbones import Backbone
from gpldla.data.augment.transforms import evaluation_images
from gpldla.data.decoding import in_mode, mode_of
from gpldla.data.paths import DataPaths
from gpldla.data.pictures import picture_tensor
from gpldla.data.preprocessing import Preprocessing, Reads
from gpldla.utils.errors import UserError
from gpldla.utils.modules import evaluating
from gpldla.utils.progress import SILENT, Reporter

# Eight pictures of 84 px, or four of 224: maps of larger batches exceed a CPU's caches, and each picture then
# takes twice the time.
CPU_BATCH_PIXELS, CPU_MIN_BATCH = 8 * 84**2, 4
READERS = min(16, os.cpu_count() or 1)  # threads that decode while the network computes; a GPU waits for them
CACHE_FORMAT = 1  # increase it if the same item gives other features than before: invalidates older caches
LOCK_TIMEOUT = 30.0  # seconds to wait for another process that writes to the same cache


@torch.no_grad()
def embed(
    backbone: Backbone,
    items: Any,
    *,
    batch_size: int = 64,
    cache: "FeatureCache | None" = None,
    reporter: Reporter = SILENT,
) -> Tensor:
    """Compute the features of n pictures or texts, as the backbone reads them, float32 [n, feature_dim].

    The network runs on its device, in evaluation mode and without gradients; its flags do not change.

    batch_size: the most items at once; on a CPU large pictures go through the network four at a time
    cache: features that it contains are not computed again, and their picture files are not decoded. They may
        differ in the last bits from those of a new computation, as the order of summation depends on the size
        of the batch and on the longest text in it.
    """
    items = list_items(items, backbone.reads)
    if not isinstance(batch_size, int) or batch_size < 1:
        raise UserError(f"batch_size must be a whole number from 1 on, not {batch_size!r}.")
    device, dtype = device_of(backbone), next(backbone.parameters(), torch.empty(0)).dtype
    features = torch.empty(len(items), backbone.feature_dim)
    keys: list[bytes] = []
    missing = list(range(len(items)))
    if cache is not None:
        keys = [_key(backbone, items, index, device) for index in missing]
        missing = cache.fill(features.numpy(), keys)
    if backbone.reads == "texts":
        missing.sort(key=lambda index: len(items[index]))  # texts of one length need no padding
        batches = _split(missing, batch_size)
        inputs: Iterator[Any] = ((batch, [items[index] for index in batch]) for batch in batches)
    else:
        size = backbone.preprocessing.size
        batches = _split(missing, cpu_batch_size(size, batch_size) if device.type == "cpu" else batch_size)
        inputs = _read_batches(items, batches, backbone.preprocessing, device)
    network = evaluating(backbone)
    with reporter.bar("features", len(items)) as advance, torch.autocast(device.type, enabled=False):
        advance(len(items) - len(missing))
        for batch, batch_input in inputs:
            batch_input = batch_input.to(dtype) if isinstance(batch_input, Tensor) else batch_input
            rows = network.features(batch_input).float().cpu()
            features[batch] = rows
            if cache is not None:
                cache.add([keys[index] for index in batch], rows.numpy())
            advance(len(batch))
    return features.to(device)


def device_of(network: nn.Module) -> torch.device:
    """Return where a network is: on the CPU if it has no parameters."""
    return next(network.parameters(), torch.empty(0)).device


def list_items(items: Any, reads: Reads) -> list[Any]:
    """Return a user's pictures or strings as a list; refuse a single one, and tables."""
    is_single = isinstance(items, (str, bytes, Path, Image.Image)) or not hasattr(items, "__iter__")
    if isinstance(items, np.ndarray):
        # Rows of a colour picture would pass as grey pictures.
        is_single = items.ndim == 0 or (reads == "pictures" and items.ndim == 3 and items.shape[2] in (3, 4))
    if is_single:
        raise UserError(f"Give a list of {reads}, not a single one.")
    if hasattr(items, "columns"):
        raise UserError(f"Give one column of {reads}, not a table with the columns {list(items.columns)}.")
    listed = list(items)
    return [_text(text, index) for index, text in enumerate(listed)] if reads == "texts" else listed


class FeatureCache:
    """A cache of features, by a digest of the item: one SQLite file per network.

    Any number of processes may share it. If it cannot be read or written, it calls `warn` once, and the
    features are computed without it.
    """

    def __init__(self, file: Path, *, warn: Callable[[str], None] = warnings.warn) -> None:
        self._file, self._warn = file, warn
        self._readable = self._writable = True

    @classmethod
    def of(
        cls,
        backbone: Backbone,
        data_paths: DataPaths | None = None,
        *,
        warn: Callable[[str], None] = warnings.warn,
    ) -> "FeatureCache":
        """Return the cache of a backbone with its current weights; after training, make a new one."""
        folder = (data_paths or DataPaths()).cache / "features"
        return cls(folder / f"{backbone.fingerprint()}.sqlite", warn=warn)

    def fill(self, features: np.ndarray, keys: Sequence[bytes]) -> list[int]:
        """Fill rows of `features` [n, d], one per key, from the cache; return the indices of missing ones."""
        found = set()
        try:
            if self._readable and self._file.exists():
                with self._opened() as connection:
                    for index, key in enumerate(keys):
                        row = connection.execute(
                            "SELECT value, checksum FROM features WHERE key = ?", (key,)
                        ).fetchone()
                        if _is_intact(row, features[index].nbytes):
                            features[index] = np.frombuffer(row[0], "<f4")
                            found.add(index)
        except (sqlite3.Error, OSError) as error:
            self._readable = False
            self._give_up(error)
        return [index for index in range(len(keys)) if index not in found]

    def add(self, keys: Sequence[bytes], features: np.ndarray) -> None:
        """Store rows [n, d], one per key."""
        if not self._writable:
            return
        values = [row.astype("<f4").tobytes() for row in features]
        rows = [(key, value, zlib.crc32(value)) for key, value in zip(keys, values)]
        try:
            self._file.parent.mkdir(parents=True, exist_ok=True)
            with self._opened() as connection, connection:  # one short transaction
                connection.executemany("INSERT OR REPLACE INTO features VALUES (?, ?, ?)", rows)
        except (sqlite3.Error, OSError) as error:
            self._give_up(error)

    @contextmanager
    def _opened(self) -> Iterator[sqlite3.Connection]:
        """Open the file for one operation: an open connection would not survive a fork or a pickle."""
        with closing(sqlite3.connect(self._file, timeout=LOCK_TIMEOUT)) as connection:
            # Do not wait for the disk: SQLite and the checksums detect what a power cut damages.
            connection.execute("PRAGMA synchronous = OFF")
            connection.execute(
                "CREATE TABLE IF NOT EXISTS features"
                " (key BLOB PRIMARY KEY, value BLOB NOT NULL, checksum INTEGER NOT NULL)"
            )
            yield connection

    def _give_up(self, error: Exception) -> None:
        if self._writable:
            self._writable = False
            self._warn(
                f"The feature cache {self._file} cannot be used ({error}), so features are computed"
                " without it; delete it if it is damaged."
            )


def _is_intact(row: tuple[Any, Any] | None, size: int) -> bool:
    """Return whether a value is undamaged: SQLite does not detect all damage to its file."""
    if row is None:
        return False
    value, checksum = row
    return isinstance(value, bytes) and len(value) == size and zlib.crc32(value) == checksum


def _key(backbone: Backbone, items: list[Any], index: int, device: torch.device) -> bytes:
    """Return a digest of everything except the network that determines an item's features."""
    item = items[index]
    digest = hashlib.sha256(f"{CACHE_FORMAT} {device.type} ".encode())
    if backbone.reads == "texts":
        digest.update(b"text " + item.encode())
    elif isinstance(item, (str, Path)):
        try:
            digest.update(b"file " + Path(item).read_bytes())
        except (OSError, ValueError) as error:
            raise UserError(f"{item} cannot be read as an image ({error}); replace or remove it.") from None
    elif isinstance(item, np.ndarray):
        digest.update(f"array {item.dtype} {item.shape} ".encode() + item.tobytes())
    elif isinstance(item, Image.Image):
        # In the network's mode, as palettes and transparency matter, too.
        picture = _name_in_errors(index, in_mode, item, mode_of(backbone.preprocessing.channels))
        digest.update(f"picture {picture.mode} {picture.size} ".encode() + picture.tobytes())
    return digest.digest()


def _split(indices: list[int], batch_size: int) -> list[list[int]]:
    return [indices[start : start + batch_size] for start in range(0, len(indices), batch_size)]


def cpu_batch_size(size: int, most: int) -> int:
    """Return the batch size on a CPU for pictures of size × size pixels, at most `most`."""
    return min(most, max(CPU_MIN_BATCH, CPU_BATCH_PIXELS // size**2))


def _read_batches(
    items: list[Any], batches: list[list[int]], preprocessing: Preprocessing, device: torch.device
) -> Iterator[tuple[list[int], Tensor]]:
    """Yield each batch of indices with its pictures as the network expects them, [n, c, size, size].

    While the network computes one batch, threads decode the next.
    """
    with ThreadPoolExecutor(READERS) as pool:

        def reader(index: int) -> Callable[[], Tensor]:
            read = partial(_name_in_errors, index, picture_tensor, items[index], preprocessing)
            # Files only: a Pillow picture may be in the list twice, and threads must not share it.
            return pool.submit(read).result if isinstance(items[index], (str, Path)) else read

        upcoming = [reader(index) for index in batches[0]] if batches else []
        for batch, following in zip(batches, [*batches[1:], []]):
            readers, upcoming = upcoming, [reader(index) for index in following]
            pixels = torch.stack([read() for read in readers]).to(device)
            images = evaluation_images(pixels, preprocessing)
            yield batch, images.contiguous(memory_format=torch.channels_last)


def read_pictures(
    pictures: Sequence[Any], batch_size: int, preprocessing: Preprocessing, device: torch.device
) -> Iterator[Tensor]:
    """Yield a user's pictures in batches as a network expects them, [n, c, size, size]."""
    listed = list_items(pictures, "pictures")
    batches = _split(list(range(len(listed))), batch_size)
    return (images for _, images in _read_batches(listed, batches, preprocessing, device))


def _name_in_errors(index: int, read: Callable[[Any, Any], Any], item: Any, form: Any) -> Any:
    """Read a picture; errors name its index in the list, or its file."""
    try:
        return read(item, form)
    except Exception as error:  # decoders of damaged files raise all kinds
        if isinstance(item, (str, Path)):
            raise  # names the file already
        if isinstance(error, UserError):
            raise UserError(f"pictures[{index}]: {error}") from None
        raise UserError(
            f"pictures[{index}] cannot be read as an image ({error}); replace or remove it."
        ) from None


def _text(text: Any, index: int) -> str:
    if not isinstance(text, str):
        raise UserError(
            f"texts[{index}] is of type {type(text).__name__}, not a string; leave it out or fill it in."
        )
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise UserError(f"texts[{index}] is not valid Unicode ({error}); decode it again.") from None
    return str(text)  # turns a string of NumPy into a plain one
