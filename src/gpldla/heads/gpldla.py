"""GPLDLA: a Gaussian-process classifier whose MAP is replaced by LDA with a prior-norm-adjusted scale.

Kim and Hospedales, "Gaussian Process Meta Few-shot Classifier Learning via Linear Discriminant Laplace
Approximation", 2021. The numbers of equations are those of that paper, the words in brackets its labels.
"""

import torch
from torch import Tensor

from gpldla.heads.base import register_head
from gpldla.heads.linear_gp import LabelledFeatures, LinearGP, Mode
from gpldla.heads.rows import Rows


@register_head("gpldla")
class GPLDLA(LinearGP):
    """Closed-form Gaussian-process classification on (unit-length) features; options as in `LinearGP`."""

    @property
    def capturable(self) -> bool:  # type: ignore[override]
        """Whether nothing looks at values or brings numbers along, as some options do."""
        return (
            type(self) is GPLDLA
            and self.predictive in ("auto", "mc", "mc-logits", "probit")
            and (self.priors is None or isinstance(self.priors, str))
        )

    def find_mode(self, support: LabelledFeatures, beta: Tensor, beta_b: Tensor) -> Mode:
        """Return the LDA surrogate of the MAP, at the scale that the prior expects."""
        phi, n_present = support.phi, support.n_present()
        share = support.member / support.fill_absent(support.counts, 1).unsqueeze(-2)
        mu = phi.weighted_sum(share)  # Eq. 14 (lda_estim), [..., C, d]
        mu_norm2 = mu.square().sum(-1)  # [..., C]
        sigma2 = self.class_variance(phi, mu_norm2.sum(-1, keepdim=True) / n_present, beta)  # [..., 1]
        w = mu / sigma2.unsqueeze(-1)  # Eq. 19 (w_optim), [..., C, d]
        b_hat = torch.addcdiv(support.log_pi, mu_norm2, sigma2, value=-0.5)  # Eq. 17 (lda_co), [..., C]
        b_hat = support.fill_absent(b_hat, 0)
        b = b_hat - b_hat.sum(-1, keepdim=True) / n_present  # Eq. 20 (b_optim), [..., C]
        return Mode(w, b, sigma2.squeeze(-1))

    def class_variance(self, phi: Rows, mean_norm2: Tensor, beta: Tensor) -> Tensor:
        """Return σ²* = rms‖μ‖ / (β√d), Eq. 18-19 (w_norm, w_optim), from the mean of ‖μ_j‖² [..., 1].

        Where all means are zero, so is w*, at any scale.
        """
        return mean_norm2.where(mean_norm2 > 0, 1).sqrt() / (beta * phi.x.shape[-1] ** 0.5)
