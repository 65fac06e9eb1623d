"""Dynamic batches: what several requests wait for goes through the network together."""

import asyncio
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpldla.server.problems import Problem
from gpldla.utils.errors import UserError

LARGEST_BATCH = 64
FIRST_GUESS = 0.05  # seconds per item, before any has been measured
MEMORY = 0.9  # of the mean time per item: the weight of what was measured before


@dataclass
class _Waiting:
    """An item and the promise of its row."""

    item: Any
    answer: "Future[np.ndarray]"


class Batcher:
    """One thread that embeds whatever waits, up to a bound.

    embed: from n items to rows [n, ...]; a `UserError` of one item concerns that item alone
    most_waiting: with more items than this `submit` refuses
    observe, show_waiting: are told the size of each batch, and how many items wait
    """

    def __init__(
        self,
        embed: Callable[[Sequence[Any]], np.ndarray],
        *,
        most_waiting: int,
        name: str = "embed",
        observe: Callable[[int], None] = lambda items: None,
        show_waiting: Callable[[int], None] = lambda items: None,
    ) -> None:
        self._embed, self._most_waiting = embed, most_waiting
        self._queue: deque[_Waiting] = deque()
        self._changed = threading.Condition()
        self._closed = False
        self._in_work = 0
        self.seconds_per_item = FIRST_GUESS
        self._observe, self._show_waiting = observe, show_waiting
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    @property
    def waiting(self) -> int:
        """How many items wait or are in work."""
        return len(self._queue) + self._in_work

    def submit(self, items: Sequence[Any]) -> "list[Future[np.ndarray]]":
        """Return one future row per item; raise a 429 if there is no room for all of them.

        As many items as one request may hold are always taken by an idle batcher.
        """
        waiting = [_Waiting(item, Future()) for item in items]
        with self._changed:
            if self._closed:
                raise Problem(503, "The server is shutting down; send the request again.")
            if self.waiting and self.waiting + len(items) > self._most_waiting:
                raise Problem.busy(self.waiting * self.seconds_per_item)
            self._queue.extend(waiting)
            self._show_waiting(self.waiting)
            self._changed.notify()
        return [one.answer for one in waiting]

    def close(self) -> None:
        """Finish what waits and end the thread."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join()

    def _run(self) -> None:
        while batch := self._next_batch():
            started = time.monotonic()
            self._answer(batch)
            mean = (time.monotonic() - started) / len(batch)
            self.seconds_per_item = MEMORY * self.seconds_per_item + (1 - MEMORY) * mean
            self._observe(len(batch))
            with self._changed:
                self._in_work = 0
                self._show_waiting(self.waiting)

    def _next_batch(self) -> list[_Waiting]:
        """Wait for items; return none when closed and empty."""
        with self._changed:
            while True:
                self._changed.wait_for(lambda: self._queue or self._closed)
                batch: list[_Waiting] = []
                while self._queue and len(batch) < LARGEST_BATCH:
                    one = self._queue.popleft()
                    if one.answer.set_running_or_notify_cancel():  # else its client has gone
                        batch.append(one)
                self._in_work = len(batch)
                if batch or (self._closed and not self._queue):
                    return batch

    def _answer(self, batch: list[_Waiting]) -> None:
        try:
            rows = self._embed([one.item for one in batch])
        except UserError as error:
            if len(batch) == 1:
                batch[0].answer.set_exception(error)
                return
            for one in batch:  # which of them it was
                self._answer([one])
        except BaseException as error:
            for one in batch:
                one.answer.set_exception(error)
        else:
            for one, row in zip(batch, rows, strict=True):
                one.answer.set_result(row)


@dataclass
class _Call:
    """The rows and names of one request, what is made of its answers, and the promise of that."""

    rows: np.ndarray
    names: list[str]
    finish: Callable[[list[Any]], Any]
    result: "asyncio.Future[Any]"
    outcome: Any = None
    error: Exception | None = None


class Together:
    """A function of rows and names that answers all requests which wait for it in one call, in a thread.

    function: from n rows and their names to n answers, each of which depends on its own row alone. Most of
    the time of a call goes into many small steps, which cost the same for one row and for fifty.
    """

    def __init__(self, function: Callable[[np.ndarray, Sequence[str]], list[Any]]) -> None:
        self._function = function
        self._waiting: list[_Call] = []
        self._running: asyncio.Task[None] | None = None

    async def answer(
        self,
        run: Callable[..., Awaitable[Any]],
        rows: np.ndarray,
        names: Sequence[str],
        finish: Callable[[list[Any]], Any],
    ) -> Any:
        """Return what `finish` makes of the answers; an error concerns only the request that it belongs to.

        run: calls a function in a thread, where the answers are computed and finished
        """
        call = _Call(rows, list(names), finish, asyncio.get_running_loop().create_future())
        self._waiting.append(call)
        if self._running is None:
            self._running = asyncio.create_task(self._answer_all(run))
        return await call.result

    async def _answer_all(self, run: Callable[..., Awaitable[Any]]) -> None:
        try:
            while self._waiting:
                calls, self._waiting = self._waiting, []
                try:
                    await run(self._answer, calls)
                except Exception as error:  # such as that too many calls wait already
                    for call in calls:
                        call.error = error
                for call in calls:
                    if call.result.done():  # its client has gone
                        continue
                    if call.error is not None:
                        call.result.set_exception(call.error)
                    else:
                        call.result.set_result(call.outcome)
        finally:
            self._running = None

    def _answer(self, calls: list[_Call]) -> None:
        parts = [calls]
        while parts:
            part = parts.pop()
            rows = np.concatenate([call.rows for call in part])
            try:
                answers = iter(self._function(rows, [name for call in part for name in call.names]))
                for call in part:
                    call.outcome = call.finish([next(answers) for _ in call.names])
            except Exception as error:
                if len(part) == 1:
                    part[0].error = error
                else:  # one after the other, to find out which is at fault
                    parts += [[call] for call in part]
