"""BatchNorm's running statistics when an update has several episodes, on one process or on many.

An update moves them once, towards the mean of its episodes' statistics: it does not matter in which order or
in how many processes the episodes were seen.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm


@contextmanager
def episode_momentum(model: nn.Module, place: int, count: int) -> Iterator[None]:
    """Let BatchNorm move its statistics for episode `place` of `count`, so that all of them count the same.

    After all, r ← (1 − m) r + m/count Σ s, with the momentum m. One after the other, s_place must move r by
    m / (count − (count − 1 − place) m) of the way.
    """
    layers = _layers(model) if count > 1 else []
    momenta = [layer.momentum for layer in layers]
    for layer, momentum in zip(layers, momenta):
        assert momentum is not None
        layer.momentum = momentum / (count - (count - 1 - place) * momentum)
    try:
        yield
    finally:
        for layer, momentum in zip(layers, momenta):
            layer.momentum = momentum


@contextmanager
def frozen_running_stats(model: nn.Module) -> Iterator[None]:
    """Let BatchNorm normalise as in training and remember nothing of it."""
    layers = [layer for layer in _layers(model) if layer.track_running_stats]
    for layer in layers:
        layer.track_running_stats = False
    try:
        yield
    finally:
        for layer in layers:
            layer.track_running_stats = True


def count_batches(model: nn.Module, count: int) -> None:
    """Let BatchNorm count batches that it has not seen itself: those of other processes, or of a kernel."""
    layers = [layer for layer in _layers(model) if layer.training]
    counters = [layer.num_batches_tracked for layer in layers if layer.num_batches_tracked is not None]
    if count and counters:
        torch._foreach_add_(counters, count)


def running_statistics(model: nn.Module) -> list[Tensor]:
    """Return the running means and variances of a model."""
    return [t for layer in _layers(model) for t in (layer.running_mean, layer.running_var) if t is not None]


def _layers(model: nn.Module) -> list[_BatchNorm]:
    return [module for module in model.modules() if isinstance(module, _BatchNorm)]
