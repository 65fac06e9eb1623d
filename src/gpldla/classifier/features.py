"""From pictures or texts to features, in batches, remembering on disk what was computed before."""

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

# Eight pictures of 84 px, or four of 224: with more at once the maps of a network leave a CPU's caches, and
# each picture takes twice the time.
CPU_BATCH_PIXELS, CPU_MIN_BATCH = 8 * 84**2, 4
READERS = min(16, os.cpu_count() or 1)  # threads that decode while the network computes: a GPU waits for them
CACHE_FORMAT = 1  # to be raised when the same item comes to give other features, and older ones must go
LOCK_TIMEOUT = 30.0  # for another process that writes to the same cache


@torch.no_grad()
def embed(
    backbone: Backbone,
    items: Any,
    *,
    batch_size: int = 64,
    cache: "FeatureCache | None" = None,
    reporter: Reporter = SILENT,
) -> Tensor:
    """Turn n pictures or texts, whatever the backbone reads, to its features, float32 [n, feature_dim].

    The network computes where it is, in evaluation mode and without gradients; its training flags stay.

    batch_size: the most items at once; on a CPU large pictures go through the network four at a time
    cache: what it knows is not computed again, and picture files that it knows are not even decoded. A
        number may differ in its last bits from what would be computed now, as networks sum in an order that
        depends on how many items they see at once, and on the longest text among them.
    """
    items = list_items(items, backbone.reads)
    if not isinstance(batch_size, int) or batch_size < 1:
        raise UserError(f"batch_size must be a whole number from 1 on, not {batch_size!r}.")
    device, dtype = device_of(backbone), next(backbone.parameters(), torch.empty(0)).dtype
    features = torch.empty(len(items), backbone.feature_dim)
    keys: list[bytes] = []
    missing = list(range(len(items)))
    if cache is not None:
        keys = [_key(backbone, items, place, device) for place in missing]
        missing = cache.fill(features.numpy(), keys)
    if backbone.reads == "texts":
        missing.sort(key=lambda place: len(items[place]))  # texts of one length need no padding
        batches = _split(missing, batch_size)
        inputs: Iterator[Any] = ((batch, [items[place] for place in batch]) for batch in batches)
    else:
        size = backbone.preprocessing.size
        batches = _split(missing, cpu_batch_size(size, batch_size) if device.type == "cpu" else batch_size)
        inputs = _read_batches(items, batches, backbone.preprocessing, device)
    network = evaluating(backbone)
    with reporter.bar("features", len(items)) as advance, torch.autocast(device.type, enabled=False):
        advance(len(items) - len(missing))
        for batch, given in inputs:
            given = given.to(dtype) if isinstance(given, Tensor) else given
            rows = network.features(given).float().cpu()
            features[batch] = rows
            if cache is not None:
                cache.add([keys[place] for place in batch], rows.numpy())
            advance(len(batch))
    return features.to(device)


def device_of(network: nn.Module) -> torch.device:
    """Return where a network is: on the CPU if it has no parameters."""
    return next(network.parameters(), torch.empty(0)).device


def list_items(items: Any, reads: Reads) -> list[Any]:
    """Return what a user gave as a list of pictures or of strings; refuse one alone, and tables."""
    alone = isinstance(items, (str, bytes, Path, Image.Image)) or not hasattr(items, "__iter__")
    if isinstance(items, np.ndarray):
        # Rows of a colour picture would pass as grey pictures.
        alone = items.ndim == 0 or (reads == "pictures" and items.ndim == 3 and items.shape[2] in (3, 4))
    if alone:
        raise UserError(f"Give a list of {reads}, not a single one.")
    if hasattr(items, "columns"):
        raise UserError(f"Give one column of {reads}, not a table with the columns {list(items.columns)}.")
    listed = list(items)
    return [_text(text, place) for place, text in enumerate(listed)] if reads == "texts" else listed


