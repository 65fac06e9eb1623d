"""The Laplace approximation around the true MAP, found by Newton steps: GPLDLA without the LDA plugin."""

from typing import Unpack

import torch
from torch import Tensor

from gpldla.heads.base import register_head
from gpldla.heads.gp.function_space import newton_step
from gpldla.heads.gp.linear_gp import LabelledFeatures, LinearGP, Mode, SharedOptions
from gpldla.utils.errors import require_count


@register_head("laplace")
class Laplace(LinearGP):
    """A few differentiable Newton steps to the maximum of Eq. 9 in function space; see `LinearGP`.

    Ablation (i) of Kim and Hospedales, 2021; the steps are Algorithm 3.3 of Rasmussen and Williams,
    "Gaussian Processes for Machine Learning", 2006, from f = 0.

    newton_steps: number of Newton steps
    Class priors enter this model only through the biases, so there is no option for them.
    """

    left_out_options = ("priors",)

    def __init__(
        self,
        feature_dim: int | None = None,
        *,
        newton_steps: int = 5,
        **shared: Unpack[SharedOptions],
    ) -> None:
        super().__init__(feature_dim, **shared)
        require_count(newton_steps=newton_steps)
        self.newton_steps = newton_steps

    def find_mode(self, support: LabelledFeatures, beta: Tensor, beta_b: Tensor) -> Mode:
        """Return w = β²Φᵀa and b = β_b²Σa, where f = Ka is the mode in function space."""
        phi, member, counts = support.phi, support.member, support.counts
        K = (
            beta.unsqueeze(-1) ** 2 * phi.gram() + beta_b.unsqueeze(-1) ** 2
        )  # one kernel for all classes, [..., n, n]
        # A class without examples has probability 0; it then drops out of every sum below.
        absent = (counts == 0).unsqueeze(-2)  # [..., 1, C]
        f = torch.zeros_like(member)  # [..., n, C]
        for _ in range(self.newton_steps):
            a = newton_step(K, f, member, absent)
            f = K @ a
        return Mode(beta.unsqueeze(-1) ** 2 * phi.weighted_sum(a), beta_b**2 * a.sum(-2))
