"""The metrics of a training as it goes: lines of JSON, and TensorBoard files."""

import json
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

from torch.utils.tensorboard import SummaryWriter

from gpldla.utils.files import write_atomically

if TYPE_CHECKING:
    from lightning_fabric.loggers.logger import Logger

METRICS = "metrics.jsonl"


class MetricsRecorder:
    """Writes metrics to a folder, from a step on; later ones, of an interrupted run, are dropped first.

    folder: None records nothing
    tracker: another place for them
    """

    def __init__(
        self, folder: Path | None, step_name: str, step: int, tracker: "Logger | None" = None
    ) -> None:
        self._step_name, self._tracker = step_name, tracker
        self._lines, self._board = None, None
        if folder is None:
            return
        folder.mkdir(parents=True, exist_ok=True)
        _drop_after(folder / METRICS, step_name, step)
        self._lines = (folder / METRICS).open("a", encoding="utf-8")
        board = folder / "tensorboard" / ("" if step_name == "episode" else step_name)
        self._board = SummaryWriter(str(board), purge_step=step)

    def record(self, step: int, metrics: dict[str, float]) -> None:
        """Write metrics of a step."""
        if self._lines is None or self._board is None:
            return
        self._lines.write(json.dumps({self._step_name: step, **metrics}) + "\n")
        self._lines.flush()
        for name, value in metrics.items():
            self._board.add_scalar(name, value, step)
        if self._tracker is not None:
            prefix = "" if self._step_name == "episode" else f"{self._step_name}/"
            self._tracker.log_metrics({prefix + name: value for name, value in metrics.items()}, step)

    def __enter__(self) -> "MetricsRecorder":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for file in (self._lines, self._board):
            if file is not None:
                file.close()
        if self._tracker is not None:
            self._tracker.finalize("success" if error is None else "failed")


def read_metrics(folder: Path) -> list[dict[str, float]]:
    """Return what was recorded, line by line; an incomplete line, after a power cut, is skipped."""
    lines = (folder / METRICS).read_bytes().splitlines(True)
    return [metrics for line in lines if (metrics := _parsed(line)) is not None]


def _drop_after(path: Path, step_name: str, step: int) -> None:
    """Drop the lines of steps after this one, which will be done again."""
    if path.exists():
        kept = [line for line in path.read_bytes().splitlines(True) if _is_done(line, step_name, step)]
        write_atomically(path, b"".join(kept))


def _is_done(line: bytes, step_name: str, step: int) -> bool:
    """Return whether a line is complete and of a step up to this one."""
    metrics = _parsed(line)
    return metrics is not None and metrics.get(step_name, 0) <= step


def _parsed(line: bytes) -> dict[str, float] | None:
    try:
        metrics = json.loads(line) if line.endswith(b"\n") else None
    except (ValueError, RecursionError):
        return None
    is_whole = isinstance(metrics, dict) and all(isinstance(one, (int, float)) for one in metrics.values())
    return metrics if is_whole else None
