"""No network at all: the control that every learned feature must beat."""

from typing import ClassVar

from torch import Tensor

from gpldla.backbones.base import Backbone, register_backbone
from gpldla.data.preprocessing import IMAGENET_MEAN, IMAGENET_STD, Preprocessing


@register_backbone("pixels")
class Pixels(Backbone):
    """The pixels of a 28 px grey image themselves, 784 features."""

    pretrained: ClassVar[bool] = True  # it has no weights that a file would have to hold
    preprocessing: Preprocessing = Preprocessing(28, 1, IMAGENET_MEAN[:1], IMAGENET_STD[:1])

    def __init__(self) -> None:
        super().__init__()
        self.map_shape = (self.preprocessing.channels, self.preprocessing.size, self.preprocessing.size)
        self.feature_dim = self.preprocessing.channels * self.preprocessing.size**2

    def maps(self, images: Tensor) -> Tensor:
        """Return the images [n, 1, 28, 28]."""
        return images

    def forward(self, images: Tensor) -> Tensor:
        """Return the flattened images [n, 784]."""
        return images.flatten(1)
