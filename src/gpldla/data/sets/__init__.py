"""The data sets, one family per file; importing this package registers all of them."""

from importlib import import_module
from pkgutil import iter_modules

from gpldla.data.sets.base import SETS, BundledSet, DataSet, ImageFileSet, StoredSet, Survey, register_dataset
from gpldla.data.sets.folder import PREFIX as FOLDER_PREFIX
from gpldla.data.sets.folder import FolderSet

for _module in iter_modules(__path__):
    import_module(f"{__name__}.{_module.name}")

__all__ = [
    "FOLDER_PREFIX",
    "SETS",
    "BundledSet",
    "DataSet",
    "FolderSet",
    "ImageFileSet",
    "StoredSet",
    "Survey",
    "register_dataset",
]
