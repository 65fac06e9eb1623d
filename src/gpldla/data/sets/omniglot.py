"""Omniglot: 1,623 handwritten characters of 50 alphabets, each drawn by 20 people."""

import re
from collections import defaultdict
from collections.abc import Sequence

from gpldla.data.packing import Listing
from gpldla.data.preprocessing import resized_side
from gpldla.data.protocols import register_protocol
from gpldla.data.sets.base import ImageFileSet, register_dataset
from gpldla.data.source_files import SourceFile, Tree

_DRAWING = re.compile(r"(?:.*/)?images_(?:background|evaluation)/([^/]+/character\d+)/([^/]+)")
_CHARACTER = re.compile(r"(?:.*/)?images_(?:background|evaluation)/([^/]+/character\d+)")


@register_dataset
class Omniglot(ImageFileSet):
    """Background and evaluation characters together; Latin letters, which EMNIST has too, are in no part."""

    name = "omniglot"
    title = "Omniglot"
    default_size = 28
    n_images = 32_460
    channels = 1
    folders = ("omniglot", "Omniglot", "omniglot-py")
    get = "https://github.com/brendenlake/omniglot (python/images_background.zip, images_evaluation.zip)"
    put = "images_background.zip and images_evaluation.zip, or what is in them"
    protocol_parts = ()  # it has only base classes; see omniglot-emnist

    def stored_side(self, size: int) -> int:
        """Nothing crops characters at random: store what evaluation resizes to."""
        return resized_side(size)

    def listing(self, tree: Tree) -> Listing:
        """Take images_background/ALPHABET/characterNN and images_evaluation/..."""
        found: dict[str, dict[str, SourceFile]] = defaultdict(dict)
        for path, file in tree.images.items():
            if match := _DRAWING.fullmatch(path):
                found[match[1]].setdefault(match[2], file)
        empty = [
            f"{tree.folder / folder} is a character without drawings; add some or remove it."
            for folder in sorted(tree.folders)
            if (match := _CHARACTER.fullmatch(folder)) and match[1] not in found
        ]
        return Listing(
            {name: [files[key] for key in sorted(files)] for name, files in sorted(found.items())},
            (*tree.bad, *empty),
        )

    def parts(self, class_names: Sequence[str]) -> dict[str, tuple[int, ...]]:
        """Everything but Latin is base."""
        return {
            "base": tuple(index for index, name in enumerate(class_names) if not name.startswith("Latin/"))
        }


register_protocol(
    "omniglot-emnist",
    base=("omniglot", "base"),
    validation=("emnist", "validation"),
    novel=("emnist", "novel"),
)
