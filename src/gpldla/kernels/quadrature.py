"""The predictive integral of `gpldla.heads.gp.predictive.quadrature` in one GPU kernel.

The plain version has a hundred small operations, and a small batch spends its time launching them. This
kernel gives the same numbers without gradients; see the plain version for the mathematics.
"""

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from gpldla.kernels.typed import jit

QUERIES_PER_BLOCK = 32


class Rule(NamedTuple):
    """The constants of the rule, which the plain version decides; they become part of the compiled kernel.

    variance: of the Gumbel distribution
    below, half, reach, middle: of the intervals and of the variables of h, see `gpldla.heads.gp.noisy_gumbel`
    points:   the fewest; they are doubled, `doublings` times at most, until a step is `step` of the
              narrowest standard deviation
    """

    variance: float
    below: float
    half: float
    reach: float
    middle: float
    points: int
    step: float
    doublings: int


def integrate(mean: Tensor, var: Tensor, table: Tensor, rule: Rule) -> Tensor:
    """Return log p [..., C] for means and variances of logits [..., C], float32 on a GPU.

    table [8, L]: the coefficients of x^k τ^l in −h
    """
    assert len(table) == 8  # the kernel's local variables
    C = mean.shape[-1]
    means, variances = mean.reshape(-1, C).contiguous(), var.reshape(-1, C).contiguous()
    log_p = torch.empty_like(means)
    grid = (triton.cdiv(len(means), QUERIES_PER_BLOCK),)
    classes = max(2, triton.next_power_of_2(C))
    with torch.cuda.device(mean.device):  # Triton launches on the current one
        _kernel[grid](
            means, variances, log_p, table, len(means), C, QUERIES=QUERIES_PER_BLOCK, CLASSES=classes,
            POWERS=table.shape[1], **{name.upper(): float(value) for name, value in rule._asdict().items()},
        )  # fmt: skip
    return log_p.view(mean.shape)


@jit
def _coefficient(table_ptr, k: tl.constexpr, tau, POWERS: tl.constexpr):  # type: ignore[no-untyped-def]
    """Return the coefficient of x^k in −h, by Horner's scheme in τ."""
    value = tau * 0.0 + tl.load(table_ptr + k * POWERS + POWERS - 1)
    for power in tl.static_range(2, POWERS + 1):
        value = value * tau + tl.load(table_ptr + k * POWERS + POWERS - power)
    return value


@jit
def _horner(coefficient, value, slope, x):  # type: ignore[no-untyped-def]
    """Go on by one coefficient: return the polynomial and its derivative by x."""
    return value * x + coefficient, slope * x + value


@jit
def _kernel(  # type: ignore[no-untyped-def]
    mean_ptr, var_ptr, out_ptr, table_ptr, n, C, QUERIES: tl.constexpr, CLASSES: tl.constexpr,
    POWERS: tl.constexpr, VARIANCE: tl.constexpr, BELOW: tl.constexpr, HALF: tl.constexpr,
    REACH: tl.constexpr, MIDDLE: tl.constexpr, POINTS: tl.constexpr, STEP: tl.constexpr,
    DOUBLINGS: tl.constexpr,
):  # fmt: skip
    """Integrate for a block of queries, all classes of each in one row; point after point."""
    infinity = float("inf")
    tiny = 1.1754943508222875e-38
    rows = tl.program_id(0) * QUERIES + tl.arange(0, QUERIES)
    columns = tl.arange(0, CLASSES)
    address = rows[:, None] * C + columns[None, :]
    valid = (rows[:, None] < n) & (columns[None, :] < C)
    # Rows beyond the end are computed like others, but not stored.
    mean = tl.load(mean_ptr + address, mask=valid, other=-infinity)
    mean = tl.where((rows[:, None] >= n) & (columns[None, :] < 2), 0.0, mean)
    var = tl.load(var_ptr + address, mask=valid, other=1.0)
    impossible = mean == -infinity
    finite_mean = tl.where(impossible, -1e15, mean)

    spread = tl.sqrt(var + VARIANCE)
    pace = 1.0 / (spread + REACH)
    tau = pace - MIDDLE
    c0 = _coefficient(table_ptr, 0, tau, POWERS)
    c1 = _coefficient(table_ptr, 1, tau, POWERS)
    c2 = _coefficient(table_ptr, 2, tau, POWERS)
    c3 = _coefficient(table_ptr, 3, tau, POWERS)
    c4 = _coefficient(table_ptr, 4, tau, POWERS)
    c5 = _coefficient(table_ptr, 5, tau, POWERS)
    c6 = _coefficient(table_ptr, 6, tau, POWERS)
    c7 = _coefficient(table_ptr, 7, tau, POWERS)

    start = finite_mean - BELOW * spread
    upper = start + 2.0 * HALF * spread
    lowest = tl.max(start, axis=1)
    highest = tl.max(upper, axis=1)
    narrowest = tl.min(tl.where(upper < lowest[:, None], infinity, spread), axis=1)
    steps = (highest - lowest) / (STEP * narrowest)
    doublings = tl.minimum(tl.maximum(tl.ceil(tl.log2(steps / (POINTS - 1.0))), 0.0), DOUBLINGS)
    points = POINTS * tl.exp2(doublings)
    width = (highest - lowest) / (points - 1.0)

    mass = tl.zeros((QUERIES, CLASSES), dtype=tl.float32)
    for k in range(0, tl.max(points).to(tl.int32)):
        t = (lowest + k * width)[:, None]
        x = (t - start) * pace - HALF
        inside = tl.minimum(x, HALF)
        value, slope = _horner(c6, c7, tau * 0.0, inside)
        value, slope = _horner(c5, value, slope, inside)
        value, slope = _horner(c4, value, slope, inside)
        value, slope = _horner(c3, value, slope, inside)
        value, slope = _horner(c2, value, slope, inside)
        value, slope = _horner(c1, value, slope, inside)
        value, slope = _horner(c0, value, slope, inside)
        e = tl.exp(tl.maximum(value + slope * (x - inside), -80.0))
        all_below = tl.exp(-tl.sum(e, axis=1))[:, None]
        own_point = (k < points)[:, None]  # each query has as many points as it needs
        mass += tl.where(own_point, e * slope * all_below, 0.0)
    mass = -mass * pace
    mass = tl.where(mass > 1e-31, mass, tiny)
    log_p = tl.log(mass) - tl.log(tl.sum(mass, axis=1))[:, None]

    # The bound by Jensen's inequality holds the far tail up.
    tilted = mean + 0.5 * var
    largest = tl.max(tilted, axis=1)[:, None]
    total = tl.log(tl.sum(tl.exp(tilted - largest), axis=1))[:, None] + largest
    tilted_twice = mean + 1.5 * var
    high, low = tl.maximum(total, tilted_twice), tl.minimum(total, tilted_twice)
    bound = tilted - (high + tl.log(1.0 + tl.exp(low - high)))
    log_p = tl.where(impossible, -infinity, tl.maximum(log_p, bound))
    top = tl.max(log_p, axis=1)[:, None]
    log_p = log_p - (top + tl.log(tl.sum(tl.exp(log_p - top), axis=1))[:, None])
    tl.store(out_ptr + address, log_p, mask=valid)
