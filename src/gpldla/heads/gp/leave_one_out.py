"""What the model would have said of each support example without it, in closed form."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from gpldla.heads.gp.task_space import positive, scatter_scale, zero_if_rounding


@dataclass
class LooStats:
    """Logits of every support example under the classifier that has not seen it, for any β.

    slope [..., n, C]: the mean logits are β·slope + log_pi
    log_pi [..., n, C]: log priors without the example
    counted [..., n]: the weight of each example in a sum; 0 where its class has no other example
    cosine [..., n, C]: between the example and the class means
    """

    slope: Tensor
    log_pi: Tensor
    counted: Tensor
    cosine: Tensor

    def every_nth(self, step: int) -> "LooStats":
        """Return every step-th example."""
        rows = (tensor[..., ::step, :] for tensor in (self.slope, self.log_pi, self.cosine))
        slope, log_pi, cosine = rows
        return LooStats(slope, log_pi, self.counted[..., ::step] * step, cosine)

    def mean(self, beta: Tensor) -> Tensor:
        """Return the mean logits for β [...]: [..., n, C]."""
        return beta[..., None, None] * self.slope + self.log_pi


def leave_one_out(
    features: Tensor,
    member: Tensor,
    log_priors: Tensor | None,
    *,
    normalize: bool,
    recentre: bool,
    whiten: bool,
    whole: bool = False,
) -> LooStats:
    """Leave each example out of the class means, the centre, the shared covariance and the scale in turn.

    features [..., n, d]: as they are before `TaskSpace` centres and whitens them
    member [..., n, C]: the weight of an example in the column of its class
    whole: leave an example out with all its weight; else of a weight above 1 only 1 is left out, as if it
        were so many copies
    log_priors [..., C]: given class priors; None takes the weights that are left
    recentre: whether the centre is the mean of the class means; whiten: whether there is a shared covariance

    Everything follows from inner products of examples, so one n×n matrix serves all n classifiers: leaving
    out one example changes the inverse of A by a rank of one and the centre by a vector. Only κ, a ratio of
    two sums over all examples, is held as it is.
    """
    n, d = features.shape[-2:]
    if recentre:  # what is common to all rows makes no difference but to rounding
        features = features - features.mean(-2, keepdim=True)
    one_hot = (member > 0).to(features.dtype)  # [..., n, C]
    counts = member.sum(-2)  # n_j, [..., C]
    share = member / positive(counts).unsqueeze(-2)  # dual coefficients of the class means, [..., n, C]
    own_share = share @ one_hot.mT  # [..., a, i]: coefficient of a in the mean of i's class
    weight = member.sum(-1)  # [..., n]
    removed = weight if whole else weight.clamp(max=1)  # δ_i
    own_count = (one_hot @ counts.unsqueeze(-1)).squeeze(-1)  # n_y of each example's class
    left = (own_count - removed).clamp_min(0)
    remains = left > 1e-9 * own_count

    H = features @ features.mT  # u_aᵀA⁻¹u_b, [..., n, n]; A = I so far
    identity = torch.eye(n, dtype=features.dtype, device=features.device)
    residual = identity - own_share  # column i: dual coefficients of r_i = u_i − mean of its class
    gain = torch.zeros_like(weight)
    G = torch.zeros_like(H)  # column i: g_i = U A⁻¹ r_i
    if whiten:
        root = weight.sqrt()
        scatter = root.unsqueeze(-1) * (residual.mT @ H @ residual) * root.unsqueeze(-2)  # R Rᵀ
        trace = scatter.diagonal(dim1=-2, dim2=-1).sum(-1)
        trace = zero_if_rounding(trace, (weight * H.diagonal(dim1=-2, dim2=-1)).sum(-1))
        kappa = scatter_scale(trace, member)[..., None, None]
        UR = H @ (residual * root.unsqueeze(-2))  # U Rᵀ, [..., n, n]
        # Woodbury: (I + κRᵀR)⁻¹ = I − κRᵀ(I + κRRᵀ)⁻¹R
        H = H - kappa * UR @ torch.linalg.solve(identity + kappa * scatter, UR.mT)
        G = H @ residual
        own_spread = (residual * G).sum(-2)  # r_iᵀA⁻¹r_i
        # Sherman-Morrison for A − κ t r_i r_iᵀ, where t = δ n_y / (n_y − δ)
        t = kappa[..., 0] * removed * own_count / positive(left)
        gain = t / (1 - t * own_spread).clamp_min(1e-6) * remains

    # The centre without example i, as dual coefficients: column i of Q.
    present = (counts > 0).to(features.dtype)
    n_present = present.sum(-1, keepdim=True)
    Q = torch.zeros_like(H)
    shift = removed / positive(left) * remains  # the mean of the class moves by shift·(mean − u_i)
    if recentre:
        centre = (share @ present.unsqueeze(-1)) / n_present.unsqueeze(-1)  # [..., n, 1]
        Q = centre - residual * (shift / n_present).unsqueeze(-2)

    # Γ_ab^(i) = (u_a − c_i)ᵀ A_i⁻¹ (u_b − c_i), only the parts that are needed
    GQ = (G * Q).sum(-2)  # g_i·q_i, [..., i]
    HQ = H @ Q + G * (gain * GQ).unsqueeze(-2)  # [..., a, i]
    QHQ = (Q * HQ).sum(-2)  # [..., i]
    norm2 = H.diagonal(dim1=-2, dim2=-1).unsqueeze(-1) + gain.unsqueeze(-2) * G.square() - 2 * HQ
    norm2 = (norm2 + QHQ.unsqueeze(-2)).clamp_min(0)  # Γ_aa^(i), [..., a, i]
    scale = positive(norm2).rsqrt() if normalize else torch.ones_like(norm2)

    # Weights of φ_a in the class means without i
    v = share.sum(-1).unsqueeze(-1) * (1 + shift.unsqueeze(-2) * (one_hot @ one_hot.mT))
    v = (v - identity * (removed / positive(left)).unsqueeze(-2)) * scale  # [..., a, i]
    same = one_hot @ one_hot.mT
    to_classes = one_hot.mT  # sums over the examples of each class, [..., C, n]
    total, through_g, through_q = to_classes @ v, to_classes @ (v * G), to_classes @ (v * HQ)  # [..., C, i]
    own_gain, own_QHQ = gain.unsqueeze(-2), QHQ.unsqueeze(-2)
    mean_norm2 = to_classes @ (v * ((H * same) @ v)) + own_gain * through_g.square()
    mean_norm2 = (mean_norm2 - 2 * total * through_q + total.square() * own_QHQ).clamp_min(0)  # ‖μ_j‖²
    dots = to_classes @ (v * H) + own_gain * through_g * _of_left_out(G)
    dots = (dots - through_q - total * _of_left_out(HQ) + total * own_QHQ) * _of_left_out(
        scale
    )  # μ_j·φ_i, [..., C, i]

    own_length = 1 if normalize else positive(_of_left_out(norm2)).sqrt()
    cosine = dots / positive(mean_norm2).sqrt() / own_length
    # With example i its class loses a shot, and with it some of what shortens a mean: noise. So that the loss
    # is no handicap, every other class counts with the length that its own mean has a shot short.
    can_lose = member.mT * remains.unsqueeze(-2)  # [..., C, i]
    losers = can_lose.sum(-1, keepdim=True)
    shot_short = (mean_norm2 * can_lose).sum(-1, keepdim=True) / positive(losers)
    mean_norm2 = mean_norm2.where((to_classes > 0) | (losers == 0), shot_short)

    is_left = to_classes * remains.unsqueeze(-2) + (1 - to_classes) * present.unsqueeze(-1)  # [..., C, i]
    rms2 = (mean_norm2 * is_left).sum(-2) / positive(is_left.sum(-2))
    slope = (dots - mean_norm2 / 2) * (math.sqrt(d) / positive(rms2).sqrt()).unsqueeze(-2)  # Eq. 17-19

    left_counts = counts.unsqueeze(-1) - to_classes * removed.unsqueeze(-2)  # [..., C, i]
    prior = left_counts.clamp_min(0) if log_priors is None else log_priors.exp().unsqueeze(-1)
    log_pi = (prior * is_left).log()
    log_pi = log_pi - log_pi.logsumexp(-2, keepdim=True)
    return LooStats(slope.mT, log_pi.mT, weight * remains, cosine.mT)


def _of_left_out(matrix: Tensor) -> Tensor:
    """Return the entries a = i of [..., a, i], as a row [..., 1, i]."""
    return matrix.diagonal(dim1=-2, dim2=-1).unsqueeze(-2)
