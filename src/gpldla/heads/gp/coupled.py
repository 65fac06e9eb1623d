"""The Laplace posterior with its full covariance, which couples the classes, in function space."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from gpldla.heads.base import Posterior
from gpldla.heads.gp import predictive
from gpldla.heads.gp.function_space import cholesky, curvature_blocks
from gpldla.heads.gp.linear_gp import LabelledFeatures, LinearGPPosterior
from gpldla.heads.gp.rows import Rows
from gpldla.heads.gp.uncertain_scale import UncertainScale

KERNEL_VALUES_PER_CHUNK = 1 << 24  # of E_c k(x): bounds the memory of a prediction


@dataclass
class CoupledPosterior(Posterior):
    """Jointly Gaussian logits: the mean of `diagonal`, the covariance of the exact Hessian at the same mode.

    The Hessian of the log-posterior is −Σ_i (diag(p_i) − p_i p_iᵀ) ⊗ φ_iφ_iᵀ − prior precision. Its inverse
    is never formed: with the kernel k(x, x') = β²φ·φ' + β_b² and the blocks E_c of Rasmussen and Williams,
    Algorithm 3.4,  cov f_c(x), f_c'(x) = δ_cc' (k(x, x) − k(x)ᵀE_c k(x)) + k(x)ᵀE_c (Σ_c E_c)⁻¹ E_c' k(x).
    O(n²) per class and query, for n support examples.

    blocks [..., C, n, n]: E_c;  factor [..., n, n]: the lower factor of Σ_c E_c
    """

    has_logits: ClassVar[bool] = True
    diagonal: LinearGPPosterior
    phi: Rows
    beta2: Tensor  # [..., 1]
    beta_b2: Tensor
    blocks: Tensor
    factor: Tensor

    @classmethod
    def from_diagonal(
        cls, diagonal: LinearGPPosterior, support: LabelledFeatures, beta: Tensor, beta_b: Tensor
    ) -> "CoupledPosterior":
        """Return the posterior with the mode of a diagonal one and the full covariance."""
        beta2, beta_b2 = beta.unsqueeze(-1) ** 2, beta_b.unsqueeze(-1) ** 2
        p = support.phi.dot(diagonal.weight_mean, diagonal.bias_mean).softmax(-1)
        K = beta2 * support.phi.gram() + beta_b2
        blocks = curvature_blocks(K, p if support.weights is None else p * support.weights)
        total = blocks.sum(-3)
        # Repeated examples make the sum singular; adding the rounding error of its largest entry avoids this.
        rounding = total.diagonal(dim1=-2, dim2=-1).amax(-1)[..., None, None] * torch.finfo(total.dtype).eps
        identity = torch.eye(total.shape[-1], dtype=total.dtype, device=total.device)
        factor = cholesky(total + 10 * rounding * identity)
        return cls(diagonal, support.phi, beta2, beta_b2, blocks, factor)

    def logits(self, query: Tensor) -> tuple[Tensor, Tensor]:
        """Return mean [..., q, C] and covariance [..., q, C, C] of the logits of a query [..., q, d]."""
        mean, _ = self.diagonal.logits(query)
        phi = self.diagonal.rows(query)
        k = self.beta2 * phi.cross(self.phi) + self.beta_b2  # [..., q, n]
        prior = self.beta2.squeeze(-1) * phi.norm2() + self.beta_b2.squeeze(-1)  # k(x, x), [..., q]
        Ek = self.blocks @ k.mT.unsqueeze(-3)  # E_c k(x), [..., C, n, q]
        var = prior.unsqueeze(-2) - (Ek * k.mT.unsqueeze(-3)).sum(-2)  # [..., C, q]
        half = torch.linalg.solve_triangular(self.factor.unsqueeze(-3), Ek, upper=False)
        half = half.movedim(-1, -3)  # [..., q, C, n]
        covariance = torch.diag_embed(var.mT.clamp_min(0)) + half @ half.mT
        impossible = self.diagonal.bias_mean.isinf()[..., None, :]
        return mean, covariance.masked_fill((impossible | impossible.mT).unsqueeze(-3), 0)

    def log_prob(self, query: Tensor, scale: UncertainScale | None = None) -> Tensor:
        """Return log p(y | x, S) [..., q, C]; scale: what is known of that of the logits."""
        C, n = self.blocks.shape[-3:-1]
        step = max(1, KERNEL_VALUES_PER_CHUNK // (C * n * max(1, self.blocks.shape[:-3].numel())))
        return torch.cat([self._log_prob(part, scale) for part in query.split(step, -2)], -2)

    def _log_prob(self, query: Tensor, scale: UncertainScale | None) -> Tensor:
        mean, covariance = self.logits(query)
        var = predictive.independent_variances(mean, covariance)
        if scale is None:
            return predictive.quadrature(mean, var)
        return scale.averaged(lambda means: predictive.quadrature(means, var.expand_as(means)), mean)
