"""What a data set looks like from outside."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from gpldla.data.packing import Listing, pack_files
from gpldla.data.sets.stored_size import photograph_side
from gpldla.data.source_files import Tree, read_tree, stamp
from gpldla.data.splits import class_lists
from gpldla.data.store import ImageSet, write_store
from gpldla.utils.errors import UserError
from gpldla.utils.progress import Reporter


class DataSet(ABC):
    """A data set by name: which classes it should have, and how its images get into a store."""

    name: str
    default_size: int  # input of the backbone that it is usually seen by, in pixels

    @property
    def store_name(self) -> str:
        """What the folders of its stores begin with."""
        return self.name

    @property
    def class_lists(self) -> dict[str, tuple[str, ...]]:
        """The classes that each part should have, where that is written down."""
        return class_lists(self.name)

    def parts(self, class_names: Sequence[str]) -> dict[str, tuple[int, ...]]:
        """Return which of these classes belong to which part: places in `class_names`, in order."""
        part_of = {name: part for part, names in self.class_lists.items() for name in names}
        places: dict[str, list[int]] = {part: [] for part in self.class_lists}
        for place, name in enumerate(class_names):
            if name in part_of:
                places[part_of[name]].append(place)
        return {part: tuple(found) for part, found in places.items()}

    @abstractmethod
    def settings(self, size: int, side: int | None = None) -> dict[str, Any]:
        """Return what the stored images depend on.

        size: input of the backbone that will see them, in pixels
        side: of stored images, where someone chose it
        """


class BundledSet(DataSet):
    """A data set that comes with the package's dependencies and is drawn when it is first used."""

    drawing: ClassVar[dict[str, Any]]  # what the images depend on

    def settings(self, size: int, side: int | None = None) -> dict[str, Any]:
        """The same for every backbone."""
        return self.drawing

    @abstractmethod
    def make(self) -> ImageSet:
        """Draw all images."""

    def pack(self, store: Path, settings: dict[str, Any]) -> None:
        """Write the store."""
        write_store(store, self.make(), {"settings": settings})


@dataclass(frozen=True)
class Survey:
    """What lies in the folder of a data set: images a class, and sentences about what is wrong with it."""

    counts: dict[str, int]
    bad: tuple[str, ...]


class StoredSet(DataSet):
    """A data set whose images a person has put somewhere below the data root."""

    title: ClassVar[str]
    n_images: ClassVar[int | None]  # in a complete copy
    folders: ClassVar[tuple[str, ...]]  # names under which it may lie in the data root
    get: ClassVar[str]  # where a person gets it
    put: ClassVar[str]  # what then has to lie in the data root

    def locate(self, root: Path) -> Path | None:
        """Return the folder of the data set, or None where there is none with something in it."""
        folders = [root / folder for folder in self.folders]
        return next((folder for folder in folders if folder.is_dir() and _holds_something(folder)), None)

    def matches_source(self, source: dict[str, Any], root: Path) -> bool:
        """Say whether a store made from `source` is one of this data set, where its folder has gone."""
        return True

    def source(self, folder: Path) -> dict[str, Any]:
        """Return what tells one copy of the data set from another."""
        return {"stamp": stamp(folder)}

    @abstractmethod
    def survey(self, folder: Path) -> Survey:
        """Count what is there, without decoding it."""

    def empty_message(self, folder: Path) -> str:
        """Say what a folder without a single image of the set should have."""
        files = sorted(folder.iterdir()) if folder.is_dir() else []
        packed = [path for path in files if path.name.endswith((".tgz", ".tar", ".tar.gz"))]
        if packed:
            return f"{packed[0]} is not unpacked; unpack it there."
        return f"{folder} has no images of {self.name}; it should have {self.put}."

    @abstractmethod
    def pack(
        self, folder: Path, store: Path, source: dict[str, Any], report: Reporter, skip_bad: bool
    ) -> None:
        """Decode what lies in `folder` into `store`.

        source:   what the store notes of where it comes from, its settings included
        skip_bad: leave out what cannot be used and note it in the store, instead of raising a sentence
        """


def _holds_something(folder: Path) -> bool:
    try:
        return any(folder.iterdir())
    except OSError:  # what cannot be read is said when it is read
        return True


class ImageFileSet(StoredSet):
    """A data set of one image a file."""

    channels: ClassVar[int] = 3

    @abstractmethod
    def listing(self, tree: Tree) -> Listing:
        """Say which files are whose images."""

    def stored_side(self, size: int) -> int:
        """Return the side of stored images for a backbone with inputs of `size` pixels."""
        return photograph_side(size)

    def settings(self, size: int, side: int | None = None) -> dict[str, Any]:
        """Return the version of the packing and the side that is wanted."""
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
