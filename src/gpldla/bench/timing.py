"""Timing several ways of doing the same work, in turn, so that a busy machine is busy for all of them."""

import time
from collections.abc import Callable

import torch

SETTLING_SECONDS = 0.05  # of calls that are not counted, after another way has left its memory behind
MEASURED_SECONDS = 0.1  # of calls in each round, at least one
ENOUGH_SECONDS = 40.0  # after which two rounds will do


def seconds_a_call(
    ways: dict[str, Callable[[], object]], device: torch.device, rounds: int
) -> dict[str, list[float]]:
    """Return for each way its seconds a call, one number a round; slow work gets fewer rounds."""
    measured: dict[str, list[float]] = {name: [] for name in ways}
    started = time.perf_counter()
    for number in range(rounds):
        if number >= 2 and time.perf_counter() - started > ENOUGH_SECONDS:
            break
        for name, call in ways.items():
            if number == 0 or measured[name][-1] < 1:
                _calls_within(call, device, SETTLING_SECONDS)
            calls, seconds = _calls_within(call, device, MEASURED_SECONDS)
            measured[name].append(seconds / calls)
    return measured


def _calls_within(call: Callable[[], object], device: torch.device, seconds: float) -> tuple[int, float]:
    """Call until the time is over; a GPU is waited for only now and then, and at the end."""
    calls, batch, start = 0, 1, _now(device)
    while True:
        for _ in range(batch):
            call()
        calls += batch
        spent = _now(device) - start
        if spent >= seconds:
            return calls, spent
        batch = max(1, min(calls, int(calls * (seconds - spent) / spent)))


def _now(device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()
