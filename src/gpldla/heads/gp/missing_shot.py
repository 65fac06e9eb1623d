"""What leave-one-out predictions say about new rows: they have a shot less of their class, new rows do not.

In the task's space let a row of class y be s_y + e, with independent parts of squared length t and 1. With
M_j = 1/N_j the noise of the mean of N_j examples, the centre c of C class means and T = Σ_j M_j / C², the
expected inner products and squared lengths are

    (x − c)·(μ_y − c) = t(1 − 1/C) − M_y/C + T          own class
    (x − c)·(μ_j − c) = −t/C − M_j/C + T                 other classes
    ‖x − c‖² = t(1 − 1/C) + 1 + T,    ‖μ_j − c‖² = t(1 − 1/C) + M_j(1 − 2/C) + T

With equal shots the noise cancels in the first line. Without example i, M_y is 1/(N_y − 1): the mean is
noisier, and its noise moves the centre more than that of the others, which together is most of what
leave-one-out is too pessimistic by. t is the one for which the left-out examples have the cosines that they
have; every cosine then moves by the difference that the missing shot makes. How much cosines scatter hardly
depends on the number of shots; that stays.
"""

import math
from dataclasses import replace

import torch
from torch import Tensor

from gpldla.heads.gp.leave_one_out import LooStats
from gpldla.heads.gp.linear_gp import LabelledFeatures
from gpldla.heads.gp.task_space import positive

SIGNAL = (1e-4, 1e4)  # between which t is searched
HALVINGS = 40


def with_all_shots(
    left_out: LooStats, support: LabelledFeatures, norms2: Tensor, *, centred: bool
) -> LooStats:
    """Return the logits that rows like the left-out ones would have with no shot missing, [n, C].

    support: in the task's space, n examples of C classes; norms2 [C]: ‖μ_j‖² of the classifier's means
    """
    member, counted = support.member, left_out.counted
    own = (member > 0).to(norms2.dtype)  # [n, C]
    full, short = shots_with_and_without(member)
    present = (support.counts > 0).to(norms2.dtype)

    def contrast(cosine: Tensor) -> Tensor:
        """Return the mean cosine with the own class, less that with the others if their sum is centred."""
        mine = (cosine * own).sum(-1)
        others = (cosine * present).sum(-1) - mine
        gap = mine - others / (present.sum() - 1).clamp_min(1) if centred else mine
        return (gap * counted).sum() / positive(counted.sum())

    seen = contrast(left_out.cosine)
    low, high = (torch.full_like(seen, math.log(bound)) for bound in SIGNAL)
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        above = contrast(expected_cosines(middle.exp(), short, own, present, centred=centred)) > seen
        low, high = torch.where(above, low, middle), torch.where(above, middle, high)
    t = low.exp()
    shift = expected_cosines(t, full, own, present, centred=centred)
    shift = shift - expected_cosines(t, short, own, present, centred=centred)
    cosine = (left_out.cosine + shift).clamp(-1, 1)
    d, length = support.phi.x.shape[-1], norms2.sqrt()
    rms = positive((norms2 * present).sum() / present.sum()).sqrt()
    dots = cosine * length * support.phi.norm2().sqrt().unsqueeze(-1)
    slope = (dots - norms2 / 2) * (math.sqrt(d) / rms)  # Eq. 17-19
    return replace(left_out, slope=slope, log_pi=support.log_pi.expand_as(slope), cosine=cosine)


def expected_cosines(signal: Tensor, shots: Tensor, own: Tensor, present: Tensor, *, centred: bool) -> Tensor:
    """Return the expected cosines of rows with the class means, [n, C].

    signal: t; shots [n, C]: N_j as each row finds them; own [n, C]: 1 for its class; present [C]
    """
    noise = present / positive(shots)  # M_j
    C = present.sum() if centred else math.inf
    T = noise.sum(-1, keepdim=True) / C**2
    between = signal * (1 - 1 / C)
    dots = own * signal - (signal + noise) / C + T
    length2 = (between + 1 + T) * (between + noise * (1 - 2 / C) + T)
    return dots * positive(length2).rsqrt()


def shots_with_and_without(member: Tensor) -> tuple[Tensor, Tensor]:
    """Return the effective shots (Σw)²/Σw² of all classes, with and without each example, [n, C] each."""
    total, squares = member.sum(-2), member.square().sum(-2)
    full = (total.square() / positive(squares)).expand_as(member)
    left, left_squares = total - member, squares - member.square()
    alone = left <= 1e-9 * total  # nothing is left but rounding
    return full, (left.square() / positive(left_squares)).masked_fill(alone, 0)
