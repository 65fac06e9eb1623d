"""What the cache folder holds, how large it is, and its removal."""

import re
import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from gpldla.data.store_manifest import MANIFEST
from gpldla.utils.errors import UserError

STORE_NAME = re.compile(r".+-[0-9a-f]{10}")  # see `store_folder`


@dataclass(frozen=True)
class CachePart:
    """One kind of content: what it is, and its files or, for stores, its folders."""

    purpose: str
    paths: list[Path]

    @property
    def size(self) -> int:
        """The bytes of all files."""
        return sum(map(_size, self.paths))


def cache_contents(cache: Path) -> dict[str, CachePart]:
    """Return the parts of a cache folder, by name; other files that lie in it are in none of them."""
    # SQLite keeps files such as NAME.sqlite-journal beside its own.
    features = _files(cache / "features", ("*.sqlite", "*.sqlite-*"))
    stores = sorted(path.parent for path in cache.glob(f"*/{MANIFEST}") if _is_store(path.parent))
    return {
        "features": CachePart("features of pictures and texts, computed again when needed", features),
        "graphs": CachePart("networks for ONNX Runtime, traced again when needed", _files(cache / "graphs")),
        "stores": CachePart("packed data sets, packed again if their images are still there", stores),
    }


def clear(contents: dict[str, CachePart], parts: Iterable[str]) -> int:
    """Remove parts of a cache; return how many bytes that were."""
    freed = 0
    for name in parts:
        for path in contents[name].paths:
            size = _size(path)
            try:
                shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
            except OSError as error:
                raise UserError(f"{path} cannot be removed ({error}); remove it yourself.") from None
            freed += size
    return freed


def _files(folder: Path, patterns: Iterable[str] = ("*.onnx",)) -> list[Path]:
    return sorted(path for pattern in patterns for path in folder.glob(pattern) if path.is_file())


def _is_store(folder: Path) -> bool:
    return STORE_NAME.fullmatch(folder.name) is not None and not folder.is_symlink()


def _size(path: Path) -> int:
    try:
        if path.is_dir():
            return sum(each.stat().st_size for each in path.rglob("*") if each.is_file())
        return path.stat().st_size
    except FileNotFoundError:  # another process has removed it
        return 0
