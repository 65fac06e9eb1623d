"""Leave-one-out logits of every support example, in closed form."""

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from gpldla.heads.gp.function_space import cholesky
from gpldla.heads.gp.linear_gp import LinearGPPosterior, logit_variance
from gpldla.heads.gp.predictive import quadrature
from gpldla.heads.gp.rows import Rows
from gpldla.heads.gp.task_space import positive, scatter_scale, zero_if_rounding
from gpldla.heads.gp.uncertain_scale import UncertainScale


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
    shrinkage: Tensor | None = None,
) -> LooStats:
    """Leave each example out of the class means, the centre, the shared covariance and the scale in turn.

    features [..., n, d]: as they are before `TaskSpace` centres and whitens them
    member [..., n, C]: the weight of an example in the column of its class
    whole: leave an example out with all its weight; else of a weight above 1 only 1 is left out, as if it
        were so many copies
    log_priors [..., C]: given class priors; None takes the weights that are left
    shrinkage [..., C]: s_j, by which the class means are multiplied, see `mean_shrinkage`; None is 1
    recentre: whether the centre is the mean of the class means; whiten: whether there is a shared covariance

    Everything follows from inner products of examples, so one n×n matrix serves all n classifiers: leaving
    out one example changes the inverse of A by a rank of one and the centre by a vector. Only κ, a ratio of
    two sums over all examples, is held as it is.
    """
    d = features.shape[-1]
    if recentre:  # what is common to all rows makes no difference but to rounding
        features = features - features.mean(-2, keepdim=True)
    weights = _Weights.of(member, whole=whole)
    dots, mean_norm2, norm2 = _products(features @ features.mT, weights, normalize, recentre, whiten)
    own_length = 1 if normalize else positive(_of_left_out(norm2)).sqrt()
    cosine = dots / positive(mean_norm2).sqrt() / own_length

    # With example i its class loses a shot, and with it some of what shortens a mean: noise. So that the loss
    # is no handicap, every other class counts with the length that its own mean has a shot short.
    to_classes, remains = weights.one_hot.mT, weights.remains.unsqueeze(-2)  # [..., C, n], [..., 1, i]
    can_lose = member.mT * remains  # [..., C, i]
    losers = can_lose.sum(-1, keepdim=True)
    shot_short = (mean_norm2 * can_lose).sum(-1, keepdim=True) / positive(losers)
    mean_norm2 = mean_norm2.where((to_classes > 0) | (losers == 0), shot_short)

    if shrinkage is not None:
        dots = dots * shrinkage.unsqueeze(-1)
        mean_norm2 = mean_norm2 * shrinkage.square().unsqueeze(-1)
    is_left = to_classes * remains + (1 - to_classes) * weights.present.unsqueeze(-1)  # [..., C, i]
    rms2 = (mean_norm2 * is_left).sum(-2) / positive(is_left.sum(-2))
    slope = (dots - mean_norm2 / 2) * (math.sqrt(d) / positive(rms2).sqrt()).unsqueeze(-2)  # Eq. 17-19

    left_counts = weights.counts.unsqueeze(-1) - to_classes * weights.removed.unsqueeze(-2)  # [..., C, i]
    if log_priors is None:
        log_pi = (left_counts.clamp_min(0) * is_left).log()
    else:  # not through exp, where small ones would become 0
        log_pi = log_priors.unsqueeze(-1).masked_fill(is_left == 0, -math.inf)
    log_pi = log_pi - log_pi.logsumexp(-2, keepdim=True)
    return LooStats(slope.mT, log_pi.mT, weights.weight * weights.remains, cosine.mT)


def loo_log_prob(
    phi: Rows,
    diagonal: LinearGPPosterior,
    left_out: LooStats,
    beta: Tensor,
    scale: UncertainScale | None = None,
) -> Tensor:
    """Return log p(class | x_i, S without i), [..., n, C], averaged over β where its scale is uncertain.

    The variances are those of the whole support set: one example of many hardly changes V* and v*.
    """
    if scale is not None:
        return scale.averaged_over_beta(lambda b: loo_log_prob(phi, diagonal, left_out, b), beta)
    mean = left_out.mean(beta.squeeze(-1) if beta.ndim else beta)
    return quadrature(mean, logit_variance(phi, diagonal.weight_var, diagonal.bias_var, mean.shape))


