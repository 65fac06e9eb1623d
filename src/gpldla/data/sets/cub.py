"""CUB-200-2011: photographs of 200 bird species, whole images, in class folders."""

import re
from collections.abc import Sequence

from gpldla.data.packing import Listing
from gpldla.data.sets.base import ImageFileSet, register_dataset
from gpldla.data.sets.class_folders import list_class_folders
from gpldla.data.source_files import Tree


@register_dataset
class CUB(ImageFileSet):
    """Class folders such as 001.Black_footed_Albatross; base are those at even indices."""

    name = "cub"
    title = "CUB-200-2011"
    default_size = 84
    n_images = 11_788
    folders = ("cub", "CUB", "CUB_200_2011", "cub-200-2011")
    get = "https://www.vision.caltech.edu/datasets/cub_200_2011/ (CUB_200_2011.tgz, unpacked)"
    put = "CUB_200_2011/images/001.Black_footed_Albatross/*.jpg and so on, or zips of that"

    def listing(self, tree: Tree) -> Listing:
        """Take every folder whose name begins with three digits."""
        masks = {"segmentations"}  # which are often unpacked beside the images
        return list_class_folders(tree, re.compile(r"\d{3}\..+").fullmatch, ignored_folders=masks)

    def parts(self, class_names: Sequence[str]) -> dict[str, tuple[int, ...]]:
        """Match classes by the three digits alone."""
        names = {name[:3]: name for names in self.class_lists.values() for name in names}
        return super().parts([names.get(name[:3], name) for name in class_names])
