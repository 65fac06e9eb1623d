"""How many pixels may be decoded: in one picture, and in all that are being decoded at once.

A small file can hold a picture that takes gigabytes of memory, and a batch is decoded in several threads.
"""

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from PIL import Image

from gpldla.utils.errors import UserError
from gpldla.utils.process import return_free_memory

VARIABLE = "GPLDLA_MAX_PIXELS"
MAX_PIXELS = 1 << 27  # of one picture, 134 million: 108-megapixel phones are below it
PIXELS_AT_ONCE = 1 << 26  # in all threads, 67 million: 0.3 GB as RGB; with WebP's decoder some 0.8 GB


def max_pixels() -> int:
    """Return the most pixels that one picture may have; GPLDLA_MAX_PIXELS sets it."""
    chosen = os.environ.get(VARIABLE, "").strip()
    if not chosen:
        return MAX_PIXELS
    if not (chosen.isascii() and chosen.isdigit() and int(chosen)):
        raise UserError(f"{VARIABLE} must be a whole number of at least 1, not {chosen!r}.")
    limit = int(chosen)
    if Image.MAX_IMAGE_PIXELS is not None and limit > Image.MAX_IMAGE_PIXELS:
        Image.MAX_IMAGE_PIXELS = limit  # else Pillow's own limit would refuse what the user allows
    return limit


class PixelBudget:
    """A bound on the sum of the pixels that threads hold; a picture beyond it waits until it is alone."""

    def __init__(self, most: int) -> None:
        self._most, self._held, self._released = most, 0, 0
        self._turn, self._changed = threading.Lock(), threading.Condition()

    @contextmanager
    def hold(self, pixels: int) -> Iterator[None]:
        """Wait until there is room for so many pixels, and hold them while the block runs."""
        with self._turn, self._changed:  # in turn: small pictures do not keep a large one waiting
            self._changed.wait_for(lambda: not self._held or self._held + pixels <= self._most)
            self._held += pixels
        try:
            yield
        finally:
            self._release(pixels)

    def _release(self, pixels: int) -> None:
        self._released += pixels
        if 2 * self._released >= self._most:  # else every thread would keep the memory of its largest picture
            self._released = 0
            return_free_memory()
        with self._changed:
            self._held -= pixels
            self._changed.notify_all()


class _ProcessBudget:
    """The budget of this process: a fork starts with a new one, as it has none of its parent's threads."""

    def __init__(self) -> None:
        self.renew()
        if hasattr(os, "register_at_fork"):  # not on Windows
            os.register_at_fork(after_in_child=self.renew)

    def renew(self) -> None:
        self.budget = PixelBudget(PIXELS_AT_ONCE)


_process = _ProcessBudget()


@contextmanager
def room_for(picture: Image.Image) -> Iterator[None]:
    """Hold the pixels of an opened picture while it is decoded and reduced; raise if it has too many."""
    pixels, limit = picture.width * picture.height, max_pixels()
    if pixels > limit:
        raise ValueError(f"it has {pixels:,} pixels, and {VARIABLE} allows {limit:,}")
    with _process.budget.hold(pixels):
        try:
            yield
        finally:
            # Those of WebP and AVIF hold copies until the picture itself has gone, which is after this block.
            vars(picture).pop("_decoder", None)
