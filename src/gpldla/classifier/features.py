"""Features of pictures or texts, computed in batches and cached on disk."""

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from gpldla.backbones import Backbone
from gpldla.backbones.base import TokenBackbone, padded
from gpldla.classifier.feature_cache import FeatureCache, item_key
from gpldla.data.augment.transforms import evaluation_images
from gpldla.data.pictures import local_file, picture_pixels
from gpldla.data.preprocessing import Preprocessing, Reads
from gpldla.engines.choice import engine_for
from gpldla.utils.errors import UserError
from gpldla.utils.modules import device_of, evaluating
from gpldla.utils.parallel import map_in_threads
from gpldla.utils.progress import SILENT, Reporter

# Eight pictures of 84 px, or four of 224: maps of larger batches exceed a CPU's caches, and each picture then
# takes twice the time.
CPU_BATCH_PIXELS, CPU_MIN_BATCH = 8 * 84**2, 4
READERS = min(16, os.cpu_count() or 1)  # threads that decode while the network computes; a GPU waits for them
CPU_BATCH_TOKENS = 512  # eight texts of 64 tokens; short texts are faster by the dozen, long ones are not
TEXTS_AT_ONCE = 1024  # that are divided into tokens to count these
ROWS_AT_ONCE = 64  # that are written to the cache together

Result = TypeVar("Result")


@torch.no_grad()
def embed(
    backbone: Backbone,
    items: Any,
    *,
    batch_size: int = 64,
    cache: FeatureCache | None = None,
    reporter: Reporter = SILENT,
) -> Tensor:
    """Compute the features of n pictures or texts, as the backbone reads them, float32 [n, feature_dim].

    The network runs on its device, in evaluation mode and without gradients; its flags do not change. On a
    CPU another engine may run it, see `gpldla.engines`.

    batch_size: the most items at once; on a CPU large pictures go through the network four at a time
    cache: features that it contains are not computed again, and their picture files are not decoded. They may
        differ in the last bits from those of a new computation, as the order of summation depends on the size
        of the batch and on the longest text in it.
    """
    items = list_items(items, backbone.reads)
    if not isinstance(batch_size, int) or batch_size < 1:
        raise UserError(f"batch_size must be a whole number from 1 on, not {batch_size!r}.")
    device = device_of(backbone)
    features = np.empty((len(items), backbone.feature_dim), np.float32)
    keys: list[bytes] = []
    missing = list(range(len(items)))
    if cache is not None:
        keys = _keys(items, backbone, device)
        missing = cache.fill(features, keys)
    if backbone.reads == "texts":
        batches = _text_features(backbone, items, missing, batch_size, reporter)
    else:
        batches = _picture_features(backbone, items, missing, batch_size, reporter)
    waiting: list[int] = []  # to be cached

    def keep() -> None:
        if cache is not None and waiting:
            cache.add([keys[index] for index in waiting], features[waiting])
            waiting.clear()

    try:
        with reporter.bar("features", len(items)) as advance:
            advance(len(items) - len(missing))
            for batch, rows in batches:
                require_finite_features(torch.from_numpy(rows), backbone)
                features[batch] = rows
                advance(len(batch))
                waiting += batch
                if len(waiting) >= ROWS_AT_ONCE:
                    keep()
    finally:  # a picture that cannot be read, or Ctrl-C
        keep()
    return torch.from_numpy(features).to(device)


def require_finite_features(rows: Tensor, backbone: Backbone) -> None:
    """Raise a sentence if a network gives features [n, ...] that no classifier can use."""
    if not rows.isfinite().all():
        raise UserError(
            f"{backbone.name or type(backbone).__name__} gives features that are infinite or NaN: its weights"
            " are damaged or do not suit its precision; get the model anew."
        )


