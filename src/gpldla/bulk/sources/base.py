"""The interface of a source, and the units of work that it is cut into."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import pyarrow as pa

if TYPE_CHECKING:
    from gpldla.data.pictures import ImageLike

# gpldla.data loads torch, which processes that only read Parquet files do without: all modules of this
# package import it inside functions.

Kind = Literal["pictures", "texts", "embeddings"]
ITEM, CONTENT = "item", " content"  # the space tells it from the columns of users
# About ten seconds of work on a CPU and some ten megabytes: the most that is lost, and held in memory.
CHUNK_SIZES: dict[Kind, int] = {"pictures": 512, "texts": 4096, "embeddings": 8192}


@dataclass(frozen=True)
class Unit:
    """Consecutive chunks that are read together.

    first: index of the first chunk
    sizes: rows of each chunk
    where: what the source finds them by, as JSON values
    """

    first: int
    sizes: list[int]
    where: list[Any]

    @property
    def chunks(self) -> list[tuple[int, int]]:
        """The index and the number of rows of each chunk."""
        return list(enumerate(self.sizes, self.first))


@dataclass(frozen=True)
class Survey:
    """All units of a source.

    fingerprint: changes when files are added or removed, or Parquet files change their size
    """

    units: list[Unit]
    fingerprint: str

    @property
    def chunks(self) -> list[tuple[int, int]]:
        """The index and the number of rows of every chunk."""
        return [chunk for unit in self.units for chunk in unit.chunks]


@dataclass(frozen=True)
class Accepted:
    """What a classifier accepts: pictures or texts, and features of a length, or None for no features."""

    reads: str
    feature_dim: int | None


class Source(ABC):
    """Where chunks come from; small, as other processes get a copy. Long lists belong into the units."""

    kind: Kind

    @abstractmethod
    def survey(self, chunk_size: int) -> Survey:
        """List everything, cut into chunks of at most so many rows."""

    @abstractmethod
    def read(self, unit: Unit) -> Iterator[tuple[int, pa.Table]]:
        """Yield the chunks of a unit with their indices."""

    @abstractmethod
    def picture(self, content: bytes) -> "ImageLike":
        """Return what a content stands for: a path, the bytes of a picture file, or pixels."""


def printable(name: str) -> str:
    """As `gpldla.data.user_files.printable`, which would load torch."""
    return name.encode("utf-8", "backslashreplace").decode()
