"""Class means of unequal numbers of examples, each shrunk as far as its noise asks for."""

import torch
from torch import Tensor

from gpldla.heads.base import can_read_values
from gpldla.heads.gp.linear_gp import LabelledFeatures
from gpldla.heads.gp.strangers import effective_shots
from gpldla.heads.gp.task_space import positive

LEAST_COSINE = 0.02  # between examples of a class; what is below it is noise
SEVERAL = 1e-6  # relative: what numbers of examples differ by if not by rounding


def known_equal(support: LabelledFeatures) -> bool:
    """Return whether it is known that all classes have equally many examples, each counted once."""
    if support.weights is not None or not can_read_values(support.counts):
        return False
    return bool((support.counts == support.counts[..., :1]).all())


def mean_shrinkage(support: LabelledFeatures, norms2: Tensor, *, shot_short: bool = False) -> Tensor:
    """Return s_j [..., C], by which each class mean μ_j is multiplied; norms2 [..., C]: ‖μ_j‖².

    The mean of few examples is longer, because noise adds to its length, and −‖μ_j‖²/2σ² then makes its class
    less probable. With ρ the cosine between different examples of a class, the best linear prediction of what
    an infinite number of examples would have as mean is s_j·μ_j, with s_j = N_jρ / (1 + (N_j − 1)ρ). Only
    ratios matter, so s_j is divided by its mean over the classes; with equal shots it is exactly 1.

    shot_short: of classes that have lost one of several examples, as in leave-one-out predictions
    """
    present = support.counts > 0
    shots = effective_shots(support.member)
    rho = own_cosine(support, norms2, shots).unsqueeze(-1)
    if shot_short:
        shots = torch.where(shots > 1 + SEVERAL, (shots - 1).clamp_min(1), shots)
    s = shots * rho / (1 + (shots - 1) * rho)
    s = s / (s.sum(-1, keepdim=True) / positive(present.sum(-1, keepdim=True).to(s)))
    largest = shots.amax(-1, keepdim=True)
    equal = ((shots >= largest * (1 - SEVERAL)) | ~present).all(-1, keepdim=True)
    return torch.where(equal | ~present, torch.ones_like(s), s)


def own_cosine(support: LabelledFeatures, norms2: Tensor, shots: Tensor) -> Tensor:
    """Return ρ [...], pooled over classes with several examples, of which shots [..., C] counts the distinct.

    Σ_{a≠b} w_a w_b φ_a·φ_b = (Σw)²‖μ_j‖² − Σw²‖φ‖²
    """
    member, counts = support.member, support.counts
    squares = member.square().sum(-2)
    length2 = support.phi.norm2().unsqueeze(-1)  # [..., n, 1]
    mean_length2 = (member * length2).sum((-2, -1)) / positive(counts.sum(-1))  # [...]
    several = (shots > 1 + SEVERAL).to(counts.dtype)
    products = ((counts.square() * norms2 - (member.square() * length2).sum(-2)) * several).sum(-1)
    pairs = ((counts.square() - squares) * several).sum(-1)
    return (products / positive(pairs * mean_length2)).clamp_min(LEAST_COSINE).clamp_max(1.0)