def _keys(items: list[Any], backbone: Backbone, device: torch.device) -> list[bytes]:
    """Return the key of each item in a cache; files are read in threads."""

    def key(index: int) -> bytes:
        return _named(index, items[index], lambda item: item_key(item, backbone, device))

    indices = range(len(items))
    if backbone.reads == "texts" or len(items) == 1:
        return [key(index) for index in indices]
    return list(_read_in_threads(key, items, indices, ahead=4 * READERS))


def _text_features(
    backbone: Backbone, texts: list[str], indices: list[int], batch_size: int, reporter: Reporter
) -> Iterator[tuple[list[int], np.ndarray]]:
    """Yield the indices and features of batches of texts, short ones first: then few need to be filled up."""
    if isinstance(backbone, TokenBackbone):
        yield from _token_features(backbone, texts, indices, batch_size, reporter)
        return
    network, device = evaluating(backbone), device_of(backbone)
    indices = sorted(indices, key=lambda index: len(texts[index]))
    for batch in _split(indices, batch_size):
        with torch.no_grad(), torch.autocast(device.type, enabled=False):
            rows = network.features([texts[index] for index in batch])
        yield batch, rows.float().cpu().numpy()


def _token_features(
    backbone: TokenBackbone, texts: list[str], indices: list[int], batch_size: int, reporter: Reporter
) -> Iterator[tuple[list[int], np.ndarray]]:
    """As `_text_features`, by the engine that pays."""

    def tokens_of(batch: list[int]) -> list[list[int]]:
        return backbone.tokenise([texts[index] for index in batch])

    # Only the lengths are kept, as the tokens of a million texts would fill the memory.
    counts = {
        index: len(tokens)
        for slab in _split(indices, TEXTS_AT_ONCE)
        for index, tokens in zip(slab, tokens_of(slab))
    }
    engine = engine_for(backbone, len(indices), say=reporter.say)
    threads = torch.get_num_threads() if engine.parallel else 1
    most = CPU_BATCH_TOKENS if device_of(backbone).type == "cpu" else None
    batches = list(_by_length(sorted(indices, key=lambda index: counts[index]), counts, batch_size, most))

    def features(batch: list[int]) -> np.ndarray:
        return engine.features(*padded(tokens_of(batch)))

    if threads == 1 or len(batches) <= 1:
        yield from zip(batches, map(features, batches))
    else:
        yield from zip(batches, map_in_threads(features, batches, threads=threads, ahead=4 * threads))


def _by_length(
    indices: list[int], counts: dict[int, int], batch_size: int, most: int | None
) -> Iterator[list[int]]:
    """Split indices of texts, sorted by their counts of tokens, into batches of at most `most` tokens."""
    batch: list[int] = []
    for index in indices:
        if len(batch) == batch_size or (
            most is not None and batch and (len(batch) + 1) * counts[index] > most
        ):
            yield batch
            batch = []
        batch.append(index)
    if batch:
        yield batch


def _picture_features(
    backbone: Backbone, pictures: list[Any], indices: list[int], batch_size: int, reporter: Reporter
) -> Iterator[tuple[list[int], np.ndarray]]:
    """Yield the indices and features of batches of pictures, in their order."""
    pixels = _read_pixels(pictures, indices, backbone.preprocessing, 2 * batch_size)
    done = 0
    for rows in features_of_pixels(backbone, pixels, len(indices), batch_size=batch_size, reporter=reporter):
        yield indices[done : done + len(rows)], rows
        done += len(rows)


