"""SimpleShot: a classifier of the base classes, then the nearest class mean of its transformed features."""

from typing import Literal, get_args

import torch
from torch import Tensor, nn

from gpldla.heads.base import Head, check_episode, register_head, require_dim, unit_length
from gpldla.heads.common.linear import LinearPosterior
from gpldla.heads.common.nearest_mean import nearest_mean
from gpldla.utils.errors import UserError

Transform = Literal["un", "l2n", "cl2n"]


@register_head("simpleshot")
class SimpleShot(Head):
    """Softmax over −‖φ(x) − μ_j‖² on features of a network that was trained to classify the base classes.

    Wang, Chao, Weinberger and van der Maaten, "SimpleShot: Revisiting Nearest-Neighbor Classification for
    Few-Shot Learning", 2019 (arXiv 1911.04623). Nothing is learned from episodes.

    transform: "un" leaves features unchanged, "l2n" scales them to unit length, "cl2n" subtracts the mean
    feature of the base classes first
    """

    base_stage = "linear"

    def __init__(self, feature_dim: int | None = None, *, transform: Transform = "cl2n") -> None:
        super().__init__()
        if transform not in get_args(Transform):
            raise UserError(f"transform must be 'un', 'l2n' or 'cl2n', not {transform!r}.")
        self.transform = transform
        self.needs_base_mean = transform == "cl2n"
        self.base_mean: Tensor
        self.register_buffer("base_mean", torch.zeros(require_dim("simpleshot", feature_dim)))

    def adapt(
        self, support: Tensor, labels: Tensor, n_way: int, *, backbone: nn.Module | None = None
    ) -> LinearPosterior:
        """Average the transformed support features [..., n, d] of each class."""
        check_episode(support, labels, n_way)
        return nearest_mean(support, labels, n_way, self._phi)

    def _phi(self, features: Tensor) -> Tensor:
        if self.transform == "cl2n":
            features = features - self.base_mean.to(features.dtype)
        return features if self.transform == "un" else unit_length(features)
