"""The folders of data: the data root with the user's images, and the cache with packed stores."""

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class DataPaths:
    """The folders that the user chose; None means the environment's, then the platform's.

    The root is only read. All files are written to the cache.
    """

    chosen_root: str | Path | None = None
    chosen_cache: str | Path | None = None

    @property
    def root(self) -> Path:
        """The data root: the chosen one, then GPLDLA_DATA, then the platform's folder for user data."""
        return _folder(self.chosen_root, "GPLDLA_DATA", _platform_data)

    @property
    def cache(self) -> Path:
        """The cache folder: the chosen one, then GPLDLA_CACHE, then the platform's folder for caches."""
        return _folder(self.chosen_cache, "GPLDLA_CACHE", _platform_cache)


def _folder(chosen: str | Path | None, variable: str, platform: Callable[[], Path]) -> Path:
    wanted = chosen or os.environ.get(variable)
    return Path(wanted).expanduser() if wanted else platform()


def _platform_data() -> Path:
    if sys.platform == "win32":
        return _windows_folder() / "data"
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Application Support" / "gpldla"
    return Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share") / "gpldla"


def _platform_cache() -> Path:
    if sys.platform == "win32":
        return _windows_folder() / "cache"
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "gpldla"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "gpldla"


def _windows_folder() -> Path:
    return Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local") / "gpldla"