def features_of_pixels(
    backbone: Backbone,
    pixels: Iterable[np.ndarray],
    count: int,
    *,
    batch_size: int = 64,
    reporter: Reporter = SILENT,
) -> Iterator[np.ndarray]:
    """Yield the features of batches of pictures, float32 [n, feature_dim], in their order.

    pixels: uint8 [resized, resized, channels] of each picture; read in the calling thread, a little ahead
    count: how many there are, or at most; decides what pays
    """
    engine = engine_for(backbone, count, say=reporter.say)
    threads = torch.get_num_threads() if engine.parallel else 1
    if device_of(backbone).type == "cpu":
        batch_size = cpu_batch_size(backbone.preprocessing.size, batch_size)
    if engine.parallel:
        batch_size = max(1, min(batch_size, count // threads))  # so that all threads have work
    batches = _stacked(pixels, batch_size)
    if threads == 1 or count <= batch_size:
        return map(engine.features, batches)
    return map_in_threads(engine.features, batches, threads=threads, ahead=threads + 1)


def _stacked(pixels: Iterable[np.ndarray], batch_size: int) -> Iterator[np.ndarray]:
    """Yield arrays [n, ...] of at most so many."""
    coming = iter(pixels)
    while batch := list(islice(coming, batch_size)):
        yield np.stack(batch)


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
    if reads == "texts":
        return [_text(text, index) for index, text in enumerate(listed)]
    return [_read_whole(item) if hasattr(item, "read") else local_file(item) for item in listed]


def _read_whole(file: Any) -> bytes:
    """Return the content of a file object, from its start: it may have been read before."""
    if not hasattr(file, "seekable") or file.seekable():
        file.seek(0)
    content = file.read()
    if not isinstance(content, bytes):
        raise UserError(f"A picture's file object must be opened for bytes, not {type(content).__name__}.")
    return content


def _split(indices: list[int], batch_size: int) -> list[list[int]]:
    return [indices[start : start + batch_size] for start in range(0, len(indices), batch_size)]


def cpu_batch_size(size: int, most: int) -> int:
    """Return the batch size on a CPU for pictures of size × size pixels, at most `most`."""
    return min(most, max(CPU_MIN_BATCH, CPU_BATCH_PIXELS // size**2))


def _read_pixels(
    pictures: list[Any], indices: list[int], preprocessing: Preprocessing, ahead: int
) -> Iterator[np.ndarray]:
    """Yield the pixels of each picture, uint8 [resized, resized, channels]; threads decode a little ahead."""

    def read(index: int) -> np.ndarray:
        return _named(index, pictures[index], lambda item: picture_pixels(item, preprocessing))

    if len(indices) <= 1:
        return map(read, indices)
    return _read_in_threads(read, pictures, indices, ahead=max(ahead, 2 * READERS))


def _read_in_threads(
    read: Callable[[int], Result], items: list[Any], indices: Iterable[int], *, ahead: int
) -> Iterator[Result]:
    """Yield read(index) of each index, in order."""

    def begun(index: int) -> Callable[[], Result]:
        # A Pillow picture may be in the list twice, and threads must not share it.
        if isinstance(items[index], Image.Image):
            result = read(index)
            return lambda: result
        return partial(read, index)

    return map_in_threads(lambda task: task(), map(begun, indices), threads=READERS, ahead=ahead)


def read_pictures(
    pictures: Sequence[Any], batch_size: int, preprocessing: Preprocessing, device: torch.device
) -> Iterator[Tensor]:
    """Yield a user's pictures in batches as a network expects them, [n, c, size, size]."""
    listed = list_items(pictures, "pictures")
    pixels = _read_pixels(listed, list(range(len(listed))), preprocessing, 2 * batch_size)
    return prepared_batches(pixels, batch_size, preprocessing, device)


def prepared_batches(
    pixels: Iterable[np.ndarray], batch_size: int, preprocessing: Preprocessing, device: torch.device
) -> Iterator[Tensor]:
    """As `read_pictures`, from the pixels of each picture, uint8 [resized, resized, channels]."""
    for batch in _stacked(pixels, batch_size):
        stored = torch.from_numpy(batch).permute(0, 3, 1, 2).to(device)
        images = evaluation_images(stored, preprocessing)
        yield images.contiguous(memory_format=torch.channels_last)


def _named(index: int, item: Any, read: Callable[[Any], Result]) -> Result:
    """Read a picture; errors name its index in the list, or its file."""
    try:
        return read(item)
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
