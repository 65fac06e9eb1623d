"""What every process of a bulk scoring must know: the classifier, the source, and where answers go."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from gpldla.bulk.sources import Source, Unit

# Nothing here loads torch, which processes that only read do without.


@dataclass(frozen=True)
class Settings:
    """What the answers depend on beside the classifier and the items, see `gpldla predict --help`."""

    max_error: float = 0.25
    prevalence: float = 0.1
    skip_bad: bool = False


@dataclass(frozen=True)
class PendingUnit:
    """A unit, and the numbers of those of its chunks that are to be scored."""

    unit: Unit
    missing: list[int]


@dataclass(frozen=True)
class Job:
    """All that a process must know to score a chunk: small, as it goes to every worker."""

    classifier: Path
    source: Source
    output: Path
    settings: Settings
    digits: int

    def part(self, number: int) -> Path:
        """Return the file of a chunk."""
        return self.output / f"part-{number:0{self.digits}}.parquet"

    def read(self, work: PendingUnit) -> Iterator[tuple[int, pa.Table]]:
        """Yield the chunks to be scored: always the same ones, as Ray counts them when it reads anew."""
        for number, table in self.source.read(work.unit):
            if number in work.missing:
                yield number, table
