"""Decoding image files into a store, on all cores."""

import os
import shlex
import shutil
import warnings
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import PIL
from PIL import Image

from gpldla.data.decoding import picture_side, square_pixels
from gpldla.data.source_files import SourceFile, close_zips
from gpldla.data.store import new_store
from gpldla.utils.errors import UserError
from gpldla.utils.process import stop_signals
from gpldla.utils.progress import Reporter

FILES_PER_TASK = 16
N_SIZE_SAMPLES = 100  # files, spread over all, from which the usual size of a set's images is taken


@dataclass(frozen=True)
class Listing:
    """The image files of a data set by class, not yet decoded.

    bad: one sentence per fault, such as an empty class or an unreadable zip
    """

    files_of_class: dict[str, list[SourceFile]]
    bad: tuple[str, ...] = ()


@dataclass(frozen=True)
class _Decoded:
    images: np.ndarray  # uint8 [n, channels, side, side]
    shapes: list[tuple[int, int]]
    bad: dict[int, str]  # by index in the task


def pack_files(
    listing: Listing,
    store: Path,
    *,
    name: str,
    channels: int,
    wanted_side: int,
    source: dict[str, Any],
    report: Reporter,
    skip_bad: bool,
) -> None:
    """Decode every file once, make it square, and write the store.

    Images become squares of `wanted_side` pixels, or of the usual side of the files if that is smaller, as
    enlarging gains nothing. The store keeps their true shapes, so that random crops can keep the ratio of the
    picture. Each task decodes a few files; results are written in order, with a bounded queue.
    """
    bad = list(listing.bad)
    remedy = f"gpldla data prepare {shlex.quote(name)} --side {wanted_side} --skip-bad"
    if not skip_bad:
        refuse(bad, remedy)
    files = [file for files in listing.files_of_class.values() for file in files]
    owners = np.repeat(
        np.arange(len(listing.files_of_class)), [len(f) for f in listing.files_of_class.values()]
    )
    with _allow_large_images():
        side = min(wanted_side, _usual_side(files) or wanted_side)
    _check_space(store, len(files) * channels * side * side)
    kept = np.ones(len(files), dtype=bool)
    shapes: list[tuple[int, int]] = []
    with (
        _allow_large_images(),
        stop_signals() as stopped,
        new_store(store, (channels, side, side)) as writer,
        report.bar(f"Packing {name}", len(files)) as advance,
    ):
        first = 0
        for task in _decode_all(files, channels, side):
            if stopped():
                raise KeyboardInterrupt  # new_store then removes the unfinished store
            for index, sentence in task.bad.items():
                if not skip_bad:
                    refuse([sentence], remedy)
                bad.append(sentence)
                kept[first + index] = False
            writer.add(task.images)
            shapes += task.shapes
            n_files = len(task.images) + len(task.bad)
            first += n_files
            advance(n_files)
        counts = np.bincount(owners[kept], minlength=len(listing.files_of_class))
        names = list(listing.files_of_class)
        bad += [f"Class {names[c]!r} of {name} has no readable image." for c in np.flatnonzero(counts == 0)]
        if not shapes:
            raise UserError(f"{name} has no readable image; the first fault: {bad[0]}")
        writer.finish(
            name,
            [class_name for class_name, count in zip(names, counts) if count],
            counts[counts > 0],
            {**source, "pillow": PIL.__version__, "left_out": bad},
            shapes=np.array(shapes, dtype=np.int32),
        )
    report_skipped_files(bad, name, report)


@contextmanager
def _allow_large_images() -> Iterator[None]:
    """Silence Pillow's warning at 100 million pixels, which large photographs have; far more is an error."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", Image.DecompressionBombWarning)
        yield


def refuse(bad: Sequence[str], remedy: str) -> None:
    """Raise the first fault, if there is any, with the command that leaves faulty files out."""
    if bad:
        count = f" ({len(bad)} faults in all.)" if len(bad) > 1 else ""
        raise UserError(f"{bad[0].removesuffix('.')}, or leave faulty files out with `{remedy}`.{count}")


def report_skipped_files(bad: Sequence[str], name: str, report: Reporter) -> None:
    """Report the files that were left out."""
    if bad:
        report.say(f"Left out of {name}, {len(bad)} in all:")
        for sentence in bad:
            report.say(f"  {sentence}")


def _decode_all(files: Sequence[SourceFile], channels: int, side: int) -> Iterator[_Decoded]:
    """Yield decoded files in order, one task at a time."""
    workers = _cores()
    waiting: deque[Future[_Decoded]] = deque()
    # Threads suffice: Pillow and zlib release the interpreter lock.
    pool = ThreadPoolExecutor(workers)
    try:
        for first in range(0, len(files), FILES_PER_TASK):
            waiting.append(pool.submit(_decode, files[first : first + FILES_PER_TASK], channels, side))
            if len(waiting) > 2 * workers:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)
        close_zips()


def _decode(files: Sequence[SourceFile], channels: int, side: int) -> _Decoded:
    images = np.empty((len(files), channels, side, side), np.uint8)
    shapes: list[tuple[int, int]] = []
    bad: dict[int, str] = {}
    for index, file in enumerate(files):
        try:
            images[len(shapes)], shape = square_pixels(file.read(), channels, side)
        except UserError as error:
            bad[index] = str(error)
        except Exception as error:  # decoders of damaged files raise all kinds
            reason = str(error).split("<")[0].strip()  # without the address of a buffer
            bad[index] = f"{file} cannot be read as an image ({reason}); repair it or remove it."
        else:
            shapes.append(shape)
    return _Decoded(images[: len(shapes)], shapes, bad)


def _usual_side(files: Sequence[SourceFile]) -> int:
    """Return the longer side that three quarters of a sample of the files do not exceed; 0 if none opens."""
    sides = []
    for index in np.unique(np.linspace(0, len(files) - 1, min(N_SIZE_SAMPLES, len(files))).astype(int)):
        try:
            sides.append(picture_side(files[index].read()))
        except Exception:  # reported when the file is decoded
            continue
    return int(np.quantile(sides, 0.75, method="higher")) if sides else 0


def _check_space(store: Path, needed: int) -> None:
    nearest = next(path for path in store.absolute().parents if path.exists())
    free = shutil.disk_usage(nearest).free
    if free < needed:
        raise UserError(
            f"{store.parent} has {free / 1e9:.1f} GB left, and the store needs {needed / 1e9:.1f} GB;"
            " choose another cache folder with --cache."
        )


def _cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
