"""The predictive integral p(y) = E[softmax_y(f)] for Gaussian logits f_j ~ N(mean_j, var_j), independent.

Every function takes `mean` and `var` [..., C] and returns log p [..., C]. A class that cannot occur has
mean −inf and log p = −inf. `benchmarks/predictive.py` measures the cost of each and its distance from the
exact integral; the table is in docs/predictive.md.
"""

import math
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from gpldla import kernels
from gpldla.heads.gp import noisy_gumbel

MANY_CLASSES = 65
MIN_POINTS = 13
MAX_STEP = 0.8  # between two points, in standard deviations of the narrowest class
MAX_DOUBLINGS = 7  # of the number of points
TAIL = 6.0 - noisy_gumbel.MEAN  # of the largest of many X_j: above it P is e^−6
LEAST_MASS = 1e-31  # of an integral; what is less may be the end of float32, and a bound replaces it
LOGITS_PER_CHUNK = 1 << 12  # on a CPU: the values at all points then fit in its caches
KERNEL_MAX_CLASSES = MANY_CLASSES - 1  # more do not fit in a GPU's registers


def monte_carlo(mean: Tensor, var: Tensor, n_samples: int, noise: Tensor | None = None) -> Tensor:
    """Average the softmax over `n_samples` random draws of the logits, new ones for every query.

    noise: standard normal draws that were made before, such as [n_samples, 1, C], the same for every query
    """
    if noise is None:
        noise = torch.randn(n_samples, *mean.shape, dtype=mean.dtype, device=mean.device)
    return log_mean_softmax(mean + _deviation(mean, var) * noise)


def quasi_monte_carlo(mean: Tensor, var: Tensor, n_points: int = 1024) -> Tensor:
    """Average the softmax over one fixed set of scrambled Sobol points, the same for every query."""
    points = normal_points(n_points, mean.shape[-1]).to(mean)
    points = points.view(n_points, *(1,) * (mean.ndim - 1), mean.shape[-1])
    return log_mean_softmax(mean + _deviation(mean, var) * points)


def _deviation(mean: Tensor, var: Tensor) -> Tensor:
    """Return √var; 1 for an impossible class, where the gradient of √0 would be infinite."""
    return var.masked_fill(mean.isneginf(), 1).sqrt()


def probit(mean: Tensor, var: Tensor) -> Tensor:
    """Shrink each logit according to its variance, MacKay's rule; cheap, but with errors of 0.3 and more.

    The rule is not invariant to a shift of all logits, so they are centred first.
    """
    impossible = mean.isneginf()
    centre = mean.masked_fill(impossible, 0).sum(-1, keepdim=True) / (~impossible).sum(-1, keepdim=True)
    logits = (_finite(mean) - centre) / (1 + math.pi / 8 * var).sqrt()
    return logits.log_softmax(-1).masked_fill(impossible, -math.inf)


