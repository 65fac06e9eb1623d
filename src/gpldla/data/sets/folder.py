"""Any folder of class folders, as a data set with a split by class."""

import csv
import hashlib
import io
import json
import re
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from typing import Any

from gpldla.data.packing import Listing
from gpldla.data.sets.base import ImageFileSet
from gpldla.data.source_files import SourceFile, Tree
from gpldla.data.splits import PARTS
from gpldla.utils.errors import UserError

PREFIX = "folder:"
USAGE = "folder:PATH, folder:PATH,seed=3, folder:PATH,split=FILE or folder:PATH,split=novel"
PART_ALIASES = {
    "base": "base",
    "train": "base",
    "validation": "validation",
    "valid": "validation",
    "val": "validation",
    "novel": "novel",
    "test": "novel",
}


class FolderSet(ImageFileSet):
    """Photographs in one folder per class.

    The parts are those of the split file; else the folders train, val and test around the class folders,
    if they exist; else drawn from a seed, half of the classes base and a quarter each validation and
    novel. The split `novel` puts every class there, for testing a model on all of them.
    """

    title = "your own folder of class folders"
    default_size = 84
    n_images = None
    get = ""
    put = "one folder of images per class"

    def __init__(self, path: Path, *, seed: int = 0, split: str | None = None) -> None:
        self.path, self.seed, self.split = path, seed, split
        self.name = f"{PREFIX}{path}"

    @classmethod
    def from_name(cls, name: str) -> "FolderSet":
        """Read `folder:PATH` with its options; PATH may hold commas."""
        rest, options = name.removeprefix(PREFIX), {}
        while match := re.fullmatch(r"(.+),(seed)=([^,]*)|(.+),(split)=(.*)", rest):
            rest, key, value = (group for group in match.groups() if group is not None)
            options[key] = value
            if not value:
                raise UserError(f"{name!r} has no value for {key}; write {USAGE}.")
        if not rest:
            raise UserError(f"{name!r} names no folder; write {USAGE}.")
        if not re.fullmatch(r"\d{1,18}", options.get("seed", "0")):
            raise UserError(f"The seed of {name!r} is not a whole number; write {USAGE}.")
        return cls(Path(rest).expanduser(), seed=int(options.get("seed", 0)), split=options.get("split"))

    @property
    def store_name(self) -> str:
        """The name of the folder, but not the path to it."""
        return f"folder-{self.path.absolute().name}"

    @property
    def class_lists(self) -> dict[str, tuple[str, ...]]:
        """No classes are expected."""
        return {}

    def locate(self, root: Path) -> Path | None:
        """Return the path itself, or the path below the data root."""
        return next((path for path in (self.path, root / self.path) if path.exists()), None)

    def matches_source(self, source: dict[str, Any], root: Path) -> bool:
        """Return whether the path is the same folder: a relative path depends on the current one."""
        return source.get("path") in (str(self.path.resolve()), str((root / self.path).resolve()))

    def source(self, folder: Path) -> dict[str, Any]:
        """Return the path too: two folders have two stores even with equal content."""
        return {**super().source(folder), "path": str(folder.resolve())}

    def listing(self, tree: Tree) -> Listing:
        """Take the outermost folders as classes, or those below train, val and test.

        A class below such a folder is named with it: train/cat.
        """
        images = {PurePosixPath(path).parts: file for path, file in tree.images.items()}
        outside = _wrapping(list(images))
        start = len(outside)
        inside = {parts[start:]: file for parts, file in images.items() if parts[:start] == outside}
        tops = {parts[0] for parts in inside if len(parts) > 1}
        depth = 2 if tops and {top.lower() for top in tops} <= PART_ALIASES.keys() else 1
        found: dict[str, list[SourceFile]] = defaultdict(list)
        for parts, file in inside.items():
            if len(parts) > depth:
                found["/".join(parts[:depth])].append(file)
        folders = [PurePosixPath(folder).parts for folder in tree.folders]
        empty = [
            f"{tree.folder.joinpath(*parts)} is a class without images; add some or remove it."
            for parts in sorted(folders)
            if parts[:start] == outside
            and len(parts) == start + depth
            and "/".join(parts[start:]) not in found
        ]
        return Listing(dict(sorted(found.items())), (*tree.bad, *empty))

    def parts(self, class_names: Sequence[str]) -> dict[str, tuple[int, ...]]:
        """Split the classes as described in the docstring of the class."""
        if self.split in PART_ALIASES:
            return {PART_ALIASES[self.split]: tuple(range(len(class_names)))}
        if self.split is not None:
            return self._parts_of_file(Path(self.split).expanduser(), class_names)
        if all("/" in name for name in class_names):
            return self._parts_of_folders(class_names)
        return self._drawn_parts(class_names)

    def _drawn_parts(self, class_names: Sequence[str]) -> dict[str, tuple[int, ...]]:
        """Draw by name, not by index: adding or removing a class moves hardly any other."""
        n_classes = len(class_names)
        if n_classes < 3:
            raise UserError(
                f"{self.path} has {n_classes} classes, too few for base, validation and novel ones;"
                f" add classes, or name one part for all: {PREFIX}{self.path},split=novel."
            )
        # Names of folders need not be Unicode.
        texts = [f"{self.seed}/{name}".encode("utf-8", "surrogateescape") for name in class_names]
        keys = [hashlib.sha256(text).digest() for text in texts]
        order = sorted(range(n_classes), key=keys.__getitem__)
        quarter = max(1, round(n_classes / 4))
        ends = (0, n_classes - 2 * quarter, n_classes - quarter, n_classes)
        return {part: tuple(sorted(order[a:b])) for part, a, b in zip(PARTS, ends, ends[1:])}

    def _parts_of_folders(self, class_names: Sequence[str]) -> dict[str, tuple[int, ...]]:
        part_of_class: dict[str, str] = {}
        for name in class_names:
            folder, _, own = name.partition("/")
            part = PART_ALIASES[folder.lower()]
            if part_of_class.setdefault(own, part) != part:
                raise UserError(
                    f"Class {own!r} of {self.path} lies in more than one of train, val and test, and few-shot"
                    " parts share no class; name one of these folders, or a split file."
                )
        return _indices_by_part([PART_ALIASES[name.partition("/")[0].lower()] for name in class_names])

    def _parts_of_file(self, file: Path, class_names: Sequence[str]) -> dict[str, tuple[int, ...]]:
        part_of = _read_split(file)
        unknown = sorted(part_of.keys() - set(class_names))
        if unknown:
            raise UserError(
                f"{file} names the class {unknown[0]!r}, which {self.path} does not have; correct it."
            )
        return _indices_by_part([part_of.get(name) for name in class_names])


