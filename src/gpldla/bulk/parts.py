"""The files of the answers, one per chunk, each with its checksum as `sha256sum --check` reads it."""

import hashlib
from collections.abc import Iterable
from pathlib import Path

from gpldla.utils.checksums import file_checksum
from gpldla.utils.files import write_atomically

CHECKSUMS = "_checksums"  # folder beside the parts; readers of Parquet folders skip names with an underscore


def write_part(part: Path, content: bytes) -> None:
    """Write the file of a chunk; its checksum first, so that no part is ever without."""
    line = f"{hashlib.sha256(content).hexdigest()}  {part.name}\n"
    write_atomically(_checksum_file(part), line.encode())
    write_atomically(part, content)


def remove_damaged(parts: Iterable[Path]) -> list[Path]:
    """Remove those of some existing parts that are not what was written; return them.

    Parts of earlier versions have no checksums and are kept.
    """
    damaged = [part for part in parts if not _is_whole(part)]
    for part in damaged:
        part.unlink()
    return damaged


def _is_whole(part: Path) -> bool:
    noted = _checksum_file(part)
    return not noted.exists() or noted.read_bytes().split()[:1] == [file_checksum(part).encode()]


def _checksum_file(part: Path) -> Path:
    return part.parent / CHECKSUMS / f"{part.stem}.sha256"
