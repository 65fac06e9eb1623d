"""Blocks of a network that train on several episodes at once, each with the statistics of its own images."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from gpldla import kernels

FEW_CHANNELS = 3  # what the kernel for a first convolution takes


class EpisodeBlock(nn.Module):
    """A part of a network whose BatchNorms can treat each episode of a batch by itself.

    episodes: set by `EpisodeBatches`. 0 runs layer after layer. Otherwise so many episodes lie one after the
    other in a batch, and in training kernels do what follows each convolution.
    """

    episodes = 0

    @property
    def by_kernels(self) -> bool:
        """Whether kernels are to do the work now."""
        return self.episodes > 0 and self.training

    def last_norms(self) -> list[nn.Module]:
        """Return the BatchNorms whose outputs are, or add up to, the features of this block."""
        return []

    def conv_norm(self, x: Tensor, convolution: nn.Module, norm: nn.Module, **following: Any) -> Tensor:
        """Convolve and normalise x [n, c, h, w], and do what follows: see `gpldla.kernels.normalise`."""
        from gpldla.kernels.normalise import normalise

        convolution = cast(nn.Conv2d, convolution)
        x = F.conv2d(x, convolution.weight, None, convolution.stride, convolution.padding)
        return normalise(x, **self._norm(norm), offset=convolution.bias, **following)

    def first_conv_norm(self, images: Tensor, convolution: nn.Module, norm: nn.Module) -> Tensor:
        """Convolve images [n, c, h, w] of few channels, normalise, ReLU and max-pool them."""
        from gpldla.kernels.first_block import convolve_normalise_relu_pool

        convolution = cast(nn.Conv2d, convolution)
        dtype = torch.get_autocast_dtype("cuda") if torch.is_autocast_enabled("cuda") else images.dtype
        return convolve_normalise_relu_pool(
            images, convolution.weight, **self._norm(norm), offset=convolution.bias, dtype=dtype
        )

    def _norm(self, norm: nn.Module) -> dict[str, Any]:
        norm = cast(nn.BatchNorm2d, norm)
        if norm.num_batches_tracked is not None:
            norm.num_batches_tracked.add_(self.episodes)
        names = ("weight", "bias", "running_mean", "running_var", "momentum", "eps")
        return {"episodes": self.episodes, **{name: getattr(norm, name) for name in names}}


class EpisodeBatches:
    """The switch of a network between ordinary batches and batches of several episodes.

    Whoever trains the network owns one and runs forward and backward passes within `of`; outside of it the
    network works layer after layer.
    """

    def __init__(self, network: nn.Module) -> None:
        self._network = network
        self._blocks = [module for module in network.modules() if isinstance(module, EpisodeBlock)]

    @property
    def possible(self) -> bool:
        """Whether kernels are usable, and all BatchNorms are in blocks that use them and do nothing more."""
        norms_in_blocks = sum(len(_norms(block)) for block in self._blocks)
        norms = _norms(self._network)
        weight = next(self._network.parameters(), torch.empty(0))
        possible = bool(self._blocks) and norms_in_blocks == len(norms)
        possible &= not any(norm._forward_hooks for norm in norms)
        # float64 would lose its digits in a kernel
        return possible and kernels.usable_for(weight) and weight.dtype == torch.float32

    @contextmanager
    def of(self, episodes: int) -> Iterator[None]:
        """Let each batch be so many episodes, one after the other; only where that is `possible`."""
        assert self.possible
        for block in self._blocks:
            block.episodes = episodes
        try:
            yield
        finally:
            for block in self._blocks:
                block.episodes = 0


def _norms(network: nn.Module) -> list[nn.Module]:
    return [module for module in network.modules() if isinstance(module, _BatchNorm)]
