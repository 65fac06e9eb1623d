"""What stored images go through before training sees them, by the name that a recipe gives it."""

from collections.abc import Callable

from torch import Tensor

from gpldla.backbones.base import Preprocessing
from gpldla.data.characters import augment_characters
from gpldla.data.photographs import augment_photographs
from gpldla.data.transforms import centre_crop, evaluation_images, resized_images, standardise, to_float


def _characters(images: Tensor, preprocessing: Preprocessing) -> Tensor:
    changed = augment_characters(resized_images(images, preprocessing))
    return standardise(centre_crop(changed, preprocessing), preprocessing)


def _photographs(images: Tensor, preprocessing: Preprocessing) -> Tensor:
    colour = to_float(images, channels=3)
    return standardise(augment_photographs(colour, preprocessing.size), preprocessing)


# Each maps uint8 [n, c, h, w] to float32 [n, channels, size, size].
TRAINING_TRANSFORMS: dict[str, Callable[[Tensor, Preprocessing], Tensor]] = {
    "none": evaluation_images,
    "characters": _characters,
    "photographs": _photographs,
}
