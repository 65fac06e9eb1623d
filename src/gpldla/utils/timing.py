"""Timing several ways of doing the same work, in turn, so that a busy machine is busy for all of them."""

import math
import time
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import TypeVar

import torch
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]  # comes with scikit-learn

WARMUP_SECONDS = 0.05  # of calls that are not counted, after another way has left its memory behind
MEASURED_SECONDS = 0.1  # of calls in each round, at least one
MAX_SECONDS = 40.0  # after which two rounds will do


Label = TypeVar("Label", bound=Hashable)  # what a way is called by: its name, or its size


def seconds_per_call(
    ways: Mapping[Label, Callable[[], object]],
    device: torch.device,
    rounds: int,
    threads: Mapping[Label, int] | None = None,
) -> dict[Label, list[float]]:
    """Return for each way its seconds a call, one number a round; slow work gets fewer rounds.

    threads: how many each way computes with on the CPU; default: as it is
    """
    measured: dict[Label, list[float]] = {name: [] for name in ways}
    started = time.perf_counter()
    for number in range(rounds):
        if number >= 2 and time.perf_counter() - started > MAX_SECONDS:
            break
        for name, call in ways.items():
            with nullcontext() if threads is None else cpu_threads(threads[name]):
                if number == 0 or measured[name][-1] < 1:
                    _calls_within(call, device, WARMUP_SECONDS)
                calls, seconds = _calls_within(call, device, MEASURED_SECONDS)
            measured[name].append(seconds / calls)
    return measured


def fastest_threads(ways: Mapping[Label, Callable[[], object]], device: torch.device) -> dict[Label, int]:
    """Return for each way whether it is faster with one thread or with all: small work waits for threads."""
    fastest = {}
    for name, call in ways.items():
        seconds = {}
        for count in {1, torch.get_num_threads()}:
            with cpu_threads(count):
                _calls_within(call, device, WARMUP_SECONDS)
                calls, spent = _calls_within(call, device, MEASURED_SECONDS)
            seconds[count] = spent / calls
        fastest[name] = min(seconds, key=lambda count: seconds[count])
    return fastest


@contextmanager
def cpu_threads(count: int) -> Iterator[None]:
    """Compute with so many threads, in torch as in NumPy and SciPy, while the block runs."""
    before = torch.get_num_threads()
    with threadpool_limits(count):
        torch.set_num_threads(count)
        try:
            yield
        finally:
            torch.set_num_threads(before)


def two_digits(value: float) -> str:
    """Write a number with at least two digits that matter."""
    return f"{value:,.{max(0, 1 - math.floor(math.log10(value)))}f}"


def _calls_within(call: Callable[[], object], device: torch.device, seconds: float) -> tuple[int, float]:
    """Call until the time is over; a GPU is waited for only now and then, and at the end."""
    calls, batch, start = 0, 1, now(device)
    while True:
        for _ in range(batch):
            call()
        calls += batch
        spent = now(device) - start
        if spent >= seconds:
            return calls, spent
        batch = max(1, min(calls, int(calls * (seconds - spent) / spent)))


def now(device: torch.device) -> float:
    """Return the time when all work given to the device is done."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()
