"""Calibration of probabilities: temperature scaling, reliability diagrams and calibration error."""

from dataclasses import dataclass

import numpy as np
import torch
from scipy.optimize import minimize_scalar
from torch import Tensor

from gpldla.utils.errors import UserError

BINS = 20
TEMPERATURES = (0.01, 1000.0)  # between which the best one is searched


def apply_temperature(log_prob: Tensor, temperature: float | Tensor) -> Tensor:
    """Flatten (T > 1) or sharpen (T < 1) log probabilities [..., C]; the ranking of classes is kept."""
    return (
        log_prob
        if not isinstance(temperature, Tensor) and temperature == 1
        else (log_prob / temperature).log_softmax(-1)
    )


def negative_log_likelihood(log_prob: Tensor, labels: Tensor) -> float:
    """Mean of −log p(label): log_prob [n, C], labels [n]."""
    return -log_prob.gather(-1, labels.unsqueeze(-1)).double().mean().item()


def fit_temperature(log_prob: Tensor, labels: Tensor) -> float:
    """Return the temperature that minimises the negative log-likelihood: log_prob [n, C], labels [n].

    The likelihood is concave in 1/T, so the bounded search finds the one optimum.
    """
    log_prob = _checked(log_prob).double()
    impossible = log_prob.gather(-1, labels.unsqueeze(-1)).isneginf().flatten()
    if impossible.any():
        raise UserError(
            f"Row {impossible.nonzero()[0].item()} of log_prob gives its label probability 0, which"
            " no temperature can correct; leave such rows out."
        )

    def loss(log_temperature: float) -> float:
        return negative_log_likelihood(apply_temperature(log_prob, float(np.exp(log_temperature))), labels)

    best = minimize_scalar(loss, bounds=np.log(TEMPERATURES), method="bounded", options={"xatol": 1e-4})
    return float(np.exp(best.x))


def _checked(log_prob: Tensor) -> Tensor:
    """Return predictions [n, C]; refuse them if there are none or if any is NaN."""
    if not len(log_prob):
        raise UserError("log_prob has no rows; give predictions of at least one example.")
    broken = log_prob.isnan().any(-1).nonzero().flatten()
    if len(broken):
        raise UserError(
            f"{len(broken)} of {len(log_prob)} rows of log_prob, first {broken[0].item()}, are NaN;"
            " leave these out."
        )
    return log_prob


@dataclass(frozen=True)
class Reliability:
    """Confidence against accuracy in bins of the top probability; arrays [bins], empty bins hold NaN."""

    edges: np.ndarray  # [bins + 1]
    counts: np.ndarray
    accuracy: np.ndarray
    confidence: np.ndarray

    @property
    def error(self) -> float:
        """Expected calibration error in percent: |accuracy − confidence|, weighted by the bins' counts."""
        gaps = np.abs(self.accuracy - self.confidence)
        return float(100 * np.nansum(gaps * self.counts) / self.counts.sum())


def reliability(
    log_prob: Tensor, labels: Tensor, *, bins: int = BINS, equal_mass: bool = False
) -> Reliability:
    """Bin predictions [n, C] by their top probability, in bins of equal width or of equal mass."""
    top, predicted = _checked(log_prob).exp().max(-1)
    confidence = top.double().clamp(0, 1).cpu().numpy()
    correct = (predicted == labels).double().cpu().numpy()
    edges = (
        np.quantile(confidence, np.linspace(0, 1, bins + 1)) if equal_mass else np.linspace(0, 1, bins + 1)
    )
    # Bins are (lower, upper] as in the literature.
    bin_index = np.clip(np.searchsorted(edges, confidence, side="left") - 1, 0, bins - 1)
    counts = np.bincount(bin_index, minlength=bins)
    with np.errstate(invalid="ignore"):
        return Reliability(
            edges,
            counts,
            np.bincount(bin_index, correct, minlength=bins) / counts,
            np.bincount(bin_index, confidence, minlength=bins) / counts,
        )


def accuracy_percent(log_prob: Tensor, labels: Tensor) -> Tensor:
    """Accuracy in percent over the queries: log_prob [..., q, C], labels [..., q] → [...]."""
    return 100 * (log_prob.argmax(-1) == labels).to(torch.float64).mean(-1)
