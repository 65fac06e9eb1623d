"""The interface of data sets, and their registry."""

import sys
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from gpldla.data.packing import Listing, pack_files
from gpldla.data.protocols import PLUGINS, register_protocol
from gpldla.data.sets.stored_size import photograph_side
from gpldla.data.source_files import Tree, read_tree, stamp
from gpldla.data.splits import PARTS, read_class_lists
from gpldla.data.store import ImageSet, write_store
from gpldla.utils.errors import UserError
from gpldla.utils.progress import Reporter
from gpldla.utils.registry import Registry


class DataSet(ABC):
    """A data set: its name, the classes it should have, and how its images get into a store.

    name:           what users call it
    default_size:   input size of the backbone that it is usually used with, in pixels
    protocol_parts: the parts that make a protocol of the set's own name; () where it makes none
    """

    name: str
    default_size: int
    protocol_parts: ClassVar[tuple[str, ...]] = PARTS

    @property
    def store_name(self) -> str:
        """The prefix of its stores' folder names."""
        return self.name

    @property
    def class_lists(self) -> dict[str, tuple[str, ...]]:
        """The classes that each part should have, from files in the folder `splits` beside the class's own.

        A subclass in another folder that keeps the name keeps the lists.
        """
        modules = [sys.modules.get(kind.__module__) for kind in type(self).__mro__]
        files = [file for module in modules if (file := getattr(module, "__file__", None))]
        found = (read_class_lists(Path(file).with_name("splits"), self.name) for file in files)
        return next(filter(None, found), {})

    def parts(self, class_names: Sequence[str]) -> dict[str, tuple[int, ...]]:
        """Return the classes of each part, as ascending indices into `class_names`."""
        part_of = {name: part for part, names in self.class_lists.items() for name in names}
        indices: dict[str, list[int]] = {part: [] for part in self.class_lists}
        for index, name in enumerate(class_names):
            if name in part_of:
                indices[part_of[name]].append(index)
        return {part: tuple(found) for part, found in indices.items()}

    @abstractmethod
    def settings(self, size: int, side: int | None = None) -> dict[str, Any]:
        """Return the settings that the stored images depend on.

        size: input size of the backbone that will see them, in pixels
        side: of stored images, where the user chose it
        """


SETS: Registry[DataSet] = Registry("data set", group=PLUGINS)
AnyDataSet = TypeVar("AnyDataSet", bound=type[DataSet])


def register_dataset(kind: AnyDataSet) -> AnyDataSet:
    """Register a data set, and the protocol of its name if it makes one; a decorator for its class."""
    data_set = kind()
    SETS.register(data_set.name)(data_set)
    if data_set.protocol_parts:
        register_protocol(data_set.name, **{part: (data_set.name, part) for part in data_set.protocol_parts})
    return kind


class BundledSet(DataSet):
    """A data set that is drawn when it is first used, such as from files of the package's dependencies."""

    drawing: ClassVar[dict[str, Any]]  # the settings that the images depend on

    def settings(self, size: int, side: int | None = None) -> dict[str, Any]:
        """Return the same for every backbone."""
        return self.drawing

    @abstractmethod
    def make(self) -> ImageSet:
        """Draw all images."""

    def pack(self, store: Path, settings: dict[str, Any]) -> None:
        """Write the store."""
        write_store(store, self.make(), {"settings": settings})


@dataclass(frozen=True)
class Survey:
    """The contents of a data set's folder: images per class, and one sentence per fault."""

    counts: dict[str, int]
    bad: tuple[str, ...]


class StoredSet(DataSet):
    """A data set whose images the user has put below the data root."""

    title: ClassVar[str]
    n_images: ClassVar[int | None]  # in a complete copy
    folders: ClassVar[tuple[str, ...]]  # names that its folder may have in the data root
    get: ClassVar[str]  # where to download it
    put: ClassVar[str]  # the files that the folder must then contain

    def locate(self, root: Path) -> Path | None:
        """Return the folder of the data set, or None if it does not exist or is empty."""
        folders = [root / folder for folder in self.folders]
        return next((folder for folder in folders if folder.is_dir() and _has_entries(folder)), None)

    def matches_source(self, source: dict[str, Any], root: Path) -> bool:
        """Return whether a store made from `source` is of this data set, once its folder is gone."""
        return True

    def source(self, folder: Path) -> dict[str, Any]:
        """Return facts that distinguish one copy of the data set from another."""
        return {"stamp": stamp(folder)}

    @abstractmethod
    def survey(self, folder: Path) -> Survey:
        """Count the images, without decoding them."""

    def empty_message(self, folder: Path) -> str:
        """Return a sentence on what a folder without any image of the set should contain."""
        files = sorted(folder.iterdir()) if folder.is_dir() else []
        packed = [path for path in files if path.name.endswith((".tgz", ".tar", ".tar.gz"))]
        if packed:
            return f"{packed[0]} is not unpacked; unpack it there."
        return f"{folder} has no images of {self.name}; it should have {self.put}."

    @abstractmethod
    def pack(
        self, folder: Path, store: Path, source: dict[str, Any], report: Reporter, skip_bad: bool
    ) -> None:
        """Decode the images in `folder` into `store`.

        source:   facts about the origin that go into the store's manifest, its settings included
        skip_bad: leave faulty files out and list them in the manifest, instead of raising a sentence
        """


def _has_entries(folder: Path) -> bool:
    try:
        return any(folder.iterdir())
    except OSError:  # reported when the folder is read
        return True


class ImageFileSet(StoredSet):
    """A data set with one file per image."""

    channels: ClassVar[int] = 3

    @abstractmethod
    def listing(self, tree: Tree) -> Listing:
        """Return the files of each class."""

    def stored_side(self, size: int) -> int:
        """Return the side of stored images for a backbone with inputs of `size` pixels."""
        return photograph_side(size)

    def settings(self, size: int, side: int | None = None) -> dict[str, Any]:
        """Return the version of the packing and the wanted side."""
        return {"version": 1, "wanted_side": side or self.stored_side(size), "channels": self.channels}

    def survey(self, folder: Path) -> Survey:
        """Count files."""
        listing = self.listing(read_tree(folder))
        return Survey({name: len(files) for name, files in listing.files_of_class.items()}, listing.bad)

    def pack(
        self, folder: Path, store: Path, source: dict[str, Any], report: Reporter, skip_bad: bool
    ) -> None:
        """Decode all files."""
        listing = self.listing(read_tree(folder))
        if not listing.files_of_class and not listing.bad:
            raise UserError(self.empty_message(folder))
        pack_files(
            listing,
            store,
            name=self.name,
            channels=self.channels,
            wanted_side=source["settings"]["wanted_side"],
            source=source,
            report=report,
            skip_bad=skip_bad,
        )
