"""Class means of unequal numbers of examples, each shrunk as far as its noise asks for."""

import torch
from torch import Tensor

from gpldla.heads.gp.linear_gp import LabelledFeatures
from gpldla.heads.gp.strangers import effective_shots
from gpldla.heads.gp.task_space import positive

LEAST_COSINE = 0.02  # between examples of a class; what is below it is noise


def mean_shrinkage(support: LabelledFeatures, norms2: Tensor) -> Tensor:
    """Return s_j [..., C], by which each class mean μ_j is multiplied; norms2 [..., C]: ‖μ_j‖².

    The mean of few examples is longer, because noise adds to its length, and −‖μ_j‖²/2σ² then makes its class
    less probable. With ρ the cosine between different examples of a class, the best linear prediction of what
    an infinite number of examples would have as mean is s_j·μ_j, with s_j = N_jρ / (1 + (N_j − 1)ρ). Only
    ratios matter, so s_j is divided by its mean over the classes; with equal shots it is exactly 1.

    ρ is pooled over classes with several examples: Σ_{a≠b} w_a w_b φ_a·φ_b = (Σw)²‖μ_j‖² − Σw²‖φ‖².
    """
    member, counts = support.member, support.counts
    present = counts > 0
    shots = effective_shots(member)
    squares = member.square().sum(-2)
    length2 = support.phi.norm2().unsqueeze(-1)  # [..., n, 1]
    mean_length2 = (member * length2).sum((-2, -1)) / positive(counts.sum(-1))  # [...]
    several = (shots > 1 + 1e-6).to(counts.dtype)
    products = ((counts.square() * norms2 - (member.square() * length2).sum(-2)) * several).sum(-1)
    pairs = ((counts.square() - squares) * several).sum(-1)
    rho = (products / positive(pairs * mean_length2)).clamp_min(LEAST_COSINE).clamp_max(1.0).unsqueeze(-1)
    s = shots * rho / (1 + (shots - 1) * rho)
    s = s / (s.sum(-1, keepdim=True) / positive(present.sum(-1, keepdim=True).to(s)))
    largest = shots.amax(-1, keepdim=True)
    equal = ((shots >= largest * (1 - 1e-6)) | ~present).all(-1, keepdim=True)
    return torch.where(equal | ~present, torch.ones_like(s), s)
