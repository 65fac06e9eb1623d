"""Baseline++: a cosine classifier of the base classes, then a new cosine layer fitted to the support."""

import torch
from torch import Tensor, nn

from gpldla.heads.base import Head, check_episode, class_one_hot, register_head, unit_length
from gpldla.heads.common.cosine_layer import fit_cosine_layer
from gpldla.heads.common.fine_tuning import GradientDescent
from gpldla.heads.common.linear import LinearPosterior
from gpldla.utils.errors import require_positive


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
        """Fit directions and norms to features [..., n, d]."""
        check_episode(support, labels, n_way)
        member = class_one_hot(labels, n_way, support.dtype)
        phi = unit_length(support.detach())
        weights = fit_cosine_layer(phi, member, self.scale, self.descent, learn_norms=True)
        zero = torch.zeros_like(weights[..., 0])
        return LinearPosterior(weights, zero, member.any(-2), unit_length)