class FeatureCache:
    """Features by what they were computed from: one SQLite file a network.

    Any number of processes may share it. It is there to save time only: where it cannot be read or written,
    it says so once and the work goes on without it.
    """

    def __init__(self, file: Path, *, say: Callable[[str], None] = warnings.warn) -> None:
        self._file, self._say = file, say
        self._readable = self._writable = True

    @classmethod
    def of(
        cls,
        backbone: Backbone,
        data_paths: DataPaths | None = None,
        *,
        say: Callable[[str], None] = warnings.warn,
    ) -> "FeatureCache":
        """Return the cache of a backbone with the weights that it has now; after training, take a new one."""
        folder = (data_paths or DataPaths()).cache / "features"
        return cls(folder / f"{backbone.fingerprint()}.sqlite", say=say)

    def fill(self, features: np.ndarray, keys: Sequence[bytes]) -> list[int]:
        """Write what is known to the rows of `features` [n, d], one a key; return where nothing is."""
        known = set()
        try:
            if self._readable and self._file.exists():
                with self._opened() as connection:
                    for place, key in enumerate(keys):
                        row = connection.execute(
                            "SELECT value, checksum FROM features WHERE key = ?", (key,)
                        ).fetchone()
                        if _is_intact(row, features[place].nbytes):
                            features[place] = np.frombuffer(row[0], "<f4")
                            known.add(place)
        except (sqlite3.Error, OSError) as error:
            self._readable = False
            self._give_up(error)
        return [place for place in range(len(keys)) if place not in known]

    def add(self, keys: Sequence[bytes], features: np.ndarray) -> None:
        """Remember rows [n, d], one a key."""
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
        """Open the file for a moment: nothing stays open that a fork or a pickle would trip over."""
        with closing(sqlite3.connect(self._file, timeout=LOCK_TIMEOUT)) as connection:
            # No waiting for the disk: what a power cut may damage, checksums and SQLite notice.
            connection.execute("PRAGMA synchronous = OFF")
            connection.execute(
                "CREATE TABLE IF NOT EXISTS features"
                " (key BLOB PRIMARY KEY, value BLOB NOT NULL, checksum INTEGER NOT NULL)"
            )
            yield connection

    def _give_up(self, error: Exception) -> None:
        if self._writable:
            self._writable = False
            self._say(
                f"The feature cache {self._file} cannot be used ({error}) and the work goes on without it;"
                " delete it if it is damaged."
            )


def _is_intact(row: tuple[Any, Any] | None, size: int) -> bool:
    """Tell whether a value is what was written: SQLite does not notice every damage to its file."""
    if row is None:
        return False
    value, checksum = row
    return isinstance(value, bytes) and len(value) == size and zlib.crc32(value) == checksum


def _key(backbone: Backbone, items: list[Any], place: int, device: torch.device) -> bytes:
    """Return a name for all that makes an item's features beside the network itself."""
    item = items[place]
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
        # In the network's own mode, as palettes and transparency count too.
        picture = _naming(place, in_mode, item, mode_of(backbone.preprocessing.channels))
        digest.update(f"picture {picture.mode} {picture.size} ".encode() + picture.tobytes())
    return digest.digest()


def _split(places: list[int], at_once: int) -> list[list[int]]:
    return [places[start : start + at_once] for start in range(0, len(places), at_once)]


def cpu_batch_size(size: int, most: int) -> int:
    """Return how many pictures of size × size pixels a CPU takes through a network at once."""
    return min(most, max(CPU_MIN_BATCH, CPU_BATCH_PIXELS // size**2))


def _read_batches(
    items: list[Any], batches: list[list[int]], preprocessing: Preprocessing, device: torch.device
) -> Iterator[tuple[list[int], Tensor]]:
    """Yield each batch and its pictures as the network wants them, [n, c, size, size].

    While the network is busy with one batch, threads decode the next.
    """
    with ThreadPoolExecutor(READERS) as pool:

        def reader(place: int) -> Callable[[], Tensor]:
            read = partial(_naming, place, picture_tensor, items[place], preprocessing)
            # Files only: one Pillow picture may stand in the list twice, and threads must not share it.
            return pool.submit(read).result if isinstance(items[place], (str, Path)) else read

        coming = [reader(place) for place in batches[0]] if batches else []
        for batch, following in zip(batches, [*batches[1:], []]):
            readers, coming = coming, [reader(place) for place in following]
            pixels = torch.stack([read() for read in readers]).to(device)
            images = evaluation_images(pixels, preprocessing)
            yield batch, images.contiguous(memory_format=torch.channels_last)


def read_pictures(
    pictures: Sequence[Any], batch_size: int, preprocessing: Preprocessing, device: torch.device
) -> Iterator[Tensor]:
    """Yield a user's pictures as a network wants them, so many at once, [n, c, size, size]."""
    listed = list_items(pictures, "pictures")
    batches = _split(list(range(len(listed))), batch_size)
    return (images for _, images in _read_batches(listed, batches, preprocessing, device))


def _naming(place: int, read: Callable[[Any, Any], Any], item: Any, form: Any) -> Any:
    """Read a picture; what goes wrong names its place in the list, or its file."""
    try:
        return read(item, form)
    except Exception as error:  # decoders of damaged files raise all kinds
        if isinstance(item, (str, Path)):
            raise  # names the file already
        if isinstance(error, UserError):
            raise UserError(f"pictures[{place}]: {error}") from None
        raise UserError(
            f"pictures[{place}] cannot be read as an image ({error}); replace or remove it."
        ) from None


def _text(text: Any, place: int) -> str:
    if not isinstance(text, str):
        raise UserError(
            f"texts[{place}] is of type {type(text).__name__}, not a string; leave it out or fill it in."
        )
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise UserError(f"texts[{place}] is no valid Unicode ({error}); decode it anew.") from None
    return str(text)  # a plain string, where it is one of NumPy's
