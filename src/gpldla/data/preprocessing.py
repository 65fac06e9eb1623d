"""What images and texts are turned to before a network sees them; the facts travel with its weights."""

from dataclasses import dataclass
from typing import Literal

from gpldla.utils.errors import UserError

Reads = Literal["pictures", "texts"]

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)
ZOOM = 1.15  # what images are usually enlarged by before their centre is cropped


def resized_side(size: int, zoom: float = ZOOM) -> int:
    """Return the side of an image before the centre crop: 96 for 84, 32 for 28, 257 for 224."""
    return int(size * zoom)


@dataclass(frozen=True)
class Preprocessing:
    """What images must be turned to before a backbone sees them; travels with the weights.

    Images are resized to zoom × size on both sides, cropped at the centre, and standardised a channel.

    mirrored: outside of training an image has the mean of its own features and those of its mirror image
    """

    size: int
    channels: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    zoom: float = ZOOM
    mirrored: bool = False

    def __post_init__(self) -> None:
        if isinstance(self.zoom, bool) or not isinstance(self.zoom, (int, float)) or not 1 <= self.zoom <= 2:
            raise UserError(f"zoom must be a number from 1 to 2, not {self.zoom!r}.")
        if not isinstance(self.mirrored, bool):
            raise UserError(f"mirrored must be true or false, not {self.mirrored!r}.")

    def as_json(self) -> dict[str, object]:
        """Return the facts as they stand in a model's config.json: zoom and mirrored if they are unusual."""
        facts = {"size": self.size, "channels": self.channels, "mean": list(self.mean), "std": list(self.std)}
        unusual = {"zoom": self.zoom} if self.zoom != ZOOM else {}
        return facts | unusual | ({"mirrored": True} if self.mirrored else {})

    @property
    def resized(self) -> int:
        """Side of the image before the centre crop."""
        return resized_side(self.size, self.zoom)


@dataclass(frozen=True)
class TextPreprocessing:
    """What texts are cut to before a backbone sees them."""

    max_tokens: int

    def as_json(self) -> dict[str, object]:
        """Return the facts as they stand in a model's config.json."""
        return {"max_tokens": self.max_tokens}
