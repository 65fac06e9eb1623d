"""X = m + √v·Z + G, a normal plus a standard Gumbel variable, by one polynomial for all m and v.

Write the distribution function of X as F(t) = exp(−exp(−h(t))). Without noise, v = 0, h is the line t − m;
with it h is a smooth curve that changes smoothly with v. So h is a polynomial in two variables:

    x, the place of t in an interval that follows from m and v, and
    τ, which follows from the interval's length alone: longest for v = ∞, shortest for v = 0,

and beyond the interval's end the tangent, which is exact for v = 0. `benchmarks/noisy_gumbel.py` fits the
coefficients: for any v, and t from the interval's start on, the error of P(X > t) is below
0.0025 (P(X > t) + 0.0003). Only differences between variables matter here, so the mean of G is left out.
"""

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

MEAN, VARIANCE = 0.5772156649015329, math.pi**2 / 6  # of the Gumbel distribution
# The interval: from BELOW standard deviations of X below its mean to ABOVE, and REACH, above it.
BELOW, ABOVE, REACH = 3.0, 4.5, 5.0
HALF = (BELOW + ABOVE) / 2  # of the interval, in units of 1/pace
FASTEST = 1 / (VARIANCE**0.5 + REACH / (2 * HALF))  # the pace for v = 0; for v = ∞ it is 0
LEAST_EXPONENT = -80.0  # e^ of less is nearly subnormal in float32, and slow
# Row k has the coefficients of x^k, in rising powers of τ, for x and τ from −1 to 1.
COEFFICIENTS = (
    (2.69846, 1.75807, 0.314359, -0.493828, -0.669169, 0.0113145, 0.534177, 0.0660989, -0.179034),
    (8.7913, 3.09918, -2.65899, -5.4257, -1.23123, 4.94123, 2.85344, -1.81007, -1.26375),
    (6.15548, -2.47343, -13.15, -5.59278, 18.6944, 12.1701, -14.1694, -6.15155, 4.47046),
    (0.58558, -11.185, -11.7527, 30.1009, 43.067, -32.7179, -50.7632, 12.8445, 19.959),
    (-3.09833, -5.05738, 17.508, 35.817, -29.7898, -59.9722, 20.7996, 29.3352, -5.35714),
    (-0.934151, 10.1524, 24.6167, -39.0556, -92.5691, 50.3556, 116.137, -21.1363, -47.876),
    (1.21267, 3.71304, -6.90431, -27.466, 9.21234, 48.5608, -1.46276, -24.8696, -2.10169),
    (0.382993, -4.3495, -12.6106, 20.2612, 52.3067, -28.9262, -71.8583, 12.8164, 32.1334),
)


class Constants(NamedTuple):
    """Constants as tensors of the type of the logits, which saves a conversion in every operation.

    reach, middle: what is added to the spread, and subtracted from the pace
    table [K, L]: the coefficients of x^k τ^l in −h, with x up to ±HALF and τ up to ±FASTEST/2
    columns: the same by powers of τ, L tensors [K, 1, 1]
    """

    variance: Tensor
    reach: Tensor
    minus_half: Tensor
    middle: Tensor
    table: Tensor
    columns: Sequence[Tensor]


class Shape(NamedTuple):
    """What X of mean m and variance v needs to have h evaluated, [C, Q] each.

    start, spread: of the interval, and the standard deviation of X
    pace: dx/dt; coefficients [K, C, Q]: those of x^k in −h
    """

    start: Tensor
    spread: Tensor
    pace: Tensor
    coefficients: Tensor

    def of_queries(self, some: Tensor) -> "Shape":
        """Return the part of the queries that a mask [Q] selects."""
        return Shape(*(tensor[..., some] for tensor in self))

    def minus_h(self, t: Tensor) -> tuple[Tensor, Tensor]:
        """Return −h and its derivative by x at t [T, Q]: [C, T, Q] each, both by Horner's scheme."""
        minus_half = constants(t.dtype, t.device).minus_half
        offset = torch.addcmul(minus_half, self.start, self.pace, value=-1)
        x = torch.addcmul(offset.unsqueeze(1), self.pace.unsqueeze(1), t)
        inside = x.clamp_max(HALF)
        *lower, second, derivative = self.coefficients.unsqueeze(2).unbind()  # [C, 1, Q] each
        value = torch.addcmul(second, derivative, inside)
        for coefficient in reversed(lower):
            derivative = torch.addcmul(value, derivative, inside)
            value = torch.addcmul(coefficient, value, inside)
        return torch.addcmul(value, derivative, x - inside).clamp_min(LEAST_EXPONENT), derivative


def shape(mean: Tensor, var: Tensor) -> Shape:
    """Return what follows from mean and variance of the normal variables, [C, Q] each."""
    known = constants(var.dtype, var.device)
    spread = (var + known.variance).sqrt()
    pace = (spread + known.reach).reciprocal()
    tau = pace - known.middle
    *lower, coefficients = known.columns
    for column in reversed(lower):
        coefficients = torch.addcmul(column, coefficients, tau)  # [K, C, Q]
    return Shape(torch.sub(mean, spread, alpha=BELOW), spread, pace, coefficients)


def constants(dtype: torch.dtype, device: torch.device) -> Constants:
    """Return the constants in this type, made once."""
    return (_make_constants if torch.compiler.is_compiling() else _cached_constants)(dtype, device)


def _make_constants(dtype: torch.dtype, device: torch.device) -> Constants:
    table = -torch.tensor(COEFFICIENTS, dtype=torch.float64, device=device)
    powers = [torch.arange(n, dtype=torch.float64, device=device) for n in table.shape]
    table = table * HALF ** -powers[0].unsqueeze(-1) * (2 / FASTEST) ** powers[1]
    table = table.to(dtype)
    numbers = torch.tensor((VARIANCE, REACH / (2 * HALF), -HALF, FASTEST / 2), dtype=dtype, device=device)
    variance, reach, minus_half, middle = numbers.unbind()
    return Constants(variance, reach, minus_half, middle, table, table[:, :, None, None].unbind(1))


@lru_cache(maxsize=16)
def _cached_constants(dtype: torch.dtype, device: torch.device) -> Constants:
    with torch.inference_mode(False):  # cached tensors must also work outside of inference mode
        return _make_constants(dtype, device)
