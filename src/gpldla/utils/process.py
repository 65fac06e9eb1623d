"""The running process: settings that make CPUs faster, and signals to stop."""

import ctypes
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # constants of glibc's malloc.h


def prepare_process() -> None:
    """Apply settings that make a CPU faster, before torch is imported. Settings of the user stay."""
    # Threads that wait for each other in a busy loop are five times slower once another program wants a core.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    _keep_large_buffers()


def _keep_large_buffers() -> None:
    """Ask glibc to reuse buffers up to 32 MiB; does nothing without glibc.

    By default each activation of a network is mapped, zeroed page by page and unmapped again, in every
    step: a quarter of the time of meta-training on two cores.
    """
    if not sys.platform.startswith("linux"):
        return
    try:
        libc = ctypes.CDLL("libc.so.6")
        libc.mallopt(_M_MMAP_THRESHOLD, 32 << 20)
        libc.mallopt(_M_TRIM_THRESHOLD, 512 << 20)
    except (OSError, AttributeError):
        return


def return_free_memory() -> None:
    """Give memory that is free back to the system: glibc keeps what each thread has freed for this thread."""
    trim = _malloc_trim()
    if trim is not None:
        trim(0)


@cache
def _malloc_trim() -> Callable[[int], int] | None:
    if not sys.platform.startswith("linux"):
        return None
    try:
        return ctypes.CDLL("libc.so.6").malloc_trim
    except (OSError, AttributeError):  # another libc
        return None


@contextmanager
def stop_signals() -> Iterator[Callable[[], bool]]:
    """Yield a function that returns whether Ctrl-C or SIGTERM arrived; a second Ctrl-C interrupts at once."""
    stopped = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield stopped.is_set
        return

    def stop(number: int, frame: object) -> None:
        if stopped.is_set():
            raise KeyboardInterrupt
        stopped.set()

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stopped.is_set
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
