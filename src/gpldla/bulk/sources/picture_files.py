"""Picture files and folders of them as a source."""

import hashlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from gpldla.bulk.sources.base import CONTENT, ITEM, Kind, Source, Survey, Unit, printable
from gpldla.utils.errors import UserError


@dataclass(frozen=True)
class PictureFiles(Source):
    """Pictures, and folders of them; `base` is the folder that relative paths start from."""

    given: list[str]
    base: str
    kind: Kind = "pictures"

    def survey(self, chunk_size: int) -> Survey:
        """List all pictures; each chunk is a unit.

        The fingerprint is of names alone: a damaged file may be replaced before the run is resumed.
        """
        from gpldla.data.user_files import pictures_below

        files: list[str] = []
        for argument in self.given:
            folder = Path(argument)
            found = pictures_below(folder) if folder.is_dir() else [folder]
            if not found:
                raise UserError(f"The folder {folder} holds no pictures and no Parquet files.")
            files += map(str, found)
        digest = hashlib.sha256()
        for file in files:
            digest.update(f"{printable(file)}\n".encode())
        parts = [files[first : first + chunk_size] for first in range(0, len(files), chunk_size)]
        return Survey(
            [Unit(index, [len(part)], part) for index, part in enumerate(parts)], digest.hexdigest()
        )

    def read(self, unit: Unit) -> Iterator[tuple[int, pa.Table]]:
        """Yield the paths; the files are read where they are decoded."""
        items = [printable(file) for file in unit.where]
        paths = [os.fsencode(file) for file in unit.where]  # bytes, as file names need not be Unicode
        yield (
            unit.first,
            pa.table({ITEM: pa.array(items, pa.string()), CONTENT: pa.array(paths, pa.binary())}),
        )

    def picture(self, content: bytes) -> Path:
        """Return the path of a file."""
        return Path(self.base) / os.fsdecode(content)
