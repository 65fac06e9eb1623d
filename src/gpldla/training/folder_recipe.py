"""A recipe that suits a folder of the user's own pictures: `gpldla train folder:PATH`."""

from collections.abc import Sequence
from dataclasses import dataclass
from io import BytesIO
from typing import Any

from gpldla.data.catalog import missing_sentence
from gpldla.data.decoding import open_picture
from gpldla.data.paths import DataPaths
from gpldla.data.sets import FolderSet
from gpldla.data.source_files import SourceFile, read_tree
from gpldla.training.recipe import read_settings
from gpldla.utils.errors import UserError

# What the recipe starts from, and what of it belongs to its own pictures.
PHOTOGRAPHS, CHARACTERS = "cub", "omniglot-emnist"
OF_THEIR_PICTURES = ("zoom", "precision", "stored_side", "validation.shots")
LEAST_CLASSES = 4  # base classes, with fewer there is nothing that could be carried over to new classes
MOST_WAYS = 20
EPOCHS = 1_000  # how often each picture is seen; birds and handwriting are trained so
FEWEST_EPISODES, MOST_EPISODES = 1_000, 60_000
LOOKED_AT = 32  # pictures, to see whether they are drawings
SMALL = 160  # pixels, the longer side of pictures of single characters


@dataclass(frozen=True)
class FolderRecipe:
    """Settings that suit a folder, and a sentence about them."""

    settings: dict[str, Any]
    sentence: str


def folder_recipe(name: str, data_paths: DataPaths) -> FolderRecipe:
    """Choose settings for `folder:PATH` by the number of its classes and pictures, and their kind."""
    data_set = FolderSet.from_name(name)
    folder = data_set.locate(data_paths.root)
    if folder is None:
        raise UserError(missing_sentence(data_set, data_paths))
    files = data_set.listing(read_tree(folder)).files_of_class
    if not files:
        raise UserError(data_set.empty_message(folder))
    classes = list(files)
    if len(classes) < LEAST_CLASSES + 2:
        raise UserError(
            f"{name} has {len(classes)} classes, too few to train a network that learns others; add classes,"
            " or use `gpldla fit`, which needs no training."
        )
    parts = data_set.parts(classes)
    base, validation = (
        {classes[i]: len(files[classes[i]]) for i in parts.get(part, ())} for part in ("base", "validation")
    )
    _check(name, base, validation)
    pictures = [file for listed in files.values() for file in listed]
    kind = CHARACTERS if _are_characters(pictures) else PHOTOGRAPHS
    settings = {key: value for key, value in read_settings(kind).items() if key not in OF_THEIR_PICTURES}
    ways, queries = min(MOST_WAYS, len(base)), min(settings["queries"], min(base.values()) - 1)
    episodes = _rounded(EPOCHS * sum(base.values()) / (ways * (1 + queries)))
    settings |= {
        "dataset": name,
        "ways": ways,
        "shots": 1,
        "queries": queries,
        "episodes": episodes,
        "checkpoint_every": episodes // 20,
        "validation.every": episodes // 10,
        "validation.ways": min(5, len(validation)),
        "validation.queries": min(15, min(validation.values()) - 1),
    }
    what = "drawings of characters" if kind == CHARACTERS else "photographs"
    sentence = (
        f"{name}: {sum(base.values()):,} pictures of {len(base)} base classes, taken for {what}. The recipe"
        f" is {kind} with ways={ways}, shots=1, queries={queries}, episodes={episodes}; --set and --episodes"
        " change it."
    )
    return FolderRecipe(settings, sentence)


def _check(name: str, base: dict[str, int], validation: dict[str, int]) -> None:
    if len(base) < LEAST_CLASSES or len(validation) < 2:
        raise UserError(
            f"{name} has {len(base)} base and {len(validation)} validation classes, and training needs at"
            f" least {LEAST_CLASSES} and 2; add classes, or name other parts, see docs/data.md."
        )
    for label, count in {**base, **validation}.items():
        if count < 2:
            raise UserError(f"The class {label!r} of {name} has 1 picture; add another, or remove the class.")


def _are_characters(files: Sequence[SourceFile]) -> bool:
    """Return whether pictures are small and grey, as drawings of characters are; looks at some of them."""
    step = max(1, len(files) // LOOKED_AT)
    return all(map(_is_character, files[::step]))


def _is_character(file: SourceFile) -> bool:
    try:
        with open_picture(BytesIO(file.read())) as picture:
            if max(picture.size) > SMALL:
                return False
            colour = picture.convert("RGB")
    except Exception:  # reported when it is packed
        return True
    red, green, blue = colour.split()
    return red.tobytes() == green.tobytes() == blue.tobytes()


def _rounded(episodes: float) -> int:
    """Return a number of episodes with two digits, within bounds."""
    bounded = max(FEWEST_EPISODES, min(MOST_EPISODES, episodes))
    digits = len(str(int(bounded))) - 2
    return round(int(bounded), -digits)
