"""What stored images go through before training sees them, by the name that a recipe gives it."""

from collections.abc import Callable

from torch import Tensor

from gpldla.backbones.base import Preprocessing
from gpldla.data.characters import augment_characters
from gpldla.data.photographs import augment_photographs
from gpldla.data.transforms import (
    centre_crop,
    evaluation_images,
    grey,
    in_colour,
    resized_images,
    standardise_,
)


def _none(images: Tensor, preprocessing: Preprocessing, shapes: Tensor | None) -> Tensor:
    return evaluation_images(images, preprocessing)


def _characters(images: Tensor, preprocessing: Preprocessing, shapes: Tensor | None) -> Tensor:
    changed = augment_characters(resized_images(images, preprocessing))
    return standardise_(centre_crop(changed, preprocessing), preprocessing)


def _photographs(images: Tensor, preprocessing: Preprocessing, shapes: Tensor | None) -> Tensor:
    changed = augment_photographs(in_colour(images), preprocessing.size, shapes=shapes)
    return standardise_(changed if preprocessing.channels == 3 else grey(changed), preprocessing)


# Each maps uint8 [n, c, h, w] and their true shapes, [n, 2] or None, to float32 [n, channels, size, size].
TRAINING_TRANSFORMS: dict[str, Callable[[Tensor, Preprocessing, Tensor | None], Tensor]] = {
    "none": _none,
    "characters": _characters,
    "photographs": _photographs,
}
