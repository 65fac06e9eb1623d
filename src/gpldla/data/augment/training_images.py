"""Transforms of training images, by the names that recipes use."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

from torch import Tensor

from gpldla import kernels
from gpldla.data.augment.characters import (
    N_CHARACTER_UNIFORMS,
    N_STROKE_UNIFORMS,
    augment_characters,
    augment_strokes,
    sample_character_params,
    sample_stroke_params,
)
from gpldla.data.augment.photographs import (
    N_PHOTOGRAPH_UNIFORMS,
    augment_photographs,
    sample_photograph_params,
)
from gpldla.data.augment.transforms import (
    centre_crop,
    constant,
    evaluation_images,
    grey,
    resized_images,
    standardise_,
    to_rgb,
)
from gpldla.data.preprocessing import Preprocessing


@dataclass(frozen=True)
class TrainingTransform:
    """A random change of images: its parameters are drawn for many images at once, then applied.

    n_uniforms: random numbers per image
    draw:       uniforms [n, n_uniforms] from [0, 1), true shapes [n, 2] or None, stored (height, width)
                → changes
    apply:      uint8 [n, c, h, w], changes, preprocessing → float32 [n, channels, size, size]
    """

    n_uniforms: int
    draw: Callable[[Tensor, Tensor | None, tuple[int, int]], Tensor]
    apply: Callable[[Tensor, Tensor, Preprocessing], Tensor]


def _nothing(uniforms: Tensor, shapes: Tensor | None, stored: tuple[int, int]) -> Tensor:
    return uniforms


def _as_in_evaluation(images: Tensor, changes: Tensor, preprocessing: Preprocessing) -> Tensor:
    return evaluation_images(images, preprocessing)


def _characters(
    n_uniforms: int, draw: Callable[[Tensor], Tensor], change: Callable[[Tensor, Tensor], Tensor]
) -> TrainingTransform:
    """Make a transform of characters, which have no shape but the stored one."""

    def apply(images: Tensor, changes: Tensor, preprocessing: Preprocessing) -> Tensor:
        changed = change(resized_images(images, preprocessing), changes)
        return standardise_(centre_crop(changed, preprocessing), preprocessing)

    return TrainingTransform(n_uniforms, lambda uniforms, shapes, stored: draw(uniforms), apply)


def _augmented_photographs(images: Tensor, changes: Tensor, preprocessing: Preprocessing) -> Tensor:
    if kernels.usable_for(images) and preprocessing.channels == 3 and len(images):
        from gpldla.kernels.photographs import augment_photographs as by_kernels

        facts = [constant(values, images.device) for values in (preprocessing.mean, preprocessing.std)]
        colours, size = to_rgb(images.contiguous()), preprocessing.size
        done = kernels.try_or_fall_back(lambda: by_kernels(colours, changes, size, *facts))
        if done is not None:
            return done
    changed = augment_photographs(to_rgb(images), changes, preprocessing.size)
    return standardise_(changed if preprocessing.channels == 3 else grey(changed), preprocessing)


TRAINING_TRANSFORMS = {
    "none": TrainingTransform(0, _nothing, _as_in_evaluation),
    "characters": _characters(N_CHARACTER_UNIFORMS, sample_character_params, augment_characters),
    "strokes": _characters(N_STROKE_UNIFORMS, sample_stroke_params, augment_strokes),
    "photographs": TrainingTransform(N_PHOTOGRAPH_UNIFORMS, sample_photograph_params, _augmented_photographs),
}


def training_transform(name: str, *, smallest_crop: float, colour_jitter: float) -> TrainingTransform:
    """Return a transform by name; the options are for photographs.

    smallest_crop: of the area of a photograph; colour_jitter: 0.4 for factors from 0.6 to 1.4
    """
    transform = TRAINING_TRANSFORMS[name]
    if name != "photographs":
        return transform
    draw = partial(sample_photograph_params, smallest_area=smallest_crop, strength=colour_jitter)
    return replace(transform, draw=draw)
