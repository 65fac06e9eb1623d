"""The β with the largest posterior density, on a grid around the centre of its prior."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

PRIOR_WIDTH = 0.4  # how far (in log β) a task may be from β₀, see `strangers.py`
GRID = range(-3, 5)  # powers of 2, around β₀, at which the likelihood is computed


class ChosenBeta(NamedTuple):
    """β [..., 1], and the standard deviation of log β [...]; None for a β that was given."""

    value: Tensor
    spread: Tensor | None


def most_probable_beta(
    default: Tensor, log_likelihood: Callable[[Tensor], Tensor], *, at_once: int = len(GRID)
) -> ChosenBeta:
    """Return β under a log-normal prior around `default` β₀ [...], by Laplace's approximation in log β.

    log_likelihood: of a task's examples, from β [k, ..., 1] to [k, ...]
    at_once: how many β of a task it may be asked for in one call
    """
    steps = torch.tensor([2.0**k for k in GRID], dtype=default.dtype, device=default.device)
    grid = default.unsqueeze(-1) * steps  # [..., grid]
    parts = grid.movedim(-1, 0).unsqueeze(-1).split(max(1, at_once))
    score = torch.cat([log_likelihood(part) for part in parts]).movedim(0, -1)
    score = score - 0.5 * (steps.log() / PRIOR_WIDTH) ** 2
    peak, spread = parabola(score, grid.log())
    return ChosenBeta(peak.exp().unsqueeze(-1), spread.clamp(max=PRIOR_WIDTH))


def parabola(score: Tensor, at: Tensor) -> tuple[Tensor, Tensor]:
    """Return where the parabola through the largest score [..., k] and its neighbours peaks, and its width.

    Both [...]; the width is the standard deviation of the normal density with this logarithm.
    """
    middle = score.argmax(-1, keepdim=True).clamp(1, score.shape[-1] - 2)
    left, centre, right = (score.gather(-1, middle + offset).squeeze(-1) for offset in (-1, 0, 1))
    bend = (left - 2 * centre + right).clamp(max=-1e-9)
    offset = (0.5 * (left - right) / bend).clamp(-1, 1)
    step = at[..., 1] - at[..., 0]
    return at.gather(-1, middle).squeeze(-1) + offset * step, step * (-bend).rsqrt()


def parabola_peak(score: Tensor, at: Tensor) -> Tensor:
    """Return where the `parabola` peaks, [...]."""
    return parabola(score, at)[0]
