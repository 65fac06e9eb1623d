"""Timing several functions that do the same work in turn, so that other load affects all of them alike."""

import math
import time
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import TypeVar

import torch
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]  # comes with scikit-learn

WARMUP_SECONDS = 0.05  # of calls that are not counted, after another function has filled the caches
MEASURED_SECONDS = 0.1  # of calls in each round, at least one
MAX_SECONDS = 40.0  # after which two rounds suffice


Label = TypeVar("Label", bound=Hashable)  # of a function: its name, or its size


def seconds_per_call(
    ways: Mapping[Label, Callable[[], object]],
    device: torch.device,
    rounds: int,
    threads: Mapping[Label, int] | None = None,
) -> dict[Label, list[float]]:
    """Return for each function its seconds per call, one number per round; slow work gets fewer rounds.

    threads: CPU threads of each function; default: the current number
    Where that is one, the processor's time of the thread counts, in which no other program takes part.
    """
    alone = threads is None and device.type == "cpu" and torch.get_num_threads() == 1
    clock = time.thread_time if alone else partial(now, device)
    measured: dict[Label, list[float]] = {name: [] for name in ways}
    started = time.perf_counter()
    for round_index in range(rounds):
        if round_index >= 2 and time.perf_counter() - started > MAX_SECONDS:
            break
        for name, call in ways.items():
            with nullcontext() if threads is None else cpu_threads(threads[name]):
                if round_index == 0 or measured[name][-1] < 1:
                    _calls_within(call, clock, WARMUP_SECONDS)
                calls, seconds = _calls_within(call, clock, MEASURED_SECONDS)
            measured[name].append(seconds / calls)
    return measured


def fastest_threads(ways: Mapping[Label, Callable[[], object]], device: torch.device) -> dict[Label, int]:
    """Return for each function the faster of one thread and all threads: small work waits for threads."""
    fastest = {}
    for name, call in ways.items():
        seconds = {}
        for count in {1, torch.get_num_threads()}:
            with cpu_threads(count):
                _calls_within(call, partial(now, device), WARMUP_SECONDS)
                calls, spent = _calls_within(call, partial(now, device), MEASURED_SECONDS)
            seconds[count] = spent / calls
        fastest[name] = min(seconds, key=lambda count: seconds[count])
    return fastest


@contextmanager
def cpu_threads(count: int) -> Iterator[None]:
    """Compute with `count` threads in torch, NumPy and SciPy while the block runs."""
    before = torch.get_num_threads()
    with threadpool_limits(count):
        torch.set_num_threads(count)
        try:
            yield
        finally:
            torch.set_num_threads(before)


def two_digits(value: float) -> str:
    """Format a number with at least two significant digits."""
    return f"{value:,.{max(0, 1 - math.floor(math.log10(value)))}f}"


def _calls_within(
    call: Callable[[], object], clock: Callable[[], float], seconds: float
) -> tuple[int, float]:
    """Call until `seconds` are over; a clock that waits for a GPU is asked rarely, and at the end."""
    calls, batch, start = 0, 1, clock()
    while True:
        for _ in range(batch):
            call()
        calls += batch
        spent = clock() - start
        if spent >= seconds:
            return calls, spent
        batch = max(1, min(calls, int(calls * (seconds - spent) / spent)))


def now(device: torch.device) -> float:
    """Wait for all work on the device; return the time."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()
