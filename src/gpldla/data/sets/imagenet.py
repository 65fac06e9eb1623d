"""Parts of ImageNet with classes by WordNet id: miniImageNet, tieredImageNet, and a stand-in."""

import csv
import io
from collections import defaultdict
from pathlib import PurePosixPath
from typing import ClassVar

from gpldla.data.packing import Listing
from gpldla.data.protocols import ALL, register_protocol
from gpldla.data.sets.base import ImageFileSet, register_dataset
from gpldla.data.sets.class_folders import list_class_folders
from gpldla.data.source_files import SourceFile, Tree
from gpldla.utils.errors import UserError

TABLES = ("train.csv", "val.csv", "test.csv")


class WordNetSet(ImageFileSet):
    """Class folders by WordNet id, at any depth; folders of classes in no part are left out."""

    default_size = 84

    def listing(self, tree: Tree) -> Listing:
        """Take the class folders of the split."""
        return list_class_folders(tree, self._class_names().__contains__)

    def _class_names(self) -> set[str]:
        return {name for names in self.class_lists.values() for name in names}


@register_dataset
class TieredImageNet(WordNetSet):
    """608 classes of ILSVRC-2012."""

    name = "tieredimagenet"
    title = "tieredImageNet"
    n_images = 779_165
    folders = ("tieredimagenet", "tieredImageNet", "tiered-imagenet", "tiered_imagenet")
    get = "https://www.image-net.org (the 608 classes of ILSVRC-2012 in the lists of this package)"
    put = "one folder per class, such as n01440764/*.JPEG, also below train, val and test; or zips of that"


@register_dataset
class MiniImageNet(WordNetSet):
    """Images in one folder with the three tables of Ravi and Larochelle, or one folder per class."""

    name = "miniimagenet"
    title = "miniImageNet"
    n_images = 60_000
    folders: ClassVar[tuple[str, ...]] = (
        "miniimagenet",
        "miniImageNet",
        "mini-imagenet",
        "mini_imagenet",
        "miniImagenet",
    )
    get = (
        "https://www.image-net.org (100 classes of ILSVRC-2012, 600 images each), with the tables of"
        " https://github.com/twitter-research/meta-learning-lstm"
    )
    put = (
        "images/*.jpg with train.csv, val.csv and test.csv, or one folder per class, such as n01532829;"
        " or zips of these"
    )

    def listing(self, tree: Tree) -> Listing:
        """Read the tables if there are any, else take class folders."""
        tables = {path: file for path, file in tree.files.items() if PurePosixPath(path).name in TABLES}
        by_tables = _list_by_tables(tree, tables, self._class_names()) if tables else Listing({})
        if by_tables.files_of_class:
            return by_tables
        by_folders = super().listing(tree)  # whose files may have other names than in the tables
        return by_folders if by_folders.files_of_class else by_tables


@register_dataset
class TinyImageNetMini(MiniImageNet):
    """The stand-in: 100 classes of Tiny ImageNet, 550 images each, in miniImageNet's layout."""

    name = "tinyimagenet-mini"
    title = "Tiny ImageNet in the manner of miniImageNet"
    n_images = 55_000
    folders = ("tinyimagenet-mini", "tiny-imagenet-200")
    get = "http://cs231n.stanford.edu/tiny-imagenet-200.zip"
    put = "that zip, or images/*.webp with train.csv, val.csv and test.csv, or zips of these"

    def listing(self, tree: Tree) -> Listing:
        """Add the validation images of the original, whose classes are in a text file."""
        listing = super().listing(tree)
        notes = [file for path, file in tree.files.items() if path.endswith("val/val_annotations.txt")]
        if not notes:
            return listing
        images = {file.name: file for path, file in tree.images.items() if "val/images/" in path}
        files_of_class = {name: list(files) for name, files in listing.files_of_class.items()}
        for line in notes[0].read().decode("utf-8", "replace").splitlines():
            filename, label, *_ = [*line.split("\t"), ""]
            if label in files_of_class and filename in images:
                files_of_class[label].append(images[filename])
        return Listing(files_of_class, listing.bad)


for _name, _base in (("mini-cub", "miniimagenet"), ("tinyimagenet-cub", "tinyimagenet-mini")):
    register_protocol(_name, base=(_base, ALL), validation=("cub", "validation"), novel=("cub", "novel"))


def _list_by_tables(tree: Tree, tables: dict[str, SourceFile], class_names: set[str]) -> Listing:
    """Find the file of each line `filename,label` whose label is one of the classes."""
    images = {PurePosixPath(path).name: file for path, file in tree.images.items()}
    found: dict[str, dict[str, SourceFile]] = defaultdict(dict)
    missing: dict[str, list[str]] = defaultdict(list)
    bad = list(tree.bad)
    for table in tables.values():
        try:
            rows = _read_table(table)
        except UserError as error:
            bad.append(str(error))
            continue
        for filename, label in rows:
            if label not in class_names:
                continue
            name = PurePosixPath(filename).name
            if name in images:
                found[label][name] = images[name]
            else:
                missing[label].append(
                    f"{table} names {filename}, which is not there; get it or remove the line."
                )
    for label, sentences in missing.items():
        if label in found:
            bad += sentences
        else:  # such as the classes of a zip still to come: one sentence for all
            bad.append(
                f"{sentences[0].removesuffix('.')}; nor is any of its {len(sentences)} files of {label}."
            )
    return Listing(
        {label: [files[name] for name in sorted(files)] for label, files in sorted(found.items())}, tuple(bad)
    )


def _read_table(table: SourceFile) -> list[tuple[str, str]]:
    try:
        rows = list(csv.DictReader(io.StringIO(table.read().decode("utf-8-sig"))))
    except (UnicodeDecodeError, csv.Error) as error:
        raise UserError(f"{table} is not a table of text ({error}); get it anew.") from None
    if not rows or not {"filename", "label"} <= rows[0].keys():
        raise UserError(f"{table} has no columns filename and label; get it anew.")
    if any(not row["filename"] or not row["label"] for row in rows):
        raise UserError(f"{table} has a line without filename or label; get it anew.")
    return [(row["filename"], row["label"]) for row in rows]
