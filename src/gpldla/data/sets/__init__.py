"""The data sets, one family a file."""

from gpldla.data.sets.base import BundledSet, DataSet, StoredSet, Survey
from gpldla.data.sets.cub import CUB
from gpldla.data.sets.digits import Digits
from gpldla.data.sets.emnist import EMNIST
from gpldla.data.sets.folder import PREFIX as FOLDER_PREFIX
from gpldla.data.sets.folder import FolderSet
from gpldla.data.sets.glyphs import Glyphs
from gpldla.data.sets.imagenet import MiniImageNet, TieredImageNet, TinyImageNetMini
from gpldla.data.sets.omniglot import Omniglot

SETS: dict[str, DataSet] = {
    data_set.name: data_set
    for data_set in (
        Glyphs(),
        Digits(),
        CUB(),
        Omniglot(),
        EMNIST(),
        MiniImageNet(),
        TieredImageNet(),
        TinyImageNetMini(),
    )
}

__all__ = ["FOLDER_PREFIX", "SETS", "BundledSet", "DataSet", "FolderSet", "StoredSet", "Survey"]
