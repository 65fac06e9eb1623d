"""Negative margin: a base classifier whose true class is favoured, then a new layer fitted to the support."""

import math
from typing import Literal

import torch
from torch import Tensor, nn

from gpldla.heads.base import BaseClassifier, Head, check_episode, class_one_hot, register_head, unit_length
from gpldla.heads.common.cosine_layer import fit_cosine_layer
from gpldla.heads.common.fine_tuning import GradientDescent, softmax_residual
from gpldla.heads.common.linear import LinearPosterior, identity_transform
from gpldla.utils.errors import UserError, require_positive


@register_head("neg-margin")
class NegMargin(Head):
    """Softmax of scale·cos(v_j, φ(x)) or of scale·w_j·φ(x), on a network that was trained with a margin.

    Liu, Cao, Lin, Li, Zhang, Long and Hu, "Negative Margin Matters: Understanding Margin in Few-shot
    Classification", 2020 (arXiv 2003.12060). A negative margin makes the base stage content with features
    that are less tight around each base class, and so tell new classes apart better. The network is then
    frozen; nothing is learned from episodes. See `GradientDescent` for the other options.

    classifier: "cosine" or "softmax", in both stages
    margin:     of the base stage; the new layer is fitted without one
    scale:      of the new layer; that of the base stage is 30 for cosines, 5 for the softmax
    """

    base_stage: BaseClassifier | None = "neg-cosine"

    def __init__(
        self,
        feature_dim: int | None = None,
        *,
        classifier: Literal["cosine", "softmax"] = "cosine",
        margin: float = -0.02,
        scale: float = 5.0,
        epochs: int = 100,
        batch_size: int = 4,
        step_size: float = 0.01,
    ) -> None:
        super().__init__()
        if classifier not in ("cosine", "softmax"):
            raise UserError(f"classifier must be 'cosine' or 'softmax', not {classifier!r}.")
        if not (isinstance(margin, (int, float)) and math.isfinite(margin)):
            raise UserError(f"margin must be a number, not {margin!r}.")
        require_positive(scale=scale)
        self.base_stage = "neg-cosine" if classifier == "cosine" else "neg-softmax"
        self.base_margin, self.scale = margin, scale
        self.descent = GradientDescent(epochs, batch_size, step_size)

    def adapt(
        self, support: Tensor, labels: Tensor, n_way: int, *, backbone: nn.Module | None = None
    ) -> LinearPosterior:
        """Fit a new layer to features [..., n, d]."""
        check_episode(support, labels, n_way)
        member = class_one_hot(labels, n_way, support.dtype)
        cosine = self.base_stage == "neg-cosine"
        transform = unit_length if cosine else identity_transform
        phi = transform(support.detach())
        if cosine:
            weights = fit_cosine_layer(phi, member, self.scale, self.descent, learn_norms=False)
        else:
            weights = self._fit_linear_layer(phi, member)
        return LinearPosterior(weights, torch.zeros_like(weights[..., 0]), member.any(-2), transform)

    def _fit_linear_layer(self, phi: Tensor, member: Tensor) -> Tensor:
        """Return weights [..., C, d] of the scores, from zero; w_j = Σ_i A_ij φ_i throughout."""
        gram = phi @ phi.mT

        def gradient(parameters: list[Tensor]) -> list[Tensor]:
            return [self.scale * softmax_residual(self.scale * gram @ parameters[0], member)]

        (A,) = self.descent.minimise([torch.zeros_like(member)], gradient, member.shape[-2])
        return self.scale * A.mT @ phi