def quadrature(mean: Tensor, var: Tensor, n_points: int | None = None) -> Tensor:
    """Integrate in one dimension for any number of classes: deterministic, error at most 0.002.

    softmax_y(f) is the probability that f_y + G_y is the largest of all f_j + G_j with independent
    Gumbel noise G. So p(y) = P(X_y is the largest of X_j = f_j + G_j), and as the X_j are independent,

        p(y) = ∫ g_y(t) Π_{j≠y} F_j(t) dt,    g_j and F_j the density and distribution function of X_j.

    With F_j = exp(−e_j), e_j = exp(−h_j) and h_j a polynomial (`noisy_gumbel.py`), that is the integral
    of h_y'(t) e_y(t) exp(−Σ_j e_j(t)). The integrand is smooth and vanishes at both ends, where the trapezoid
    rule converges exponentially; constant factors cancel when p is normalised.

    n_points: None: as many per query as its narrowest class needs, 13 if the variances are similar. A fixed
    number makes the shapes independent of the data, for compiled graphs.
    """
    if n_points is None and _use_kernel(mean, var):
        from gpldla.kernels.quadrature import Rule, integrate

        table = noisy_gumbel.constants(mean.dtype, mean.device).table
        log_p = kernels.try_or_fall_back(lambda: integrate(mean, var, table, Rule(**_rule())))
        if log_p is not None:
            return log_p
    if not torch.is_grad_enabled() and mean.device.type == "cpu" and mean.numel() > LOGITS_PER_CHUNK:
        C = mean.shape[-1]
        chunks = (t.reshape(-1, C).split(max(1, LOGITS_PER_CHUNK // C)) for t in (mean, var))
        return torch.cat([quadrature(m, v, n_points) for m, v in zip(*chunks)]).view(mean.shape)
    C = mean.shape[-1]
    log_p = _integral(mean.reshape(-1, C).T.contiguous(), var.reshape(-1, C).T.contiguous(), n_points)
    return log_p.T.reshape(mean.shape)


def _integral(mean: Tensor, var: Tensor, n_points: int | None) -> Tensor:
    """Return `quadrature` of means and variances [C, Q]; loops along the last axis, the queries, are fast."""
    shape = noisy_gumbel.shape(_finite(mean), var)  # of X_j
    start, spread = shape.start.detach(), shape.spread.detach()
    upper = torch.add(start, spread, alpha=2 * noisy_gumbel.HALF)
    lowest, highest = start.amax(0), upper.amax(0)  # the largest X_j is rarely below or above,
    if _are_many(mean.shape[0]):  # except for many: then its tail is that of one Gumbel variable
        at_most = highest + math.log(mean.shape[0])
        highest = torch.minimum((mean.detach() + var.detach() / 2).logsumexp(0) + TAIL, at_most).maximum(
            highest
        )
    if n_points is not None:
        return _trapezoid(mean, var, shape, lowest, highest, n_points)

    # No step should exceed MAX_STEP of the narrowest spread among the classes that reach into the interval.
    width, fewest_steps = highest - lowest, MAX_STEP * (MIN_POINTS - 1)
    compiling = torch.compiler.is_compiling()
    if not compiling and (not mean.numel() or (width / spread.amin(0)).max().item() <= fewest_steps):
        return _trapezoid(mean, var, shape, lowest, highest, MIN_POINTS)  # the usual case: enough for all
    narrowest = spread.masked_fill(upper < lowest, math.inf).amin(0)
    doublings = (width / narrowest / fewest_steps).log2().ceil().clamp(0, MAX_DOUBLINGS).nan_to_num(0)
    if compiling:  # a graph cannot treat queries differently
        return _trapezoid(mean, var, shape, lowest, highest, MIN_POINTS * 2**doublings)
    log_p = torch.empty_like(mean)
    for doubling in doublings.unique():
        some = doublings == doubling
        points = MIN_POINTS * 2 ** int(doubling)
        log_p[:, some] = _trapezoid(
            mean[:, some], var[:, some], shape.of_queries(some), lowest[some], highest[some], points
        )
    return log_p


def _rule() -> dict[str, Any]:
    """Return the constants that the kernel shares with the plain operations."""
    return {
        "variance": noisy_gumbel.VARIANCE,
        "below": noisy_gumbel.BELOW,
        "half": noisy_gumbel.HALF,
        "reach": noisy_gumbel.REACH / (2 * noisy_gumbel.HALF),
        "middle": noisy_gumbel.FASTEST / 2,
        "points": MIN_POINTS,
        "step": MAX_STEP,
        "doublings": MAX_DOUBLINGS,
    }


def _use_kernel(mean: Tensor, var: Tensor) -> bool:
    """Return whether the kernel can be used: on a GPU with Triton, in float32, without a gradient."""
    wants_gradient = torch.is_grad_enabled() and (mean.requires_grad or var.requires_grad)
    return (
        kernels.usable_for(mean)
        and mean.dtype == torch.float32
        and mean.numel() > 0
        and mean.shape[-1] <= KERNEL_MAX_CLASSES
        and not wants_gradient
    )


def _trapezoid(
    mean: Tensor,
    var: Tensor,
    shape: noisy_gumbel.Shape,
    lowest: Tensor,
    highest: Tensor,
    n_points: int | Tensor,
) -> Tensor:
    """Evaluate the integral of `quadrature` on `n_points` equal steps from `lowest` to `highest` [Q]: [C, Q].

    n_points: an int, or one for each query [Q], all of which then cost as much as the largest.
    """
    if isinstance(n_points, int):
        steps = _steps(n_points, mean.dtype, mean.device)
    else:
        indices = torch.arange(n_points.max().int().item(), device=mean.device).unsqueeze(-1)
        steps = indices / (n_points - 1)  # [T, Q]
    t = torch.lerp(lowest, highest, steps)  # [T, Q]
    minus_h, minus_slope = shape.minus_h(t)  # [C, T, Q]
    e = minus_h.exp()
    all_below_t = (-e.sum(0)).exp()  # Π_j F_j(t), [T, Q]
    if not isinstance(n_points, int):
        all_below_t = all_below_t.masked_fill(steps > 1, 0)
    mass = -(e * minus_slope * all_below_t).sum(1) * shape.pace  # [C, Q]
    log_p = torch.threshold(mass, LEAST_MASS, torch.finfo(mean.dtype).tiny).log().log_softmax(0)
    log_p = torch.maximum(log_p, _jensen_bound(mean, var)).masked_fill(mean == -math.inf, -math.inf)
    return log_p.log_softmax(0)  # the bound may have raised the sum above 1


def _steps(n_points: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return `n_points` equal steps from 0 to 1, [T, 1]."""
    return (_make_steps if torch.compiler.is_compiling() else _cached_steps)(n_points, dtype, device)


def _make_steps(n_points: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    return torch.linspace(0, 1, n_points, dtype=dtype, device=device).unsqueeze(-1)


@lru_cache(maxsize=16)
def _cached_steps(n_points: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    with torch.inference_mode(False):  # cached tensors must also work outside of inference mode
        return _make_steps(n_points, dtype, device)


def _are_many(classes: int) -> bool:
    """Return whether there are many classes; False in a compiled graph for any number of classes."""
    return isinstance(classes, int) and classes >= MANY_CLASSES


def _jensen_bound(mean: Tensor, var: Tensor) -> Tensor:
    """Return a lower bound of log E[softmax_y(f)] [C, Q], exact for var = 0: it corrects the far tail.

    E[e^{f_y} / Σ_j e^{f_j}] = e^{m_y + v_y/2} E'[1 / Σ_j e^{f_j}], where f_y has mean m_y + v_y under E';
    then Jensen's inequality twice, E'[1/Z] ≥ 1/E'[Z]. With L_y = log softmax_y(m + v/2) that is
    1 / (e^{−L_y} + e^{v_y}).
    """
    return -torch.logaddexp(-torch.add(mean, var, alpha=0.5).log_softmax(0), var)


def independent_variances(mean: Tensor, covariance: Tensor) -> Tensor:
    """Return variances of independent logits that approximate coupled ones, [..., C, C] → [..., C].

    The softmax depends on differences of logits only, so the variances s are the least-squares solution of
    s_a + s_b = Var(f_a − f_b) over all pairs: exact for two classes, for three (where no s is negative), and
    wherever the coupling is common to all classes. A class that cannot occur (mean −inf) has variance 0.
    """
    possible = ~mean.isinf()
    pairs = (possible.unsqueeze(-1) & possible.unsqueeze(-2)).to(covariance.dtype)
    var = covariance.diagonal(dim1=-2, dim2=-1)
    difference_var = (var.unsqueeze(-1) + var.unsqueeze(-2) - 2 * covariance) * pairs  # Var(f_a − f_b)
    count = possible.sum(-1, keepdim=True)
    row = difference_var.sum(-1)
    total = row.sum(-1, keepdim=True) / (2 * (count - 1).clamp_min(1))  # Σ s
    solution = (row - total) / (count - 2).clamp_min(1)
    return solution.where(count > 2, row / 2).clamp_min(0) * possible


def log_mean_softmax(logits: Tensor) -> Tensor:
    """Log of the softmax averaged over the first axis, [M, ..., C] → [..., C]."""
    log_p = _finite(logits).log_softmax(-1).logsumexp(0) - math.log(logits.shape[0])
    return log_p.masked_fill(logits[0].isneginf(), -math.inf)


def _finite(logits: Tensor) -> Tensor:
    """Return logits with a very low finite value for −inf: its gradient is 0, that of −inf would be NaN."""
    return logits.clamp_min(max(-1e30, torch.finfo(logits.dtype).min / 4))


@lru_cache(maxsize=16)
def normal_points(n_points: int, dimensions: int) -> Tensor:
    """Standard normal quasi-random points, float64 [n_points, dimensions]."""
    uniform = torch.quasirandom.SobolEngine(dimensions, scramble=True, seed=0).draw(
        n_points, dtype=torch.float64
    )
    points: Tensor = torch.special.ndtri(uniform.clamp(1e-9, 1 - 1e-9))
    return points
