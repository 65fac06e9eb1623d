"""Baseline++: a cosine classifier of the base classes, then a new cosine layer fitted to the support."""

import math

import torch
from torch import Tensor, nn

from gpldla.heads.base import Head, check_episode, class_one_hot, register_head, unit_length
from gpldla.heads.common.fine_tuning import GradientDescent, softmax_residual
from gpldla.heads.common.linear import LinearPosterior
from gpldla.utils.errors import require_positive

START_LENGTH = math.sqrt(1 / 3)  # the expected initial length of a row of torch.nn.Linear, in any dimension


@register_head("baseline++")
class BaselinePlusPlus(Head):
    """Softmax of scale·g_j·cos(v_j, φ(x)), with a direction v_j and a norm g_j per class.

    Chen et al., "A Closer Look at Few-shot Classification", 2019 (arXiv 1904.04232). The network is trained
    on the base classes with such a layer and is then frozen; nothing is learned from episodes. See
    `GradientDescent` for the options.

    The published fit starts from random directions. In many dimensions a random direction is orthogonal to
    every example, so only its length matters: it decides how fast v_j turns towards the examples. Here v_j
    starts as a vector of that length orthogonal to all examples, and the result is deterministic.
    """

    base_stage = "cosine"

    def __init__(
        self,
        feature_dim: int | None = None,
        *,
        scale: float = 2.0,
        epochs: int = 100,
        batch_size: int = 4,
        step_size: float = 0.01,
    ) -> None:
        super().__init__()
        require_positive(scale=scale)
        self.scale = scale
        self.descent = GradientDescent(epochs, batch_size, step_size)

    def adapt(
        self, support: Tensor, labels: Tensor, n_way: int, *, backbone: nn.Module | None = None
    ) -> LinearPosterior:
        """Fit directions and norms to features [..., n, d].

        v_j = Σ_i A_ij φ_i + r_j e_j throughout, with e_j the initial direction; A is [..., n, C].
        """
        check_episode(support, labels, n_way)
        member = class_one_hot(labels, n_way, support.dtype)
        phi = unit_length(support.detach())
        gram = phi @ phi.mT

        def gradient(parameters: list[Tensor]) -> list[Tensor]:
            A, r, g = parameters
            along = gram @ A  # φ_i·v_j, [..., n, C]
            length = _length(A, along, r)
            residual = softmax_residual(self.scale * g * along / length, member)
            slope = (residual * along).sum(-2, keepdim=True)  # [..., 1, C]
            turn = self.scale * g / length
            # The derivative of v/‖v‖ has no component along v.
            return [
                turn * (residual - A * slope / length.square()),
                -turn * r * slope / length.square(),
                self.scale * slope / length,
            ]

        initial = torch.full_like(member[..., :1, :], START_LENGTH)
        A, r, g = self.descent.minimise(
            [torch.zeros_like(member), initial, initial.clone()], gradient, labels.shape[-1]
        )
        weights = self.scale * g / _length(A, gram @ A, r) * A
        return LinearPosterior(weights.mT @ phi, torch.zeros_like(g.squeeze(-2)), member.any(-2), unit_length)


def _length(A: Tensor, along: Tensor, r: Tensor) -> Tensor:
    """Return ‖v_j‖ [..., 1, C]."""
    return ((A * along).sum(-2, keepdim=True) + r.square()).sqrt()
