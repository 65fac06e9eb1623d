"""The predictive integral of `gpldla.heads.gp.predictive.quadrature` in one GPU kernel.

The plain version has a hundred small operations, and a small batch spends its time launching them. This
kernel gives the same numbers without gradients; see the plain version for the mathematics.
"""

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra import libdevice

from gpldla.kernels.typed import jit

QUERIES_PER_BLOCK = 32


class Rule(NamedTuple):
    """The constants of the rule, which the plain version decides; they become part of the compiled kernel.

    mixture:  weight, mean and standard deviation of four normals that stand for the Gumbel distribution
    mean, variance: of the Gumbel distribution
    below, above: how far the interval reaches, in standard deviations
    points:   the fewest; they are doubled, `doublings` times at most, until a step is `step` of the
              narrowest standard deviation
    """

    mixture: tuple[tuple[float, float, float], ...]
    mean: float
    variance: float
    below: float
    above: float
    points: int
    step: float
    doublings: int


def integrate(mean: Tensor, var: Tensor, rule: Rule) -> Tensor:
    """Return log p [..., C] for means and variances of logits [..., C], float32 on a GPU."""
    C = mean.shape[-1]
    means, variances = mean.reshape(-1, C).contiguous(), var.reshape(-1, C).contiguous()
    log_p = torch.empty_like(means)
    grid = (triton.cdiv(len(means), QUERIES_PER_BLOCK),)
    classes = max(2, triton.next_power_of_2(C))
    with torch.cuda.device(mean.device):  # Triton launches on the current one
        _kernel[grid](
            means, variances, log_p, len(means), C, QUERIES=QUERIES_PER_BLOCK, CLASSES=classes,
            **_constants(rule),
        )  # fmt: skip
    return log_p.view(mean.shape)


def _constants(rule: Rule) -> dict[str, float]:
    """Return the rule by the names that the kernel has for it."""
    constants = {"MEAN": rule.mean, "VARIANCE": rule.variance, "BELOW": rule.below, "ABOVE": rule.above}
    constants |= {"POINTS": float(rule.points), "STEP": rule.step, "DOUBLINGS": float(rule.doublings)}
    for k, (weight, location, scale) in enumerate(rule.mixture, start=1):
        constants |= {f"W{k}": weight, f"L{k}": location, f"S{k}": scale}
    return constants


@jit
def _component(t, mean, var, weight, location, scale):  # type: ignore[no-untyped-def]
    """Return what one normal of the Gumbel mixture adds to F_j(t) and to g_j(t)·√π."""
    narrowness = tl.rsqrt(2.0 * (var + scale * scale))
    z = (mean + location - t) * narrowness
    return 0.5 * weight * libdevice.erfc(z), weight * narrowness * tl.exp(-z * z)


@jit
def _kernel(  # type: ignore[no-untyped-def]
    mean_ptr, var_ptr, out_ptr, n, C, QUERIES: tl.constexpr, CLASSES: tl.constexpr,
    MEAN: tl.constexpr, VARIANCE: tl.constexpr, BELOW: tl.constexpr, ABOVE: tl.constexpr,
    POINTS: tl.constexpr, STEP: tl.constexpr, DOUBLINGS: tl.constexpr,
    W1: tl.constexpr, L1: tl.constexpr, S1: tl.constexpr,
    W2: tl.constexpr, L2: tl.constexpr, S2: tl.constexpr,
    W3: tl.constexpr, L3: tl.constexpr, S3: tl.constexpr,
    W4: tl.constexpr, L4: tl.constexpr, S4: tl.constexpr,
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
    centre = mean + MEAN
    upper = centre + ABOVE * spread
    lowest = tl.max(centre - BELOW * spread, axis=1)
    highest = tl.max(upper, axis=1)
    narrowest = tl.min(tl.where(upper < lowest[:, None], infinity, spread), axis=1)
    steps = (highest - lowest) / (STEP * narrowest)
    doublings = tl.minimum(tl.maximum(tl.ceil(tl.log2(steps / (POINTS - 1.0))), 0.0), DOUBLINGS)
    points = POINTS * tl.exp2(doublings)
    width = (highest - lowest) / (points - 1.0)

    mass = tl.zeros((QUERIES, CLASSES), dtype=tl.float32)
    for k in range(0, tl.max(points).to(tl.int32)):
        t = (lowest + k * width)[:, None]
        F1, g1 = _component(t, finite_mean, var, W1, L1, S1)
        F2, g2 = _component(t, finite_mean, var, W2, L2, S2)
        F3, g3 = _component(t, finite_mean, var, W3, L3, S3)
        F4, g4 = _component(t, finite_mean, var, W4, L4, S4)
        F = tl.maximum(F1 + F2 + F3 + F4, tiny)
        all_below = tl.exp(tl.sum(tl.log(F), axis=1))[:, None]
        own_point = (k < points)[:, None]  # each query has as many points as it needs
        mass += tl.where(own_point, (g1 + g2 + g3 + g4) / F * all_below, 0.0)
    log_p = tl.log(tl.maximum(mass, tiny)) - tl.log(tl.sum(mass, axis=1))[:, None]

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
