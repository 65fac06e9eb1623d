"""Many trainings on one machine: a few at a time, each once what it needs is there, until the time is up."""

import math
import subprocess
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

TERMINATION_SECONDS = 60.0  # a training that is told to stop writes its state first
POLL_SECONDS = 0.1


@dataclass(frozen=True)
class Job:
    """Commands that run one after the other.

    done:  the file that the last of them writes; where it is there, nothing is left to do
    needs: files of other jobs that must be there first
    steps: returns the commands when the job begins, because earlier jobs may decide on them
    """

    name: str
    done: Path
    steps: Callable[[], Sequence[Sequence[str]]]
    needs: tuple[Path, ...] = ()


@dataclass
class _Running:
    """A job under way; what its commands print is kept in a log beside its folder."""

    job: Job
    log: Path
    left: list[Sequence[str]] = field(init=False)
    process: "subprocess.Popen[bytes] | None" = None

    def __post_init__(self) -> None:
        self.left = list(self.job.steps())
        self.log.parent.mkdir(parents=True, exist_ok=True)
        self.log.unlink(missing_ok=True)

    def advance(self) -> str | None:
        """Begin the next command if none runs; return how the job ended, or None while it goes on."""
        if self.process is not None:
            code = self.process.poll()
            if code is None:
                return None
            if code:
                return f"failed: {self.log.read_text('utf-8', 'replace').strip()[-500:]}"
            self.process = None
        if not self.left:
            return "done" if self.job.done.exists() else f"failed: it did not write {self.job.done}"
        with self.log.open("ab") as output:
            self.process = subprocess.Popen(self.left.pop(0), stdout=output, stderr=output)
        return None

    def stop(self) -> None:
        """Ask the command under way to stop."""
        if self.process is not None:
            self.process.terminate()

    def wait(self) -> None:
        """Wait until it has stopped, and kill it if it does not."""
        if self.process is None:
            return
        try:
            self.process.wait(TERMINATION_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def run_jobs(
    jobs: Iterable[Job],
    logs: Path,
    *,
    at_once: int,
    seconds: float = math.inf,
    tell: Callable[[str], None] = print,
) -> bool:
    """Run the jobs in their order, as far as what they need is there; return whether all are done.

    seconds: after so many, what is under way is stopped; the same call goes on from there
    """
    waiting = list(jobs)
    for job in [job for job in waiting if job.done.exists()]:
        waiting.remove(job)
        tell(f"{job.name}: done before")
    running: list[_Running] = []
    complete, started = True, time.monotonic()
    try:
        while waiting or running:
            if time.monotonic() - started > seconds:
                tell(f"Time is up: {len(running)} under way, {len(waiting)} not begun.")
                return False
            for job in [job for job in waiting if all(path.exists() for path in job.needs)]:
                if len(running) == at_once:
                    break
                waiting.remove(job)
                running.append(_Running(job, logs / f"{job.name}.log"))
            if not running:
                tell(f"Not begun, because what they need failed: {', '.join(job.name for job in waiting)}.")
                return False
            for current in list(running):
                ended = current.advance()
                if ended is not None:
                    running.remove(current)
                    complete = complete and ended == "done"
                    tell(f"{current.job.name}: {ended} after {time.monotonic() - started:.0f} s")
            time.sleep(POLL_SECONDS)
    finally:
        for current in running:
            current.stop()
        for current in running:
            current.wait()
    return complete
