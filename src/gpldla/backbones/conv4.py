"""The four-block convolutional networks of the few-shot literature."""

import math
from typing import Any, ClassVar, cast

import torch.nn.functional as F
from torch import Tensor, nn

from gpldla.backbones.base import Backbone, register_backbone
from gpldla.backbones.episode_blocks import FEW_CHANNELS, EpisodeBlock
from gpldla.data.preprocessing import IMAGENET_MEAN, IMAGENET_STD, Preprocessing

FILTERS = 64


@register_backbone("conv4")
class Conv4(Backbone):
    """Four times 3×3 convolution, BatchNorm, ReLU, 2×2 max-pool; 84 px in, 1600 features out."""

    preprocessing: Preprocessing = Preprocessing(84, 3, IMAGENET_MEAN, IMAGENET_STD)

    filters: ClassVar[int] = FILTERS

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.Sequential(*self._make_blocks())
        side = self._map_side()
        self.map_shape = (self.filters, side, side)
        self.feature_dim = self.filters * side**2

    def maps(self, images: Tensor) -> Tensor:
        """Return the last feature maps, [n, *map_shape]."""
        feature_maps: Tensor = self.blocks(images)
        return feature_maps

    def forward(self, images: Tensor) -> Tensor:
        """Return the flattened maps, all ≥ 0."""
        return self.maps(images).flatten(1)

    def _make_blocks(self) -> list[nn.Module]:
        channels = [self.preprocessing.channels, *3 * [self.filters]]
        return [Block(number, self.filters) for number in channels]

    def _map_side(self) -> int:
        return self.preprocessing.size // 16


@register_backbone("conv4s")
class Conv4S(Conv4):
    """The same for characters: one channel, 28 px in, 64 features out."""

    preprocessing: Preprocessing = Preprocessing(28, 1, IMAGENET_MEAN[:1], IMAGENET_STD[:1])


@register_backbone("conv4-32")
class Conv4Narrow(Conv4):
    """Conv-4 with 32 filters, for methods that adapt every weight; 800 features out."""

    filters = 32


@register_backbone("conv4s-32")
class Conv4SNarrow(Conv4S):
    """The same for characters; 32 features out."""

    filters = 32


@register_backbone("conv4np")
class Conv4NP(Conv4):
    """Conv-4 for methods that compare feature maps: two of the blocks do not pool; 64 maps of 19×19.

    The network of RelationNet: the first two blocks pool and do not pad, the last two pad and do not pool.
    """

    def _make_blocks(self) -> list[nn.Module]:
        return [
            Block(self.preprocessing.channels, padding=0),
            Block(FILTERS, padding=0),
            Block(FILTERS, pool=False),
            Block(FILTERS, pool=False),
        ]

    def _map_side(self) -> int:
        return ((self.preprocessing.size - 2) // 2 - 2) // 2


@register_backbone("conv4snp")
class Conv4SNP(Conv4NP):
    """The same for characters: one channel, 28 px in, 64 maps of 5×5."""

    preprocessing: Preprocessing = Conv4S.preprocessing


class Block(nn.Sequential, EpisodeBlock):
    """3×3 convolution, BatchNorm, perhaps a 2×2 max-pool, and ReLU."""

    def __init__(self, channels: int, filters: int = FILTERS, *, padding: int = 1, pool: bool = True) -> None:
        convolution = nn.Conv2d(channels, filters, 3, padding=padding)
        nn.init.normal_(convolution.weight, std=math.sqrt(2 / (9 * filters)))
        layers: list[nn.Module] = [convolution, nn.BatchNorm2d(filters)]
        if pool:
            # Pooling first gives the same values, and a ReLU on a quarter of the pixels.
            layers.append(nn.MaxPool2d(2))
        super().__init__(*layers, nn.ReLU(inplace=True))

    def last_norms(self) -> list[nn.Module]:
        """Return the one BatchNorm."""
        return [self[1]]

    def forward(self, x: Tensor) -> Tensor:
        """[n, channels, h, w] → [n, filters, h', w']."""
        convolution, norm, pool = cast(nn.Conv2d, self[0]), self[1], isinstance(self[2], nn.MaxPool2d)
        if not norm.training:
            return cast(Tensor, cast(Any, super()).forward(x))
        if not self.by_kernels:
            # BatchNorm cancels the bias, so its gradient is zero, but computing that takes a pass over the
            # largest tensor of the network. As part of the weights its gradient of zero costs nothing.
            bias = cast(Tensor, convolution.bias)
            weight = convolution.weight + 0 * bias.view(-1, 1, 1, 1)
            x = F.conv2d(x, weight, bias.detach(), padding=convolution.padding)
            for layer in list(self)[1:]:
                x = layer(x)
            return x
        if x.shape[1] <= FEW_CHANNELS and pool and convolution.padding == (1, 1) and not x.requires_grad:
            return self.first_conv_norm(x, convolution, norm)
        return self.conv_norm(x, convolution, norm, pool=pool)
