"""Checksums of a store's images, one per mebibyte, which are verified where the images are first read."""

import hashlib
import threading
from pathlib import Path

import numpy as np

from gpldla.utils.errors import UserError

CHUNK = 1 << 20  # bytes
DIGEST = hashlib.sha256().digest_size


class ChunkHasher:
    """Hashes bytes that come in pieces, chunk by chunk."""

    def __init__(self) -> None:
        self._hash, self._filled = hashlib.sha256(), 0
        self._digests: list[bytes] = []

    def update(self, content: memoryview) -> None:
        """Append bytes."""
        while content:
            piece, content = content[: CHUNK - self._filled], content[CHUNK - self._filled :]
            self._hash.update(piece)
            self._filled += len(piece)
            if self._filled == CHUNK:
                self._end_chunk()

    def digests(self) -> bytes:
        """Return the digests of all chunks, one after the other; the last chunk may be short."""
        if self._filled:
            self._end_chunk()
        return b"".join(self._digests)

    def _end_chunk(self) -> None:
        self._digests.append(self._hash.digest())
        self._hash, self._filled = hashlib.sha256(), 0


class ChunkChecksums:
    """The checksums of the images of an opened store, and which chunks have been verified.

    content: all bytes of the images, uint8 [bytes]
    digests: as `ChunkHasher.digests` returns them
    """

    def __init__(self, folder: Path, content: np.ndarray, digests: bytes) -> None:
        if len(digests) != DIGEST * -(-len(content) // CHUNK):
            raise ValueError("its checksums are of images of another size")
        self._folder, self._content, self._digests = folder, content, digests
        self._verified = np.zeros(len(digests) // DIGEST, bool)
        self._lock = threading.Lock()

    def verify(self, first: np.ndarray, last: np.ndarray) -> int:
        """Verify the bytes first[i] to last[i] as far as nobody has; return how many bytes that were.

        first, last: int64 [n]; raises a sentence if the images have changed since they were written
        """
        if self._verified.all():
            return 0
        wanted = np.zeros(len(self._verified) + 1, np.int64)  # +1 where a range begins, −1 after its end
        np.add.at(wanted, first // CHUNK, 1)
        np.add.at(wanted, last // CHUNK + 1, -1)
        unverified = np.flatnonzero((np.cumsum(wanted[:-1]) > 0) & ~self._verified)
        for chunk in unverified.tolist():
            content = self._content[chunk * CHUNK : (chunk + 1) * CHUNK]
            if hashlib.sha256(content.data).digest() != self._digests[chunk * DIGEST : (chunk + 1) * DIGEST]:
                raise images_changed(self._folder)
            with self._lock:
                self._verified[chunk] = True
        return len(unverified) * CHUNK


def images_changed(folder: Path) -> UserError:
    """Return the error for a store whose images are not what its checksums say."""
    return UserError(
        f"{folder} is damaged: its images are not those that were packed; delete it and it is packed again."
    )
