"""A disk that fails: one call after another of those that change files."""

import builtins
import errno
import io
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

CALLS = [(os, name) for name in ("fsync", "replace", "rename", "mkdir", "chmod")]


@contextmanager
def failing_at(number: int) -> Iterator[list[str]]:
    """Let the call with this number (from 0) fail as on a full disk, and all that write after it.

    Yields the names of the calls so far. Removing files works, as it does on a full disk.
    """
    made: list[str] = []

    def counted(name: str, function: Callable) -> Callable:
        def call(*args, **options):
            made.append(name)
            if len(made) > number:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return function(*args, **options)

        return call

    plain = io.open

    def opened(file, mode="r", *args, **options):
        writes = isinstance(mode, str) and set(mode) & set("wxa+")
        return (
            counted(f"open {mode}", plain)(file, mode, *args, **options)
            if writes
            else plain(file, mode, *args, **options)
        )

    with pytest.MonkeyPatch.context() as patch:
        for module, name in CALLS:
            patch.setattr(module, name, counted(name, getattr(module, name)))
        patch.setattr(io, "open", opened)
        patch.setattr(builtins, "open", opened)
        yield made
