"""A cache of features on disk: one SQLite file per network, looked up by the content of each item."""

import hashlib
import sqlite3
import warnings
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from gpldla.backbones import Backbone
from gpldla.data.decoding import mode_of
from gpldla.data.paths import DataPaths
from gpldla.data.pictures import picture_in_memory
from gpldla.utils.errors import UserError

CACHE_FORMAT = 1  # increase it if the same item gives other features than before: invalidates older caches
LOCK_TIMEOUT = 30.0  # seconds to wait for another process that writes to the same cache


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


def item_key(item: Any, backbone: Backbone, device: torch.device) -> bytes:
    """Return a digest of everything except the network that determines an item's features."""
    digest = hashlib.sha256(f"{CACHE_FORMAT} {device.type} ".encode())
    if backbone.reads == "texts":
        digest.update(b"text " + item.encode())
    elif isinstance(item, (str, Path)):
        try:
            digest.update(b"file " + Path(item).read_bytes())
        except (OSError, ValueError) as error:
            raise UserError(f"{item} cannot be read as an image ({error}); replace or remove it.") from None
    elif isinstance(item, bytes):
        digest.update(b"file " + item)
    elif isinstance(item, np.ndarray):
        digest.update(f"array {item.dtype} {item.shape} ".encode() + item.tobytes())
    elif isinstance(item, Image.Image):
        # In the network's mode, as palettes and transparency matter, too.
        picture = picture_in_memory(item, mode_of(backbone.preprocessing.channels))
        digest.update(f"picture {picture.mode} {picture.size} ".encode() + picture.tobytes())
    return digest.digest()
