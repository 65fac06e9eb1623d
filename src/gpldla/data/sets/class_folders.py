"""The commonest layout: one folder a class."""

import re
from collections import defaultdict
from pathlib import PurePosixPath

from gpldla.data.packing import Listing
from gpldla.data.source_files import SourceFile, Tree


def list_class_folders(tree: Tree, class_folder: re.Pattern[str]) -> Listing:
    """Give each image to the innermost folder around it whose name matches; one name is one class.

    An image that lies there twice (in a zip and beside it, unpacked) counts once. A matching folder without
    any image is an empty class.
    """
    found: dict[str, dict[str, SourceFile]] = defaultdict(dict)
    for path, file in tree.images.items():
        owner = _innermost(PurePosixPath(path).parent, class_folder)
        if owner is not None:
            found[owner].setdefault(file.name, file)
    empty = {folder for folder in tree.folders if class_folder.fullmatch(PurePosixPath(folder).name)}
    bad = [
        f"{tree.folder / folder} is a class without images; add some or remove it."
        for folder in sorted(empty)
        if PurePosixPath(folder).name not in found
    ]
    return Listing(
        {name: [files[key] for key in sorted(files)] for name, files in sorted(found.items())},
        (*tree.bad, *bad),
    )


def _innermost(folder: PurePosixPath, class_folder: re.Pattern[str]) -> str | None:
    return next((part for part in reversed(folder.parts) if class_folder.fullmatch(part)), None)
