"""BatchNorm's running statistics when an update has several episodes, on one process or on many.

An update moves them once, towards the mean of its episodes' statistics: it does not matter in which order or
in how many processes the episodes were seen.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm


class BatchNormSchedule:
    """The BatchNorm layers of a network in training, and all that training changes about them.

    A stage owns one for the network that it trains. Only the two context managers change how layers work, and
    each sets them back at its end.
    """

    def __init__(self, network: nn.Module) -> None:
        self._layers = [module for module in network.modules() if isinstance(module, _BatchNorm)]

    @contextmanager
    def episode(self, index: int, count: int) -> Iterator[None]:
        """Set the momentum for episode `index` of `count` in an update, so that all of them weigh the same.

        After all, r ← (1 − m) r + m/count Σ s, with the momentum m. One after the other, s_index must move r
        by m / (count − (count − 1 − index) m) of the way.
        """
        layers = self._layers if count > 1 else []
        momenta = [layer.momentum for layer in layers]
        for layer, momentum in zip(layers, momenta):
            assert momentum is not None
            layer.momentum = momentum / (count - (count - 1 - index) * momentum)
        try:
            yield
        finally:
            for layer, momentum in zip(layers, momenta):
                layer.momentum = momentum

    @contextmanager
    def frozen_running_stats(self) -> Iterator[None]:
        """Let layers normalise as in training without updating their running statistics."""
        layers = [layer for layer in self._layers if layer.track_running_stats]
        for layer in layers:
            layer.track_running_stats = False
        try:
            yield
        finally:
            for layer in layers:
                layer.track_running_stats = True

    def count_batches(self, count: int) -> None:
        """Count batches that the layers have not seen themselves: those of other processes."""
        layers = [layer for layer in self._layers if layer.training]
        counters = [layer.num_batches_tracked for layer in layers if layer.num_batches_tracked is not None]
        if count and counters:
            torch._foreach_add_(counters, count)

    def running_statistics(self) -> list[Tensor]:
        """Return the running means and variances of all layers."""
        return [t for layer in self._layers for t in (layer.running_mean, layer.running_var) if t is not None]
