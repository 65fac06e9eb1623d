"""What a backbone looks like from outside, and the registry of backbones."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor, nn

from gpldla.registry import Registry

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)


def resized_side(size: int) -> int:
    """Return the side of an image before the centre crop: 96 for 84, 32 for 28, 257 for 224."""
    return int(size * 1.15)


@dataclass(frozen=True)
class Preprocessing:
    """What images must be turned to before a backbone sees them; travels with the weights.

    Images are resized to 1.15 × size on both sides, cropped at the centre, and standardised a channel.
    """

    size: int
    channels: int
    mean: tuple[float, ...]
    std: tuple[float, ...]

    def as_json(self) -> dict[str, object]:
        """Return the facts as they stand in a model's config.json."""
        return {"size": self.size, "channels": self.channels, "mean": list(self.mean), "std": list(self.std)}

    @property
    def resized(self) -> int:
        """Side of the image before the centre crop."""
        return resized_side(self.size)


class Backbone(nn.Module, ABC):
    """A network from images [n, channels, size, size] to features [n, feature_dim]."""

    preprocessing: ClassVar[Preprocessing]
    feature_dim: int
    map_shape: tuple[int, int, int]  # channels, height and width of the last feature maps

    @abstractmethod
    def maps(self, images: Tensor) -> Tensor:
        """Return the last feature maps [n, c, h, w]."""

    @abstractmethod
    def forward(self, images: Tensor) -> Tensor:
        """Return the features [n, feature_dim]."""


_BACKBONES: Registry[type[Backbone]] = Registry("backbone")
register_backbone = _BACKBONES.register


def list_backbones() -> list[str]:
    """Return the names that `create_backbone` knows."""
    return sorted(_BACKBONES)


def backbone_preprocessing(name: str) -> Preprocessing:
    """Return what a backbone wants its images to be, without making it."""
    return _BACKBONES.find(name).preprocessing


def create_backbone(name: str) -> Backbone:
    """Make a backbone by name, with fresh random weights."""
    return _BACKBONES.find(name)()
