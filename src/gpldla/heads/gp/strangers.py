"""How alike examples of different classes are in a task, and the prior scale β₀ that follows from it.

Let ρ be the mean cosine of a query with its own class and σ² the mean squared cosine with classes it does not
belong to ("strangers"). If cosines with strangers are N(0, σ²) and those with the own class N(ρ, σ²), the
log odds of a class are linear in z = cos/σ, with slope ρ/σ: a logit is a cosine in units of σ. The logits of
GPLDLA are β√d times a cosine (Eq. 19), so

    β₀ = LOGIT_SCALE · N^{1/3} / (σ √d)

ρ/σ cannot be identified from one example per class; LOGIT_SCALE is its mean over many kinds of features. σ,
which differs between kinds of features by a factor of four, is measured. With N examples per class a mean is
less noisy: its error falls as N^{-1/2} if the errors are independent and not at all if they are shared; the
exponent 1/3 lies between.
"""

import math

import torch
from torch import Tensor

from gpldla.heads.gp.leave_one_out import LooStats
from gpldla.heads.gp.task_space import positive, zero_if_rounding

LOGIT_SCALE = 1.35
GROWTH = 1 / 3
# The prior of σ²: PRIOR_LIKENESS / √d, which counts as much as PRIOR_FREEDOM degrees of freedom.
PRIOR_LIKENESS, PRIOR_FREEDOM = 0.2, 4.0
# Without a centre β₀ is DEFAULT_SCALE / d^¼, in the middle between logits of the same scale and logits of
# the same noise in any dimension.
DEFAULT_SCALE = 3.0
ROUNDING = 100.0  # units of rounding, relative to the longest, below which a squared length is none


def strangers_likeness(features: Tensor, present: Tensor, *, whiten: bool) -> Tensor:
    """Return the mean squared cosine between each single example and the others without it, [...].

    features [..., n, d]: before `TaskSpace` centres and whitens them, one example per class
    present [..., n]: 1 for the examples that count, 0 for the others

    Example i is left out of the centre and of the scatter S of all examples, so it is seen as a query of none
    of the classes would be; κ is held. With r_i = u_i − mean, S = Σ r rᵀ, A = I + κS, h_ab = r_aᵀA⁻¹r_b and
    t = κn/(n−1), the others have the centre −r_i/(n−1) and the matrix A_i = A − t·r_i r_iᵀ. Sherman and
    Morrison then give, for example i as a query and a as a class,

        i·a = (h_ia + h_ii/(n−1)) / (1 − t·h_ii) · n/(n−1)
        i·i = h_ii / (1 − t·h_ii) · (n/(n−1))²
        a·a = h_aa + 2h_ia/(n−1) + h_ii/(n−1)² + t/(1 − t·h_ii) · (h_ia + h_ii/(n−1))²
    """
    n = present.sum(-1).clamp_min(2)  # [...]
    mean = (features * present.unsqueeze(-1)).sum(-2, keepdim=True) / n[..., None, None]
    r = (features - mean) * present.unsqueeze(-1)
    G = r @ r.mT
    total = (features.square().sum(-1) * present).sum(-1)
    trace = zero_if_rounding(G.diagonal(dim1=-2, dim2=-1).sum(-1), total)
    kappa = ((n - 1) / positive(trace) * (trace > 0) * float(whiten))[..., None, None]
    identity = torch.eye(G.shape[-1], dtype=G.dtype, device=G.device)
    H = torch.linalg.solve(identity + kappa * G, G)
    h = H.diagonal(dim1=-2, dim2=-1)
    own, n_ = h.unsqueeze(-1), n[..., None, None]  # h_ii as a column [..., i, 1]
    t = kappa * n_ / (n_ - 1)
    left = (1 - t * own).clamp_min(1e-6)
    shifted = H + own / (n_ - 1)  # [..., i, a]
    other = h.unsqueeze(-2) + 2 * H / (n_ - 1) + own / (n_ - 1) ** 2 + t / left * shifted.square()
    cosine2 = (shifted.square() / left / positive(own * other)).clamp(max=1)
    # What rounding leaves of an example in the centre of the others has no direction.
    least = ROUNDING * torch.finfo(h.dtype).eps * h.amax(-1)[..., None, None]
    cosine2 = cosine2 * ((own > least) & (other > least))
    pairs = present.unsqueeze(-1) * present.unsqueeze(-2) * (1 - identity)
    likeness2: Tensor = (cosine2 * pairs).sum((-2, -1)) / (n * (n - 1)) * (trace > 0)
    return likeness2


def beta_of_single_examples(features: Tensor, member: Tensor, *, whiten: bool) -> Tensor:
    """Return β₀ [...] of tasks with one example per class; features [..., n, d], member [..., n, C].

    The shape of n centred points has n(n − 3)/2 degrees of freedom.
    """
    sigma2 = likeness_of_single_examples(features, member, whiten=whiten)
    return _scale(sigma2, torch.ones_like(sigma2), features.shape[-1])


def likeness_of_single_examples(features: Tensor, member: Tensor, *, whiten: bool) -> Tensor:
    """Return σ² [...] of tasks with one example per class, shrunk to its prior, see `_shrunk`."""
    present = (member.sum(-1) > 0).to(features.dtype)
    n = present.sum(-1)
    likeness2 = strangers_likeness(features, present, whiten=whiten)
    return _shrunk(likeness2, (n * (n - 3) / 2).clamp_min(0), features.shape[-1])


def beta_of_left_out(left_out: LooStats, member: Tensor, feature_dim: int) -> Tensor:
    """Return β₀ [...] of tasks where k of the C classes have examples that can be left out.

    Their cosines with the other classes have k(2C − k − 1)/2 − C degrees of freedom, which is C(C − 3)/2
    where all can.
    """
    present = member.sum(-2) > 0  # [..., C]
    counted = (left_out.counted > 0).unsqueeze(-1)  # [..., n, 1]
    other = counted & (member <= 0) & present.unsqueeze(-2)
    likeness2 = (left_out.cosine.square() * other).sum((-2, -1)) / other.sum((-2, -1)).clamp_min(1)
    C = present.sum(-1).to(likeness2)
    k = ((member > 0) & counted).any(-2).sum(-1).to(likeness2)
    freedom = (k * (2 * C - k - 1) / 2 - C).clamp_min(0)
    return _scale(_shrunk(likeness2, freedom, feature_dim), effective_shots(member).sum(-1) / C, feature_dim)


def effective_shots(member: Tensor) -> Tensor:
    """Return (Σw)²/Σw² of each class, [..., n, C] → [..., C]: its number of examples, copies counted once."""
    return member.sum(-2).square() / positive(member.square().sum(-2))


def default_beta(feature_dim: int) -> float:
    """Return β₀ for features that are not centred: it does well on single shots of most of them."""
    return float(DEFAULT_SCALE / feature_dim**0.25)


def _shrunk(likeness2: Tensor, freedom: Tensor, feature_dim: int) -> Tensor:
    prior = PRIOR_FREEDOM * PRIOR_LIKENESS / math.sqrt(feature_dim)
    return (prior + freedom * likeness2) / (PRIOR_FREEDOM + freedom)


def _scale(sigma2: Tensor, shots: Tensor, feature_dim: int) -> Tensor:
    beta: Tensor = LOGIT_SCALE * shots**GROWTH / (sigma2 * feature_dim).sqrt()
    return beta
