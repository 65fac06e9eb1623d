"""The data set `digits`: scikit-learn's handwritten digits, in the size and colours of `glyphs`."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from PIL import Image

from gpldla.data.protocols import register_protocol
from gpldla.data.sets.base import BundledSet, register_dataset
from gpldla.data.store import ImageSet, image_set_from_classes

# Everything the images depend on.
SETTINGS: dict[str, Any] = {
    "version": 1,  # increase it when the drawing code changes
    "size": 32,
    "enlargement": 3,  # 8 pixels become 24, which leaves the margin that the glyphs have
}


@register_dataset
class Digits(BundledSet):
    """Ten digits, all of them novel."""

    name = "digits"
    default_size = 28
    drawing = SETTINGS
    protocol_parts = ("novel",)

    def make(self) -> ImageSet:
        """Enlarge all digits."""
        return make()

    def parts(self, class_names: Sequence[str]) -> dict[str, tuple[int, ...]]:
        """Every class is novel."""
        return {"novel": tuple(range(len(class_names)))}


# Train on printed letters, validate on another script, test on handwritten digits.
register_protocol(
    "glyphs-digits",
    base=("glyphs", "base"),
    validation=("glyphs", "validation"),
    novel=("digits", "novel"),
)


def make() -> ImageSet:
    """Enlarge all digits: uint8 images [1797, 1, 32, 32], dark ink on light paper, sorted by class."""
    from sklearn.datasets import load_digits  # half a second that only the first use needs

    source = load_digits()
    enlarged = np.stack([_enlarge(ink) for ink in source.images])[:, None]
    class_names = [str(digit) for digit in source.target_names]
    images_of_class = [enlarged[source.target == digit] for digit in source.target_names]
    return image_set_from_classes("digits", class_names, images_of_class)


def _enlarge(ink: np.ndarray) -> np.ndarray:
    """Turn one digit, float [8, 8] with ink from 0 to 16, into uint8 [32, 32] with ink from 255 to 0."""
    bordered = np.pad(ink, 2)  # more paper than needed, so that strokes at the rim fade out smoothly
    paper = np.round(255 - bordered * (255 / 16)).astype(np.uint8)
    side = len(paper) * SETTINGS["enlargement"]
    large = Image.fromarray(paper).resize((side, side), Image.Resampling.BICUBIC)
    cut = (side - SETTINGS["size"]) // 2
    return np.asarray(large.crop((cut, cut, side - cut, side - cut)))
