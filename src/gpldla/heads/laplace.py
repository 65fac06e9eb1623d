"""The Laplace approximation around the true MAP, found by Newton steps: GPLDLA without its shortcut."""

import torch
from torch import Tensor

from gpldla.errors import UserError
from gpldla.heads.base import register_head
from gpldla.heads.linear_gp import LabelledFeatures, LinearGP, Mode, Predictive


@register_head("laplace")
class Laplace(LinearGP):
    """A few differentiable Newton steps to the maximum of Eq. 9 in function space; see `LinearGP`.

    Ablation (i) of Kim and Hospedales, 2021; the steps are Algorithm 3.3 of Rasmussen and Williams,
    "Gaussian Processes for Machine Learning", 2006, from f = 0.

    newton_steps: how many
    The model has no class priors but in its biases, so there is no option for them.
    """

    def __init__(
        self,
        feature_dim: int | None = None,
        *,
        beta: float = 1.0,
        beta_b: float = 1.0,
        newton_steps: int = 5,
        normalize: bool = True,
        predictive: Predictive = "auto",
        n_samples: int = 10,
    ) -> None:
        super().__init__(
            feature_dim,
            beta=beta,
            beta_b=beta_b,
            normalize=normalize,
            predictive=predictive,
            n_samples=n_samples,
        )
        if not hasattr(newton_steps, "__index__") or newton_steps < 1:
            raise UserError(f"newton_steps must be a whole number of at least 1, not {newton_steps!r}.")
        self.newton_steps = newton_steps

    def find_mode(self, support: LabelledFeatures, beta: Tensor, beta_b: Tensor) -> Mode:
        """Return w = β²Φᵀa and b = β_b²Σa, where f = Ka is the mode in function space."""
        phi, member, counts, _ = support
        K = beta**2 * phi.gram() + beta_b**2  # one kernel for all classes, [..., n, n]
        # A class without examples has probability 0; it then drops out of every sum below.
        absent = (counts == 0).unsqueeze(-2)  # [..., 1, C]
        f = torch.zeros_like(member)  # [..., n, C]
        for _ in range(self.newton_steps):
            a = _newton_step(K, f, member, absent)
            f = K @ a
        return Mode(beta**2 * phi.weighted_sum(a), beta_b**2 * a.sum(-2))


def _newton_step(K: Tensor, f: Tensor, y: Tensor, absent: Tensor) -> Tensor:
    """Return a with K a the next f: [..., n, n], [..., n, C] → [..., n, C].

    The Hessian of −log p(y | f) is D − ΠΠᵀ, with D = diag(π); block by class, K is block diagonal.
    """
    pi = f.masked_fill(absent, -torch.inf).softmax(-1)
    tiny = torch.finfo(pi.dtype).tiny  # the root of 0 has no derivative
    root = pi.mT.unsqueeze(-1).clamp_min(tiny).sqrt()  # D_c^{1/2}, [..., C, n, 1]
    identity = torch.eye(K.shape[-1], dtype=K.dtype, device=K.device)
    # E_c = D_c^{1/2} (I + D_c^{1/2} K D_c^{1/2})⁻¹ D_c^{1/2}, [..., C, n, n]
    E = root * torch.cholesky_inverse(_cholesky(identity + root * K.unsqueeze(-3) * root.mT)) * root.mT
    M = _cholesky(E.sum(-3))  # [..., n, n]
    b = pi * (f - (pi * f).sum(-1, keepdim=True)) + y - pi  # (D − ΠΠᵀ)f + y − π
    c = (E @ (K @ b).mT.unsqueeze(-1)).squeeze(-1).mT  # EKb, [..., n, C]
    through_all = torch.cholesky_solve(c.sum(-1, keepdim=True), M)  # M⁻ᵀM⁻¹Rᵀc, [..., n, 1]
    return b - c + (E @ through_all.unsqueeze(-3)).squeeze(-1).mT


def _cholesky(matrix: Tensor) -> Tensor:
    return torch.linalg.cholesky_ex(matrix).L
