"""An exponential moving average of a model's weights, which is more accurate than the last weights."""

import copy

import torch
from torch import Tensor, nn


class WeightAverage:
    """The average of a model: average ← decay · average + (1 − decay) · weights, statistics included.

    It starts from the weights after the first update. Counts are copied.
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.model = copy.deepcopy(model).requires_grad_(False)
        self._decay, self._started = decay, False
        self._floats, self._counts = _floats_and_counts(self.model)
        self._from_floats, self._from_counts = _floats_and_counts(model)

    @torch.no_grad()
    def update(self) -> None:
        """Update the average by the current weights, in a few operations for all of them."""
        weight = 1 - self._decay if self._started else 1.0
        self._started = True
        for averages, values in zip(self._floats, self._from_floats):
            torch._foreach_lerp_(averages, values, weight)
        for count, value in zip(self._counts, self._from_counts):
            count.copy_(value)

    def restore(self, tensors: dict[str, Tensor]) -> None:
        """Continue from an average that was saved."""
        self.model.load_state_dict(tensors)
        self._started = True


def _floats_and_counts(model: nn.Module) -> tuple[list[list[Tensor]], list[Tensor]]:
    """Return the floating-point tensors, one list per dtype, and the others."""
    tensors = [*model.parameters(), *model.buffers()]
    floats = [t for t in tensors if t.is_floating_point()]
    dtypes = sorted({str(t.dtype) for t in floats})
    return (
        [[t.detach() for t in floats if str(t.dtype) == dtype] for dtype in dtypes],
        [t for t in tensors if not t.is_floating_point()],
    )
