"""Progress: a live bar on a terminal, a line every few seconds elsewhere."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Column

from gpldla.utils.visible import visible

SECONDS_BETWEEN_LINES = 10.0
SHORT_NAMES = {"accuracy": "acc %", "beta": "β", "beta_b": "β_b"}


def say(console: Console, message: str) -> None:
    """Print a line verbatim, without wrapping paths or obeying brackets and escape codes in it."""
    console.print(visible(message), highlight=False, markup=False, soft_wrap=True)


class Reporter:
    """Prints messages and progress to a console; without one it is silent."""

    def __init__(self, console: Console | None = None) -> None:
        self._console = console

    def say(self, message: str) -> None:
        """Print a line."""
        if self._console is not None:
            say(self._console, message)

    @contextmanager
    def bar(self, label: str, total: int) -> Iterator[Callable[[int], None]]:
        """Show a bar up to `total` while the block runs; yields a function that takes the steps just done."""
        if self._console is None:
            yield lambda steps: None
            return
        if not self._console.is_terminal:
            yield self._lines(label, total)
            return
        columns = (
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
        )
        with Progress(*columns, console=self._console) as progress:
            task = progress.add_task(label, total=total)
            yield lambda steps: progress.advance(task, steps)

    def _lines(self, label: str, total: int) -> Callable[[int], None]:
        """Return a function that prints a line every few seconds, for a log file."""
        done, last = 0, time.monotonic()

        def advance(steps: int) -> None:
            nonlocal done, last
            done += steps
            if time.monotonic() - last >= SECONDS_BETWEEN_LINES:
                last = time.monotonic()
                self.say(f"{label}: {done:,} of {total:,}")

        return advance


SILENT = Reporter()


class CountProgress:
    """Shows the progress, the rate per second, the latest metrics and the remaining time."""

    def __init__(
        self, total: int, done: int, console: Console, *, unit: str = "episodes", enabled: bool = True
    ) -> None:
        self._total, self._first, self._started = total, done, time.monotonic()
        self._console, self._unit, self._enabled = console, unit, enabled
        self._last_line = self._started
        self._bar: Progress | None = None
        if enabled and console.is_terminal:
            # In a narrow window the bar shrinks, the metrics stay.
            self._bar = Progress(
                BarColumn(bar_width=None, table_column=Column(ratio=1)),
                MofNCompleteColumn(table_column=Column(no_wrap=True)),
                TextColumn("{task.fields[rate]}", table_column=Column(no_wrap=True)),
                TextColumn("{task.fields[numbers]}", table_column=Column(no_wrap=True)),
                TimeRemainingColumn(table_column=Column(no_wrap=True)),
                console=console,
                expand=True,
            )
            self._task = self._bar.add_task("training", total=total, completed=done, rate="", numbers="")

    def __enter__(self) -> "CountProgress":
        if self._bar:
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar:
            self._bar.stop()

    def update(self, done: int, numbers: dict[str, float]) -> None:
        """Show the state after `done` episodes."""
        if not self._enabled:
            return
        now = time.monotonic()
        rate = (done - self._first) / max(now - self._started, 1e-9)
        rate_text = f"{rate:.1f} {self._unit}/s" if self._console.width >= 100 else f"{rate:.1f}/s"
        text = " ".join(f"{SHORT_NAMES.get(name, name)} {value:.3g}" for name, value in numbers.items())
        if self._bar:
            self._bar.update(self._task, completed=done, rate=rate_text, numbers=text)
        elif now - self._last_line >= SECONDS_BETWEEN_LINES or done == self._total:
            self._last_line = now
            left = (self._total - done) / max(rate, 1e-9)
            say(self._console, f"{done}/{self._total}  {rate_text}  {text}  {left:.0f} s left")

    def say(self, message: str) -> None:
        """Print a line above the bar."""
        if self._enabled:
            say(self._console, message)