class LeftOutProducts(NamedTuple):
    """Inner products of every example x_i with the means m_j of the classes without it.

    dots x_i·m_j, mean_norm2 ‖m_j‖² [..., n, C]; norm2 ‖x_i‖² [..., n]; left [..., n]: what weight its class
    has without it
    """

    dots: Tensor
    mean_norm2: Tensor
    norm2: Tensor
    left: Tensor


def left_out_products(
    features: Tensor, member: Tensor, *, recentre: bool, whiten: bool, whole: bool
) -> LeftOutProducts:
    """Return the inner products in the task's space without each example in turn, see `leave_one_out`."""
    if recentre:
        features = features - features.mean(-2, keepdim=True)
    weights = _Weights.of(member, whole=whole)
    dots, mean_norm2, norm2 = _products(features @ features.mT, weights, False, recentre, whiten)
    left = weights.left * weights.remains
    return LeftOutProducts(dots.mT, mean_norm2.mT, _of_left_out(norm2).squeeze(-2), left)


@dataclass
class _Weights:
    """What follows from the membership alone.

    one_hot [..., n, C]; counts n_j [..., C]; present [..., C]: 1 for classes with examples
    share [..., n, C]: dual coefficients of the class means
    weight, removed δ_i [..., n]: of each example, and how much of it is left out
    own_count n_y, left [..., n]: of each example's class, with and without it
    remains [..., n]: whether the class has examples without it
    """

    member: Tensor
    one_hot: Tensor
    counts: Tensor
    present: Tensor
    share: Tensor
    weight: Tensor
    removed: Tensor
    own_count: Tensor
    left: Tensor
    remains: Tensor

    @classmethod
    def of(cls, member: Tensor, *, whole: bool) -> "_Weights":
        one_hot = (member > 0).to(member.dtype)
        counts = member.sum(-2)
        share = member / positive(counts).unsqueeze(-2)
        weight = member.sum(-1)
        removed = weight if whole else weight.clamp(max=1)
        own_count = (one_hot @ counts.unsqueeze(-1)).squeeze(-1)
        left = (own_count - removed).clamp_min(0)
        present, remains = (counts > 0).to(member.dtype), left > 1e-9 * own_count
        return cls(member, one_hot, counts, present, share, weight, removed, own_count, left, remains)

    def less_means(self, columns: Tensor) -> Tensor:
        """Return columns [..., a, i] less the mean of the columns of i's class.

        With inner products H this is H·residual, by way of the C class means instead of n columns.
        """
        return columns - (columns @ self.share) @ self.one_hot.mT


