"""Settings of the process that make networks on a CPU faster; for programs, a library leaves them alone."""

import ctypes
import os
import sys

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # numbers of glibc's malloc.h


def prepare_process() -> None:
    """Call before torch is imported; what a user has set stays."""
    # Threads that wait for each other in a busy loop are five times slower once another program wants a core.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    _keep_large_buffers()


def _keep_large_buffers() -> None:
    """Ask glibc to reuse buffers up to 32 MiB; does nothing where there is no glibc.

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
