"""Residual networks of basic blocks, as the few-shot literature uses them."""

import math
from typing import Any, ClassVar, cast

import torch.nn.functional as F
from torch import Tensor, nn

from gpldla.backbones.base import Backbone, register_backbone
from gpldla.backbones.episode_blocks import EpisodeBlock
from gpldla.data.preprocessing import IMAGENET_MEAN, IMAGENET_STD, Preprocessing

CHANNELS = (64, 128, 256, 512)


class ResNet(Backbone):
    """A stem, four stages of basic blocks with 64 to 512 channels, and the average over positions.

    The first block of stages 2-4 halves the resolution. 512 features, all ≥ 0.
    """

    blocks_per_stage: ClassVar[int]
    small_images: ClassVar[bool] = False  # 84 px: a stem that keeps the resolution
    feature_dim = CHANNELS[-1]

    def __init__(self) -> None:
        super().__init__()
        channels = CHANNELS[0]
        side = math.ceil(self.preprocessing.size / (8 if self.small_images else 32))
        self.map_shape = (CHANNELS[-1], side, side)
        self.stem = Stem(channels, small_images=self.small_images)
        blocks = []
        for stage, width in enumerate(CHANNELS):
            for index in range(self.blocks_per_stage):
                blocks.append(BasicBlock(channels, width, stride=2 if stage > 0 and index == 0 else 1))
                channels = width
        self.blocks = nn.Sequential(*blocks)

    def maps(self, images: Tensor) -> Tensor:
        """Return the last feature maps, [n, 512, 7, 7] at 224 px and [n, 512, 11, 11] at 84 px."""
        feature_maps: Tensor = self.blocks(self.stem(images))
        return feature_maps

    def forward(self, images: Tensor) -> Tensor:
        """Return the maps averaged over positions."""
        return self.maps(images).mean((2, 3))


class Stem(nn.Sequential, EpisodeBlock):
    """The first convolution with BatchNorm and ReLU; for large images with a max-pool after it."""

    def __init__(self, channels: int, *, small_images: bool) -> None:
        kernel, stride = (3, 1) if small_images else (7, 2)
        layers = [_convolution(3, channels, kernel, stride), nn.BatchNorm2d(channels), nn.ReLU(inplace=True)]
        if not small_images:
            layers.append(nn.MaxPool2d(3, stride=2, padding=1))
        super().__init__(*layers)

    def forward(self, x: Tensor) -> Tensor:
        """[n, 3, h, w] → [n, channels, h', w']."""
        if not self.by_kernels:
            return cast(Tensor, cast(Any, super()).forward(x))
        from gpldla.kernels.pool import max_pool_3x3

        x = self.conv_norm(x, self[0], self[1])
        return max_pool_3x3(x) if len(self) > 3 else x


class BasicBlock(EpisodeBlock):
    """Two 3×3 convolutions with BatchNorm beside a shortcut, which is 1×1 where the channels change."""

    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        self.residual = nn.Sequential(
            _convolution(channels, width, 3, stride),
            nn.BatchNorm2d(width),
            nn.ReLU(inplace=True),
            _convolution(width, width, 3, 1),
            nn.BatchNorm2d(width),
        )
        self.shortcut: nn.Module = nn.Identity()
        if channels != width:
            self.shortcut = nn.Sequential(_convolution(channels, width, 1, stride), nn.BatchNorm2d(width))

    def last_norms(self) -> list[nn.Module]:
        """Return the last BatchNorm of the residual, and that of the shortcut if it has one."""
        shortcut = [self.shortcut[1]] if isinstance(self.shortcut, nn.Sequential) else []
        return [self.residual[4], *shortcut]

    def forward(self, x: Tensor) -> Tensor:
        """[n, channels, h, w] → [n, width, h / stride, w / stride]."""
        if not self.by_kernels:
            return F.relu(self.residual(x) + self.shortcut(x))
        shortcut = x
        if isinstance(self.shortcut, nn.Sequential):
            shortcut = self.conv_norm(x, self.shortcut[0], self.shortcut[1], relu=False)
        inner = self.conv_norm(x, self.residual[0], self.residual[1])
        return self.conv_norm(inner, self.residual[3], self.residual[4], added=shortcut)


def _convolution(channels: int, width: int, kernel: int, stride: int) -> nn.Conv2d:
    convolution = nn.Conv2d(channels, width, kernel, stride, padding=kernel // 2, bias=False)
    nn.init.normal_(convolution.weight, std=math.sqrt(2 / (kernel**2 * width)))
    return convolution


@register_backbone("resnet10")
class ResNet10(ResNet):
    """One block a stage, 224 px."""

    preprocessing: Preprocessing = Preprocessing(224, 3, IMAGENET_MEAN, IMAGENET_STD)
    blocks_per_stage = 1


@register_backbone("resnet18")
class ResNet18(ResNet):
    """Two blocks a stage, 224 px."""

    preprocessing: Preprocessing = Preprocessing(224, 3, IMAGENET_MEAN, IMAGENET_STD)
    blocks_per_stage = 2


@register_backbone("resnet18-84")
class ResNet18Small(ResNet18):
    """Two blocks a stage, 84 px, with a 3×3 stem of stride 1 and no pooling."""

    preprocessing: Preprocessing = Preprocessing(84, 3, IMAGENET_MEAN, IMAGENET_STD)
    small_images = True