def _products(
    H: Tensor, weights: _Weights, normalize: bool, recentre: bool, whiten: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Return μ_j·φ_i and ‖μ_j‖² [..., C, i], and ‖u_a − c_i‖² [..., a, i], without example i.

    H [..., n, n]: inner products of the features
    """
    identity = torch.eye(H.shape[-1], dtype=H.dtype, device=H.device)
    one_hot, share, removed, left, remains = (
        weights.one_hot, weights.share, weights.removed, weights.left, weights.remains,
    )  # fmt: skip
    residual = weights.less_means(identity)  # column i: dual coefficients of r_i = u_i − mean of its class
    gain = torch.zeros_like(weights.weight)
    if whiten:
        H, gain = _whiten(H, residual, weights)
    G = weights.less_means(H)  # columns g_i = U A⁻¹ r_i, [..., a, i]

    # The centre without example i, as dual coefficients: column i of Q.
    n_present = weights.present.sum(-1, keepdim=True)
    Q = HQ = torch.zeros_like(H)
    shift = removed / positive(left) * remains  # the mean of the class moves by shift·(mean − u_i)
    if recentre:
        centre = (share @ weights.present.unsqueeze(-1)) / n_present.unsqueeze(-1)  # [..., n, 1]
        moved = (shift / n_present).unsqueeze(-2)
        Q, HQ = centre - residual * moved, H @ centre - G * moved

    # Γ_ab^(i) = (u_a − c_i)ᵀ A_i⁻¹ (u_b − c_i), only the parts that are needed
    GQ = (G * Q).sum(-2)  # g_i·q_i, [..., i]
    HQ = HQ + G * (gain * GQ).unsqueeze(-2)  # [..., a, i]
    QHQ = (Q * HQ).sum(-2)  # [..., i]
    norm2 = H.diagonal(dim1=-2, dim2=-1).unsqueeze(-1) + gain.unsqueeze(-2) * G.square() - 2 * HQ
    norm2 = (norm2 + QHQ.unsqueeze(-2)).clamp_min(0)  # Γ_aa^(i), [..., a, i]
    scale = positive(norm2).rsqrt() if normalize else torch.ones_like(norm2)

    # Weights of φ_a in the class means without i
    same = one_hot @ one_hot.mT
    v = share.sum(-1).unsqueeze(-1) * (1 + shift.unsqueeze(-2) * same)
    v = (v - identity * (removed / positive(left)).unsqueeze(-2)) * scale  # [..., a, i]
    to_classes = one_hot.mT  # sums over the examples of each class, [..., C, n]
    total, through_g, through_q = to_classes @ v, to_classes @ (v * G), to_classes @ (v * HQ)  # [..., C, i]
    own_gain, own_QHQ = gain.unsqueeze(-2), QHQ.unsqueeze(-2)
    mean_norm2 = to_classes @ (v * ((H * same) @ v)) + own_gain * through_g.square()
    mean_norm2 = (mean_norm2 - 2 * total * through_q + total.square() * own_QHQ).clamp_min(0)  # ‖μ_j‖²
    dots = to_classes @ (v * H) + own_gain * through_g * _of_left_out(G)
    dots = dots - through_q - total * _of_left_out(HQ) + total * own_QHQ
    return dots * _of_left_out(scale), mean_norm2, norm2


def _whiten(H: Tensor, residual: Tensor, weights: _Weights) -> tuple[Tensor, Tensor]:
    """Return the inner products in the metric A⁻¹ [..., n, n] and the gain [..., i].

    With g_i = U A⁻¹ r_i, leaving example i out of A adds gain_i·g_i g_iᵀ to the inner products.
    """
    root = weights.weight.sqrt()
    identity = torch.eye(H.shape[-1], dtype=H.dtype, device=H.device)
    UR = weights.less_means(H) * root.unsqueeze(-2)  # U Rᵀ, [..., n, n]
    scatter = weights.less_means(UR.mT).mT * root.unsqueeze(-1)  # R Rᵀ
    trace = scatter.diagonal(dim1=-2, dim2=-1).sum(-1)
    trace = zero_if_rounding(trace, (weights.weight * H.diagonal(dim1=-2, dim2=-1)).sum(-1))
    kappa = scatter_scale(trace, weights.member)[..., None, None]
    # Woodbury: (I + κRᵀR)⁻¹ = I − κRᵀ(I + κRRᵀ)⁻¹R
    half = torch.linalg.solve_triangular(cholesky(identity + kappa * scatter), UR.mT, upper=False)
    H = H - kappa * (half.mT @ half)
    own_spread = (residual * weights.less_means(H)).sum(-2)  # r_iᵀA⁻¹r_i
    # Sherman-Morrison for A − κ t r_i r_iᵀ, where t = δ n_y / (n_y − δ)
    t = kappa[..., 0] * weights.removed * weights.own_count / positive(weights.left)
    return H, t / (1 - t * own_spread).clamp_min(1e-6) * weights.remains


def _of_left_out(matrix: Tensor) -> Tensor:
    """Return the entries a = i of [..., a, i], as a row [..., 1, i]."""
    return matrix.diagonal(dim1=-2, dim2=-1).unsqueeze(-2)
