"""What every process of a bulk scoring must know: the classifier, the source, and where answers go."""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from gpldla.bulk.sources import Source, Unit
from gpldla.classifier.abstention import MAX_ERROR, PREVALENCE
from gpldla.utils.plugins import IMPORT_VARIABLE, import_plugin

# Nothing here loads torch, which processes that only read do without.


@dataclass(frozen=True)
class Settings:
    """The settings that the answers depend on, see `gpldla predict --help`."""

    max_error: float = MAX_ERROR
    prevalence: float = PREVALENCE
    skip_bad: bool = False


@dataclass(frozen=True)
class PendingUnit:
    """A unit, and the indices of those of its chunks that are not scored yet."""

    unit: Unit
    missing: list[int]


@dataclass(frozen=True)
class Job:
    """All that a process needs to score a chunk; small, as every worker gets a copy.

    digits:  of a chunk's index in the name of its file
    plugins: modules that a worker imports first, see `gpldla --import`
    """

    classifier: Path
    source: Source
    output: Path
    settings: Settings
    digits: int
    plugins: tuple[str, ...] = ()

    def part(self, index: int) -> Path:
        """Return the file of a chunk."""
        return self.output / f"part-{index:0{self.digits}}.parquet"

    def read(self, pending: PendingUnit) -> Iterator[tuple[int, pa.Table]]:
        """Yield the chunks that are not scored yet; always the same ones, as Ray counts them on a retry."""
        for index, table in self.source.read(pending.unit):
            if index in pending.missing:
                yield index, table

    def import_plugins(self) -> None:
        """Import the plugins in this process, which may run on another machine than the command."""
        for name in self.plugins:
            import_plugin(name)


def imported_plugins() -> tuple[str, ...]:
    """Return the modules that `gpldla --import` has imported."""
    return tuple(filter(None, os.environ.get(IMPORT_VARIABLE, "").split(os.pathsep)))
