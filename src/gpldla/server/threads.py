"""Threads for what computes or waits for the disk, so that the event loop does neither."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from functools import partial
from typing import Any, TypeVar

from gpldla.server.problems import Problem

Result = TypeVar("Result")


class Threads:
    """So many threads, and a bound on the calls that wait for them or are under way.

    seconds_per_call: about; for Retry-After
    """

    def __init__(self, name: str, count: int, *, most_calls: int, seconds_per_call: float) -> None:
        self._pool, self._count = ThreadPoolExecutor(count, name), count
        self._calls, self._most_calls = 0, most_calls
        self._seconds_per_call = seconds_per_call

    async def run(self, function: Callable[..., Result], *arguments: Any) -> Result:
        """Call a function in a thread; 429 if too many calls wait."""
        if self._calls >= self._most_calls:
            raise Problem.busy(self._calls * self._seconds_per_call / self._count)
        self._calls += 1
        call = self._pool.submit(partial(copy_context().run, function, *arguments))  # with the request's id
        waiting = asyncio.wrap_future(call)
        waiting.add_done_callback(self._ended)
        return await waiting

    def _ended(self, _: object) -> None:
        self._calls -= 1

    def close(self) -> None:
        """Finish what is under way."""
        self._pool.shutdown()
