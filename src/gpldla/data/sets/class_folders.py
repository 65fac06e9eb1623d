"""The most common layout: one folder per class."""

from collections import defaultdict
from collections.abc import Callable, Collection
from pathlib import PurePosixPath

from gpldla.data.packing import Listing
from gpldla.data.source_files import SourceFile, Tree


def list_class_folders(
    tree: Tree, is_class: Callable[[str], object], ignored_folders: Collection[str] = ()
) -> Listing:
    """Give each image to the innermost folder around it that is a class by its name; one name is one class.

    An image that is there twice (in a zip and unpacked beside it) counts once. A class folder without images
    is a fault. Files below folders with a name in `ignored_folders` do not count.
    """
    found: dict[str, dict[str, SourceFile]] = defaultdict(dict)
    for path, file in tree.images.items():
        folders = PurePosixPath(path).parent.parts
        owner = next((name for name in reversed(folders) if is_class(name)), None)
        if owner is not None and not set(folders) & set(ignored_folders):
            found[owner].setdefault(file.name, file)
    empty = [
        f"{tree.folder / folder} is a class without images; add some or remove it."
        for folder in sorted(tree.folders)
        if is_class(name := PurePosixPath(folder).name)
        and name not in found
        and not set(PurePosixPath(folder).parts) & set(ignored_folders)
    ]
    return Listing(
        {name: [files[key] for key in sorted(files)] for name, files in sorted(found.items())},
        (*tree.bad, *empty),
    )
