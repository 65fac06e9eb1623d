"""The four-block convolutional networks of the few-shot literature."""

import math
from typing import ClassVar

from torch import Tensor, nn

from gpldla.backbones.base import IMAGENET_MEAN, IMAGENET_STD, Backbone, Preprocessing, register_backbone

FILTERS = 64


@register_backbone("conv4")
class Conv4(Backbone):
    """Four times 3×3 convolution, BatchNorm, ReLU, 2×2 max-pool; 84 px in, 1600 features out."""

    preprocessing: ClassVar[Preprocessing] = Preprocessing(84, 3, IMAGENET_MEAN, IMAGENET_STD)

    def __init__(self) -> None:
        super().__init__()
        channels = [self.preprocessing.channels, FILTERS, FILTERS, FILTERS]
        self.blocks = nn.Sequential(*(_block(c) for c in channels))
        self.feature_dim = FILTERS * (self.preprocessing.size // 16) ** 2

    def maps(self, images: Tensor) -> Tensor:
        """Return the last feature maps [n, 64, 5, 5] (conv4s: [n, 64, 1, 1])."""
        return self.blocks(images)

    def forward(self, images: Tensor) -> Tensor:
        """Return the flattened maps, all ≥ 0."""
        return self.maps(images).flatten(1)


@register_backbone("conv4s")
class Conv4S(Conv4):
    """The same for characters: one channel, 28 px in, 64 features out."""

    preprocessing: ClassVar[Preprocessing] = Preprocessing(28, 1, IMAGENET_MEAN[:1], IMAGENET_STD[:1])


def _block(channels: int) -> nn.Sequential:
    convolution = nn.Conv2d(channels, FILTERS, 3, padding=1)
    nn.init.normal_(convolution.weight, std=math.sqrt(2 / (9 * FILTERS)))
    # The ReLU after the pooling gives the same as before it, on a quarter of the values.
    return nn.Sequential(convolution, nn.BatchNorm2d(FILTERS), nn.MaxPool2d(2), nn.ReLU(inplace=True))
