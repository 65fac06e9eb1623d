"""Fitting a new last layer to the support set by gradient descent, as the fine-tuning baselines do."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from gpldla.utils.errors import require_count, require_positive


@dataclass(frozen=True)
class GradientDescent:
    """Gradient descent with momentum as in torch.optim.SGD; the defaults are those of arXiv 1904.04232.

    The published fit takes `epochs` passes over batches of `batch_size` in random order, from a random start.
    Here every step uses the whole support set, and the number of steps is the same. The result is
    deterministic, independent of the order of examples, and better, as neither start nor order adds noise.
    """

    epochs: int = 100
    batch_size: int = 4
    step_size: float = 0.01
    momentum: float = 0.9
    dampening: float = 0.9
    weight_decay: float = 0.001

    def __post_init__(self) -> None:
        require_count(epochs=self.epochs, batch_size=self.batch_size)
        require_positive(step_size=self.step_size)

    @torch.no_grad()
    def minimise(
        self, start: list[Tensor], gradient: Callable[[list[Tensor]], list[Tensor]], n_examples: int
    ) -> list[Tensor]:
        """Return the parameters after all steps from `start`."""
        parameters, velocity = start, None
        for _ in range(self.epochs * math.ceil(n_examples / self.batch_size)):
            slopes = [g + self.weight_decay * p for g, p in zip(gradient(parameters), parameters)]
            velocity = (
                slopes  # the first step is not dampened
                if velocity is None
                else [self.momentum * v + (1 - self.dampening) * s for v, s in zip(velocity, slopes)]
            )
            parameters = [p - self.step_size * v for p, v in zip(parameters, velocity)]
        return parameters


def softmax_residual(scores: Tensor, member: Tensor) -> Tensor:
    """Return the gradient of the mean cross-entropy in the scores: (p − y)/n, [..., n, C].

    A class without examples is left out.
    """
    absent = (member.sum(-2, keepdim=True) == 0).expand_as(scores)
    return (scores.masked_fill(absent, -math.inf).softmax(-1) - member) / member.shape[-2]
