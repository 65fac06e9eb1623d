"""GPLDLA: a Gaussian-process classifier whose MAP is replaced by LDA with a prior-norm-adjusted scale.

Kim and Hospedales, "Gaussian Process Meta Few-shot Classifier Learning via Linear Discriminant Laplace
Approximation", 2021. The numbers of equations are those of that paper, the words in brackets its labels.
"""

from abc import abstractmethod
from typing import NamedTuple, Unpack

import torch
from torch import Tensor

from gpldla.heads.base import register_head
from gpldla.heads.gp.linear_gp import LabelledFeatures, LinearGP, Mode, SharedOptions
from gpldla.heads.gp.rows import Rows
from gpldla.utils.errors import require_positive


class ClassStatistics(NamedTuple):
    """What the LDA estimate takes from a support set, whatever the prior.

    means [..., C, d]: μ_j (Eq. 14); norms2 [..., C]: ‖μ_j‖²; mean_norm2 [..., 1]: over classes with examples
    """

    means: Tensor
    norms2: Tensor
    mean_norm2: Tensor


class LDASurrogate(LinearGP):
    """Linear discriminant analysis stands for the maximum of the posterior; the scale is to be said."""

    @abstractmethod
    def class_variance(self, phi: Rows, mean_norm2: Tensor, beta: Tensor) -> Tensor:
        """Return σ² [..., 1] from the support features and the mean of ‖μ_j‖² [..., 1]."""

    def find_mode(self, support: LabelledFeatures, beta: Tensor, beta_b: Tensor) -> Mode:
        """Return the LDA surrogate of the MAP, at the scale that the prior expects."""
        return self.mode_at(self.class_statistics(support), support, beta)

    def class_statistics(self, support: LabelledFeatures) -> ClassStatistics:
        """Return the class means and their norms, which no prior changes."""
        share = support.member / support.fill_absent(support.counts, 1).unsqueeze(-2)
        mu = support.phi.weighted_sum(share)  # Eq. 14 (lda_estim), [..., C, d]
        mu_norm2 = mu.square().sum(-1)  # [..., C]
        return ClassStatistics(mu, mu_norm2, mu_norm2.sum(-1, keepdim=True) / support.n_present())

    def mode_at(self, statistics: ClassStatistics, support: LabelledFeatures, beta: Tensor) -> Mode:
        """Return the LDA surrogate for a prior of scale β, a number or [..., 1]."""
        mu, mu_norm2, mean_norm2 = statistics
        sigma2 = self.class_variance(support.phi, mean_norm2, beta)  # [..., 1]
        w = mu / sigma2.unsqueeze(-1)  # Eq. 19 (w_optim), [..., C, d]
        b_hat = torch.addcdiv(support.log_pi, mu_norm2, sigma2, value=-0.5)  # Eq. 17 (lda_co), [..., C]
        b_hat = support.fill_absent(b_hat, 0)
        b = b_hat - b_hat.sum(-1, keepdim=True) / support.n_present()  # Eq. 20 (b_optim), [..., C]
        return Mode(w, b, sigma2.squeeze(-1))


@register_head("gpldla")
class GPLDLA(LDASurrogate):
    """Closed-form Gaussian-process classification on (unit-length) features.

    dimension: D of the prior's norm, ‖w_j‖² ≈ β²D; None: the number of features, as in the paper. A network
               with few features is better off with more, see docs/methods/gpldla.md
    The rest as in `LinearGP`.
    """

    def __init__(
        self,
        feature_dim: int | None = None,
        *,
        dimension: float | None = None,
        **shared: Unpack[SharedOptions],
    ) -> None:
        super().__init__(feature_dim, **shared)
        if dimension is not None:
            require_positive(dimension=dimension)
        self.dimension = dimension

    def class_variance(self, phi: Rows, mean_norm2: Tensor, beta: Tensor) -> Tensor:
        """Return σ²* = rms‖μ‖ / (β√D), Eq. 18-19 (w_norm, w_optim).

        Where all means are zero, so is w*, at any scale.
        """
        dimension = phi.x.shape[-1] if self.dimension is None else self.dimension
        sigma2: Tensor = mean_norm2.where(mean_norm2 > 0, 1).sqrt() / (beta * dimension**0.5)
        return sigma2
