"""Feature-wise transformation: random scales and shifts of feature maps, so that other domains surprise less.

Tseng, Lee, Huang and Yang, "Cross-Domain Few-Shot Classification via Learned Feature-Wise Transformation",
2020 (arXiv 2001.08735), with one domain to train on and so with fixed deviations. It changes the training
alone, of any head; in evaluation nothing is added.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from gpldla.backbones.episode_blocks import EpisodeBlock
from gpldla.utils.errors import UserError


@dataclass(frozen=True)
class FeatureWiseTransformation:
    """γ·x + β on each channel of what a BatchNorm returns, one draw per channel for the whole batch.

    scale, shift: the standard deviations of γ, around 1, and of β, around 0
    """

    scale: float
    shift: float

    def __call__(self, norm: nn.Module, inputs: tuple[Tensor, ...], maps: Tensor) -> Tensor:
        """Transform maps [n, c, ...] in training; this is a forward hook."""
        if not norm.training:
            return maps
        shape = (1, maps.shape[1], *(1,) * (maps.ndim - 2))
        noise = torch.randn(2, *shape, device=maps.device, dtype=maps.dtype)
        return maps * (1 + self.scale * noise[0]) + self.shift * noise[1]


def transform_features(network: nn.Module, scale: float, shift: float) -> None:
    """Let every block of a network transform its features in training from now on."""
    norms = [
        norm for block in network.modules() if isinstance(block, EpisodeBlock) for norm in block.last_norms()
    ]
    if not norms:
        raise UserError(
            f"{type(network).__name__} has no blocks whose features could be transformed; set"
            " feature_wise_scale and feature_wise_shift to 0, or choose a Conv-4 or a ResNet."
        )
    for norm in norms:
        norm.register_forward_hook(FeatureWiseTransformation(scale, shift))
