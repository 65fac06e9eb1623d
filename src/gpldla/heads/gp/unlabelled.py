"""What unlabelled rows of a task teach about its classes: soft labels by expectation and maximisation.

With one example per class neither the centre of the classes nor the directions in which examples of one class
differ can be measured, and a class mean is as noisy as its example. Rows without labels, most of which belong
to the classes, improve all three. A row u that is neither labelled nor used yet has the responsibilities

    r_j = exp(s·cos_j) / (e^NONE + Σ_l exp(s·cos_l)),     cos_j = φ(u)·μ_j/‖μ_j‖

(E-step), where "none of the classes" has the logit NONE, so that rows of other classes count little.
Labelled rows keep their labels. The M-step takes each row as an example of class j with weight
R_ij = WEIGHT·r_ij: class means, the centre, and the scatter within the classes,

    S = Σ_ij R_ij (u_i − m_j)(u_i − m_j)ᵀ = Uᵀ(diag(R1) − R·diag(N)⁻¹·Rᵀ)U,     N_j = Σ_i R_ij

s is 1/σ, so a logit is a cosine in units of what cosines with other classes vary by: first as the labelled
rows alone tell it, see `strangers.py`, then with σ² = Σ_ij (1 − r_ij)·cos_ij² / Σ_ij (1 − r_ij).
"""

from typing import NamedTuple

import torch
from torch import Tensor

from gpldla.heads.base import unit_length
from gpldla.heads.gp.content import content_keys
from gpldla.heads.gp.task_space import (
    TaskSpace,
    class_means,
    positive,
    scatter_directions,
    zero_if_rounding,
)

STEPS = 3  # more make the answer its own evidence where classes are hardly distinct
NONE = 2.0  # logit of "none of the classes"
UNLABELLED_FACTOR = 0.75  # of β: cosines with means that have less noise are larger
LEAST_ROWS, LEAST_PER_CLASS = 10, 2  # fewer teach nothing
MOST_ROWS = 512  # the work is cubic in them, and more change little
WEIGHT = 0.5  # of an unlabelled row, where a labelled one has 1


class SoftlyLabelled(NamedTuple):
    """Labelled rows followed by unlabelled ones, [..., n + m, d], with soft labels [..., n + m, C].

    space: found from all of them; means [..., C, d]: directions of the class means in it, of unit length
    """

    rows: Tensor
    member: Tensor
    space: TaskSpace
    means: Tensor


def least_rows(n_way: int) -> int:
    """Return how many unlabelled rows a task of so many classes needs at least."""
    return max(LEAST_ROWS, LEAST_PER_CLASS * n_way)


def usable_rows(unlabelled: Tensor, n_way: int) -> Tensor | None:
    """Return those of the rows [m, d] that are used: None if they are too few, at most MOST_ROWS of many.

    The content of the rows decides which, not their order.
    """
    m = len(unlabelled)
    if m < least_rows(n_way):
        return None
    if m <= MOST_ROWS:
        return unlabelled
    order = content_keys(unlabelled).argsort(stable=True)
    return unlabelled[order[torch.arange(MOST_ROWS, device=order.device) * m // MOST_ROWS]]


def label_softly(
    space: TaskSpace, labelled: Tensor, member: Tensor, unlabelled: Tensor, sigma: Tensor, *, whiten: bool
) -> SoftlyLabelled:
    """Label the rows of `unlabelled` [..., m, d] softly, and find the space of all rows.

    space: that of the labelled rows [..., n, d] with membership [..., n, C]
    sigma [..., 1]: σ as the labelled rows tell it
    """
    n, rows = labelled.shape[-2], torch.cat([labelled, unlabelled], -2)
    absent = (member.sum(-2) == 0).unsqueeze(-2)  # [..., 1, C]
    phi = unit_length(space(rows))
    means, sigma = unit_length(class_means(phi[..., :n, :], member)), sigma.unsqueeze(-1)
    for _ in range(STEPS):
        share = _responsibilities(phi[..., n:, :] @ means.mT / sigma, absent)
        soft = torch.cat([member, WEIGHT * share], -2)
        space = _fit_space(space, rows, soft, whiten=whiten)
        phi = unit_length(space(rows))
        means = unit_length(class_means(phi, soft))
        cosine2 = (phi[..., n:, :] @ means.mT).square()
        other = (1 - share) * (~absent)
        sigma2 = (other * cosine2).sum((-2, -1)) / positive(other.sum((-2, -1)))
        sigma = positive(sigma2).sqrt()[..., None, None]
    return SoftlyLabelled(rows, soft, space, means)


def _responsibilities(logits: Tensor, absent: Tensor) -> Tensor:
    """Return how much each row belongs to each class, [..., m, C] → [..., m, C]; the sum is below 1."""
    logits = logits.masked_fill(absent, -torch.inf)
    none = torch.full_like(logits[..., :1], NONE)
    return torch.cat([logits, none], -1).softmax(-1)[..., :-1]


def _fit_space(space: TaskSpace, rows: Tensor, soft: Tensor, *, whiten: bool) -> TaskSpace:
    """Return the space of rows [..., n, d] with soft labels [..., n, C]."""
    u = unit_length(rows)
    counts = soft.sum(-2)  # N_j, [..., C]
    present = (counts > 0).to(u.dtype)
    centre = (present.unsqueeze(-2) @ class_means(u, soft)).squeeze(-2) / present.sum(-1, keepdim=True)
    fitted = TaskSpace(space.normalize_first, centre)
    if whiten:
        weight = soft.sum(-1)
        Q = torch.diag_embed(weight) - soft @ (soft / positive(counts).unsqueeze(-2)).mT
        values, vectors = torch.linalg.eigh(Q)
        residuals = (vectors * values.clamp_min(0).sqrt().unsqueeze(-2)).mT @ (u - centre.unsqueeze(-2))
        trace = zero_if_rounding(residuals.square().sum((-2, -1)), weight.sum(-1))
        freedom = (counts.sum(-1) - present.sum(-1)).clamp_min(0)
        kappa = freedom / positive(trace) * (trace > 0)
        fitted.directions, fitted.shrink = scatter_directions(residuals, kappa)
    return fitted
