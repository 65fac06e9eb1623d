"""Fit the mixture of normals that approximates the Gumbel distribution in `gpldla.heads.gp.predictive`.

    python -m benchmarks.gumbel_mixture
    python -m benchmarks.gumbel_mixture --normals 6 --tail 1e-5    # for many classes

Prints the constants `_GUMBEL_MIXTURE` or `_GUMBEL_MIXTURE_MANY_CLASSES`, and beside them the errors of the
package's constants. The fit is minimax: it minimises the largest |S(z) − P(G > z)| / (P(G > z) + tail),
where S is the survival function of the mixture. The quotient is a relative error in the bulk, because the
integral multiplies the distribution functions of all classes, and an absolute error in the far tail, which
no mixture of normals can follow.
"""

import argparse

import numpy as np
from scipy.optimize import least_squares
from scipy.special import ndtr, softmax

from gpldla.heads.gp.predictive import _GUMBEL_MIXTURE, _GUMBEL_MIXTURE_MANY_CLASSES

POINTS_PER_UNIT = 50  # of the grid


def gumbel_survival(z: np.ndarray) -> np.ndarray:
    """P(G > z) of the standard Gumbel distribution."""
    survival: np.ndarray = -np.expm1(-np.exp(-z))
    return survival


def mixture_survival(z: np.ndarray, mixture: np.ndarray) -> np.ndarray:
    """P(X > z) [T] of a mixture of normals; `mixture` [K, 3] holds weight, mean, standard deviation."""
    weight, mean, deviation = mixture.T
    total: np.ndarray = ndtr((mean - z[:, None]) / deviation) @ weight
    return total


def grid(tail: float) -> np.ndarray:
    """Return the grid of the fit [T]: from P(G > z) = 1 − 2e-9 down to a two-hundredth of `tail`."""
    end = 5.4 - np.log(tail)
    return np.linspace(-3, end, round((end + 3) * POINTS_PER_UNIT) + 1)


def scaled_error(z: np.ndarray, mixture: np.ndarray, tail: float) -> np.ndarray:
    """Error of the survival function over (survival + tail), [T]."""
    survival = gumbel_survival(z)
    error: np.ndarray = (mixture_survival(z, mixture) - survival) / (survival + tail)
    return error


def largest_error(z: np.ndarray, mixture: np.ndarray, tail: float) -> float:
    """Largest absolute scaled error on the grid `z`, which the fit minimises."""
    return float(np.abs(scaled_error(z, mixture, tail)).max())


def unpack(parameters: np.ndarray) -> np.ndarray:
    """From free parameters [3K] (weight logits, means, log standard deviations) to a mixture [K, 3]."""
    logits, means, log_deviations = parameters.reshape(3, -1)
    return np.stack([softmax(logits), means, np.exp(log_deviations)], -1)


def fit_minimax(start: np.ndarray, tail: float, highest_power: int) -> tuple[np.ndarray, float]:
    """Minimise the largest scaled error from `start` [3K] on; return the mixture and its error.

    Least squares is repeated with larger weights where the error is large: it minimises the p-norm of the
    error for p = 2, 4, 8, ..., which tends to the largest error. Lawson's rule, which keeps the weights of
    one fit for the next, oscillates on this problem.
    """

    def emphasised_error(parameters: np.ndarray, power: int, scale: float) -> np.ndarray:
        powered: np.ndarray = (np.abs(scaled_error(z, unpack(parameters), tail)) / scale) ** (power / 2)
        return powered

    z, parameters, power = grid(tail), start, 2
    while power <= highest_power:
        scale = largest_error(z, unpack(parameters), tail)  # keeps the powers within floating-point range
        parameters = least_squares(emphasised_error, parameters, args=(power, scale)).x
        power *= 2
    return unpack(parameters), largest_error(z, unpack(parameters), tail)


def main() -> None:
    """Fit from a fixed start and from perturbed ones, and print the best."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--normals", type=int, default=4, help="number of normals in the mixture")
    parser.add_argument(
        "--tail",
        type=float,
        default=0.01,
        help="P(G > z) below which errors count as absolute",
    )
    parser.add_argument("--restarts", type=int, default=3, help="fits from a perturbed start")
    parser.add_argument("--highest-power", type=int, default=256, help="p of the last p-norm minimised")
    arguments = parser.parse_args()

    means = np.linspace(-0.8, 3 - 0.5 * np.log(arguments.tail), arguments.normals)
    first = np.concatenate([-((means - 0.3) ** 2) / 4, means, np.linspace(-0.6, 0.6, arguments.normals)])
    rng = np.random.default_rng(0)
    starts = [first] + [first + 0.2 * rng.standard_normal(first.shape) for _ in range(arguments.restarts)]
    fits = [fit_minimax(start, arguments.tail, arguments.highest_power) for start in starts]
    print("largest scaled error from each start:", ", ".join(f"{error:.5f}" for _, error in fits))

    mixture, _ = min(fits, key=lambda fit: fit[1])
    mixture = mixture[np.argsort(mixture[:, 1])]
    print("\n  weight      mean  standard deviation")
    for weight, mean, deviation in mixture:
        print(f"{weight:8.6f} {mean:9.6f}  {deviation:8.6f}")
    report("\nthis fit", mixture, arguments.tail)
    report("in the package", np.array(_GUMBEL_MIXTURE), arguments.tail)
    report("in the package, for many classes", np.array(_GUMBEL_MIXTURE_MANY_CLASSES), arguments.tail)


def report(name: str, mixture: np.ndarray, tail: float) -> None:
    """Print the errors of `mixture` on a finer and wider grid than that of the fit."""
    z = np.linspace(-12, 30, 42001)
    survival = gumbel_survival(z)
    error = np.abs(mixture_survival(z, mixture) - survival)
    bulk = survival > tail
    print(
        f"{name}: largest scaled error {largest_error(z, mixture, tail):.5f}; "
        f"relative {np.max(error[bulk] / survival[bulk]):.4f} where P(G > z) > {tail}, "
        f"absolute {error[~bulk].max():.1e} beyond, {error.max():.4f} anywhere"
    )


if __name__ == "__main__":
    main()
