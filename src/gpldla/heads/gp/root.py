"""A root of features that are nowhere negative, before anything else is done with them."""

import torch
from torch import Tensor

from gpldla.heads.base import can_read_values, unit_length

ROOT = 0.75
SMALLEST = 1e-8  # entries of unit rows below it grow linearly, so that the slope at 0 is 100, not infinite


def root_power(features: Tensor) -> Tensor | None:
    """Return the power [...] for tasks of features [..., n, d]: ROOT where no feature is negative, else 1.

    Non-negative features (activations after a ReLU, pixels, counts) behave like counts: their variance grows
    with their mean, so a few large entries dominate every inner product. A root stabilises the variance. None
    where the power of every task is known to be 1.
    """
    nonnegative = (features >= 0).flatten(-2).all(-1)
    if can_read_values(nonnegative) and not bool(nonnegative.any()):
        return None
    return torch.where(nonnegative, ROOT, 1.0).to(features.dtype)


def rooted(features: Tensor, power: Tensor | None) -> Tensor:
    """Raise unit rows of features [..., n, d] to `power` [...], which is ROOT or 1; signs are kept.

    None leaves the features unchanged.
    """
    if power is None:
        return features
    unit = unit_length(features)  # so that the scale of the features makes no difference
    # x^¾ = x · |x|^{−¼}; the square root of zeros would take ten times as long.
    root = unit * unit.abs().clamp_min(SMALLEST).rsqrt().sqrt()
    if can_read_values(power) and bool((power != 1).all()):
        return root
    return torch.where(power[..., None, None] != 1, root, unit)
