"""Fit the polynomial of `gpldla.heads.gp.noisy_gumbel`.

    python -m benchmarks.noisy_gumbel
    python -m benchmarks.noisy_gumbel --degrees 8 9 --tail 1e-4

Prints the constant `COEFFICIENTS`, and the errors of the fit and of the package's constants. The fit is
minimax: it minimises the largest error of P(X > t), divided by P(X > t) + tail, over t and all variances. The
quotient is a relative error in the bulk, because the integral multiplies the distribution functions of all
classes, and an absolute error in the far tail; there LEAST_WEIGHT times the error of h is minimised
instead, so that logarithms stay meaningful, and END_WEIGHT times the error of its slope where the tangent
begins.
"""

import argparse

import numpy as np
from numpy.polynomial import chebyshev
from scipy.special import ndtr

from gpldla.heads.gp.noisy_gumbel import ABOVE, BELOW, COEFFICIENTS, MEAN, REACH, VARIANCE

NODES = 90  # of the grid, for each of τ and x
LEAST_WEIGHT = 0.02
END_WEIGHT = 0.05  # of the error of dh/dx at x = 1, for v = 0, where the tangent goes on for ever
END_POWER = 8  # of (1 + τ)/2, by which the weight falls as v grows
STEP = 1e-3  # of x, to find that slope
ROUNDS = 60  # of reweighted least squares


def survival(mean: float, var: float, t: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return P(X > t) and P(X ≤ t) [T] for m + √v·Z + G, on a grid of Z or of G, the narrower one."""
    if var < 9:
        z = np.linspace(-9, 9, 2401)
        weight = np.exp(-0.5 * z**2)
        e = np.exp(-np.clip(t[:, None] - mean - np.sqrt(var) * z, -60, None))
        above, below = -np.expm1(-e), np.exp(-e)
    else:
        g = np.linspace(-4, 36, 8001)
        weight = np.exp(-g - np.exp(-g))
        u = (t[:, None] - mean - g) / np.sqrt(var)
        above, below = ndtr(-u), ndtr(u)
    weight /= weight.sum()
    return above @ weight, below @ weight


def exact_h(mean: float, var: float, t: np.ndarray) -> np.ndarray:
    """Return h(t) = −log(−log F(t)) [T], from whichever of F and 1 − F is the smaller."""
    above, below = survival(mean, var, t)
    minus_log = np.where(
        above < 0.5, -np.log1p(-np.minimum(above, 0.999)), -np.log(np.maximum(below, 1e-300))
    )
    h: np.ndarray = -np.log(minus_log)
    return h


def grid() -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return τ [N], x [N] and h [N, N] on Chebyshev's nodes, and dh/dx at x = 1 [N]."""
    nodes = -np.cos(np.pi * (np.arange(NODES) + 0.5) / NODES)
    places = np.concatenate([nodes, [1 - STEP, 1 + STEP]])
    widest = (BELOW + ABOVE) * np.sqrt(VARIANCE) + REACH  # the interval's length for v = 0
    length = 2 * widest / (nodes + 1)
    spread = np.maximum((length - REACH) / (BELOW + ABOVE), np.sqrt(VARIANCE))
    rows = [
        exact_h(-MEAN + BELOW * s, s**2 - VARIANCE, (places + 1) / 2 * whole)
        for s, whole in zip(spread, length)
    ]
    h = np.array(rows)
    return nodes, nodes, h[:, :NODES], (h[:, -1] - h[:, -2]) / (2 * STEP)


def weights(h: np.ndarray, tail: float) -> np.ndarray:
    """Return by how much an error of h changes P(X > t), relative to P(X > t) + tail."""
    e = np.exp(-h)
    scaled: np.ndarray = e * np.exp(-e) / (-np.expm1(-e) + tail)
    weight: np.ndarray = np.maximum(scaled, LEAST_WEIGHT)
    return weight


def fit(degrees: tuple[int, int], tail: float) -> tuple[np.ndarray, float]:
    """Return the coefficients [K, L] of x^k τ^l and the largest weighted error, by Lawson's reweighting."""
    tau, x, h, end_slope = grid()
    of_x, of_tau = chebyshev.chebvander(x, degrees[0]), chebyshev.chebvander(tau, degrees[1])
    slopes = np.arange(degrees[0] + 1.0) ** 2  # dT_k/dx at x = 1
    basis = np.concatenate(
        [
            np.einsum("gl,xk->gxkl", of_tau, of_x).reshape(h.size, -1),
            np.einsum("gl,k->gkl", of_tau, slopes).reshape(len(tau), -1),
        ]
    )
    weight = np.concatenate([weights(h, tail).ravel(), END_WEIGHT * ((1 + tau) / 2) ** END_POWER])
    target = np.concatenate([h.ravel(), end_slope])
    emphasis, best, least = weight.copy(), np.zeros(basis.shape[1]), np.inf
    for _ in range(ROUNDS):
        found = np.linalg.lstsq(basis * emphasis[:, None], target * emphasis, rcond=None)[0]
        error = np.abs(basis @ found - target) * weight
        if error.max() < least:
            best, least = found, error.max()
        emphasis *= (0.2 + error / error.max()) ** 0.25
    return _powers(best.reshape(degrees[0] + 1, degrees[1] + 1)), float(least)


def _powers(coefficients: np.ndarray) -> np.ndarray:
    """Turn coefficients of Chebyshev's polynomials [K, L] into those of powers."""
    changes = [
        np.array([np.pad(chebyshev.cheb2poly(row), (0, n))[:n] for row in np.eye(n)])
        for n in coefficients.shape
    ]
    result: np.ndarray = changes[0].T @ coefficients @ changes[1]
    return result


def largest_error(coefficients: np.ndarray, tail: float) -> float:
    """Return the largest weighted error of coefficients [K, L] on the grid."""
    tau, x, h, _ = grid()
    found = np.polynomial.polynomial.polygrid2d(x, tau, coefficients).T
    return float((np.abs(found - h) * weights(h, tail)).max())


def main() -> None:
    """Fit, and print."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--degrees", type=int, nargs=2, default=(7, 8), help="of x and of τ")
    parser.add_argument("--tail", type=float, default=3e-4, help="P(X > t) below which errors are absolute")
    arguments = parser.parse_args()
    coefficients, error = fit(tuple(arguments.degrees), arguments.tail)
    for row in coefficients:
        print(f"    ({', '.join(f'{value:.6g}' for value in row)}),")
    print(f"this fit: {error:.5f}")
    print(f"in the package: {largest_error(np.array(COEFFICIENTS), arguments.tail):.5f}")


if __name__ == "__main__":
    main()
