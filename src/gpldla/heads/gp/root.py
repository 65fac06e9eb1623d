"""A root of features that are nowhere negative, before anything else is done with them.

Such features (activations after a ReLU, pixels, counts) vary more where their mean is larger, so a few large
ones dominate every inner product. Taylor's law says how much more, var ∝ mean^b over the features of a kind,
and x ↦ x^{1−b/2} then has the same variance at every mean. Half of the way there does best: a large
activation is noisier, but says more as well. b is 1 for counts and up to 2 for networks; the task's own
examples say which.
"""

import torch
from torch import Tensor

from gpldla.heads.base import can_read_values, unit_length

STABILISED = 0.5  # the part of the way from no root to one variance
SMALLEST = 1e-8  # entries of unit rows below it grow linearly, so that the slope at 0 is finite
# The prior of b: SLOPE, which counts as much as PRIOR_FEATURES features whose log means have variance 1.
SLOPE, PRIOR_FEATURES = 1.0, 10.0
LEAST_VARIANCE = 1e-6  # of a feature that varies, in units of its squared mean


@torch.no_grad()
def root_power(features: Tensor, present: Tensor | None = None) -> Tensor | None:
    """Return the power [...] for tasks of features [..., n, d], which is 1 where a feature is negative.

    present [..., n]: which rows count; None is all
    None where the power of every task is known to be 1.
    """
    nonnegative = (features >= 0).flatten(-2).all(-1)
    if can_read_values(nonnegative) and not bool(nonnegative.any()):
        return None
    if present is None:
        present = torch.ones_like(features[..., 0], dtype=torch.bool)
    power = 1 - STABILISED * taylor_slope(unit_length(features), present) / 2
    return torch.where(nonnegative, power, 1.0).to(features.dtype)


def taylor_slope(features: Tensor, present: Tensor) -> Tensor:
    """Return b [...] of var ∝ mean^b over the features of rows [..., n, d] that are `present` [..., n].

    It is the slope of log var on log mean by least squares, under its prior, and from 0 to 2.
    """
    row = present.to(features.dtype).unsqueeze(-1)  # [..., n, 1]
    n = row.sum(-2)  # [..., 1]
    mean = (features * row).sum(-2) / n.clamp_min(1)  # [..., d]
    var = ((features - mean.unsqueeze(-2)).square() * row).sum(-2) / (n - 1).clamp_min(1)
    varies = (mean > 0) & (var > LEAST_VARIANCE * mean.square())
    log_mean = torch.where(varies, mean, 1.0).log()
    log_var = torch.where(varies, var, 1.0).log()
    n_features = varies.sum(-1, keepdim=True).clamp_min(1)
    x = torch.where(varies, log_mean - log_mean.sum(-1, keepdim=True) / n_features, 0.0)
    b = ((x * log_var).sum(-1) + PRIOR_FEATURES * SLOPE) / (x.square().sum(-1) + PRIOR_FEATURES)
    return b.clamp(0, 2)


def rooted(features: Tensor, power: Tensor | None) -> Tensor:
    """Raise unit rows of features [..., n, d] to `power` [...]; signs are kept.

    None leaves the features unchanged.
    """
    if power is None:
        return features
    unit = unit_length(features)  # so that the scale of the features makes no difference
    exponent = (power - 1)[..., None, None]  # x^p = x · |x|^{p−1}
    if unit.requires_grad:
        return unit * (unit.abs().clamp_min(SMALLEST).log2() * exponent).exp2()
    # In place, as memory costs more than arithmetic; to base 2, as `pow` takes ten times as long
    return unit.abs().clamp_min_(SMALLEST).log2_().mul_(exponent).exp2_().mul_(unit)
