"""Newton steps from the LDA surrogate towards the true mode of the posterior."""

import torch
from torch import Tensor

from gpldla.heads.base import map_tensors
from gpldla.heads.gp.function_space import newton_step
from gpldla.heads.gp.linear_gp import LabelledFeatures, Mode


def refine_mode(support: LabelledFeatures, mode: Mode, beta: Tensor, beta_b: Tensor, steps: int) -> Mode:
    """Take Newton steps towards the true mode, none of which lowers Eq. 9.

    They start on the way from 0 to the LDA surrogate, where Eq. 9 is largest: the surrogate itself has
    the norm of a draw from the prior and fits the support so well that no curvature is left there.

    In float64: the kernel of features that are not scaled is too large to see the curvature in float32.
    """
    dtype = mode.w.dtype
    support, mode, beta, beta_b = map_tensors((support, mode, beta, beta_b), _double)
    beta2, beta_b2 = beta.unsqueeze(-1) ** 2, beta_b.unsqueeze(-1) ** 2
    K = beta2 * support.phi.gram() + beta_b2
    y = (support.member > 0).to(K.dtype)
    absent = (support.counts == 0).unsqueeze(-2)
    weights = support.member.sum(-1, keepdim=True)
    # Newton's step is too long where the logits are far from the labels: the best of a few lengths.
    t = torch.tensor([0.0, *(0.5**k for k in range(8))]).to(K).view(-1, *(1,) * mode.b.ndim)  # [9, ..., 1]

    logits = support.phi.dot

    def move(w: Tensor, b: Tensor, to_w: Tensor, to_b: Tensor) -> tuple[Tensor, Tensor]:
        """Go from (w, b) by the best length of the step (to_w, to_b)."""
        tried = logits(w, b) + t.unsqueeze(-1) * logits(to_w, to_b)  # [9, ..., n, C]
        fit = (tried.masked_fill(absent, -torch.inf).log_softmax(-1).nan_to_num(neginf=0) * y).sum(-1)
        w_norm2 = w.square().sum(-1) + t * 2 * (w * to_w).sum(-1) + t.square() * to_w.square().sum(-1)
        prior = w_norm2 / beta2.squeeze(-1) + (b + t * to_b).square() / beta_b2.squeeze(-1)
        value = (fit * weights.squeeze(-1)).sum(-1) - 0.5 * prior.sum(-1)  # Eq. 9, [9, ...]
        best = t.flatten()[value.nan_to_num(-torch.inf).argmax(0)].unsqueeze(-1)  # [..., 1]
        return w + best.unsqueeze(-1) * to_w, b + best * to_b

    w, b = move(torch.zeros_like(mode.w), torch.zeros_like(mode.b), mode.w, mode.b)
    for _ in range(steps):
        a = newton_step(K, logits(w, b), y, absent, weights).nan_to_num(0, 0, 0)
        next_w, next_b = beta2 * support.phi.weighted_sum(a), beta_b2.squeeze(-1) * a.sum(-2)
        w, b = move(w, b, next_w - w, next_b - b)
    refined: Mode = map_tensors(Mode(w, b, mode.sigma2), lambda tensor: tensor.to(dtype))
    return refined


def _double(tensor: Tensor) -> Tensor:
    return tensor.double() if tensor.is_floating_point() else tensor