def _indices_by_part(part_of_class: Sequence[str | None]) -> dict[str, tuple[int, ...]]:
    indices = {part: tuple(i for i, own in enumerate(part_of_class) if own == part) for part in PARTS}
    return {part: found for part, found in indices.items() if found}


def _wrapping(images: list[tuple[str, ...]]) -> tuple[str, ...]:
    """Return the folders that wrap all others, as the one at the top of a zip does.

    images: the parts of their paths. Files beside the only folder with images do not count.
    """
    wrapping: tuple[str, ...] = ()
    while True:
        below = [
            parts for parts in images if parts[: len(wrapping)] == wrapping and len(parts) > len(wrapping) + 1
        ]
        tops = {parts[len(wrapping)] for parts in below}
        if len(tops) != 1 or not any(len(parts) > len(wrapping) + 2 for parts in below):
            return wrapping
        wrapping = (*wrapping, *tops)


def _read_split(file: Path) -> dict[str, str]:
    """Read the part of each class: CSV with the columns class and part, or JSON with one list per part."""
    try:
        text = file.read_text("utf-8-sig")
        if file.suffix.lower() == ".json":
            pairs = [(name, part) for part, names in json.loads(text).items() for name in _list(names)]
        else:
            pairs = [(row["class"], row["part"]) for row in csv.DictReader(io.StringIO(text))]
    except OSError as error:
        raise UserError(f"{file} cannot be read ({error.strerror}); name another split file.") from None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, csv.Error):
        raise _no_split(file) from None
    part_of: dict[str, str] = {}
    for name, word in pairs:
        if not isinstance(name, str) or not isinstance(word, str):
            raise _no_split(file)
        part = PART_ALIASES.get(word.strip().lower())
        if part is None:
            raise UserError(f"{file} has the part {word!r}; use base, validation and novel.")
        if part_of.setdefault(name, part) != part:
            raise UserError(f"{file} puts the class {name!r} into two parts; keep one.")
    if not part_of:
        raise UserError(f"{file} names no class; write one per line, with its part.")
    return part_of


def _list(names: Any) -> list[Any]:
    if not isinstance(names, list):
        raise TypeError
    return names


def _no_split(file: Path) -> UserError:
    return UserError(
        f"{file} is not a split; write CSV with the columns class,part"
        ' or JSON such as {"base": ["cat"], "novel": ["dog"]}.'
    )
