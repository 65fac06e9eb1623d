"""The predictive integral of `gpldla.heads.gp.predictive.quadrature` in one GPU kernel.

The plain version has a hundred small operations, and a small batch spends its time launching them. This
kernel gives the same numbers without gradients; see the plain version for the mathematics.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra import libdevice

from gpldla.kernels.typed import jit

QUERIES_PER_BLOCK = 32


def integrate(mean: Tensor, var: Tensor) -> Tensor:
    """Return log p [..., C] for means and variances of logits [..., C], float32 on a GPU."""
    C = mean.shape[-1]
    means, variances = mean.reshape(-1, C).contiguous(), var.reshape(-1, C).contiguous()
    log_p = torch.empty_like(means)
    grid = (triton.cdiv(len(means), QUERIES_PER_BLOCK),)
    classes = max(2, triton.next_power_of_2(C))
    with torch.cuda.device(mean.device):  # Triton launches on the current one
        _kernel[grid](means, variances, log_p, len(means), C, QUERIES=QUERIES_PER_BLOCK, CLASSES=classes)
    return log_p.view(mean.shape)


@jit
def _component(t, mean, var, weight, location, scale):  # type: ignore[no-untyped-def]
    """Return what one normal of the Gumbel mixture adds to F_j(t) and to g_j(t)·√π."""
    narrowness = tl.rsqrt(2.0 * (var + scale * scale))
    z = (mean + location - t) * narrowness
    return 0.5 * weight * libdevice.erfc(z), weight * narrowness * tl.exp(-z * z)


@jit
def _kernel(mean_ptr, var_ptr, out_ptr, n, C, QUERIES: tl.constexpr, CLASSES: tl.constexpr):  # type: ignore[no-untyped-def]
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

    spread = tl.sqrt(var + 1.6449340668482264)
    centre = mean + 0.5772156649015329
    upper = centre + 4.5 * spread
    lowest = tl.max(centre - 3.0 * spread, axis=1)
    highest = tl.max(upper, axis=1)
    narrowest = tl.min(tl.where(upper < lowest[:, None], infinity, spread), axis=1)
    steps = (highest - lowest) / (0.8 * narrowest)
    doublings = tl.minimum(tl.maximum(tl.ceil(tl.log2(steps / 12.0)), 0.0), 7.0)
    points = 13.0 * tl.exp2(doublings)
    width = (highest - lowest) / (points - 1.0)

    mass = tl.zeros((QUERIES, CLASSES), dtype=tl.float32)
    for k in range(0, tl.max(points).to(tl.int32)):
        t = (lowest + k * width)[:, None]
        F1, g1 = _component(t, finite_mean, var, 0.348047, -0.293368, 0.618579)
        F2, g2 = _component(t, finite_mean, var, 0.420890, 0.621709, 0.907310)
        F3, g3 = _component(t, finite_mean, var, 0.193067, 1.629429, 1.367907)
        F4, g4 = _component(t, finite_mean, var, 0.037996, 2.607113, 2.219624)
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
