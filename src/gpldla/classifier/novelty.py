"""The probability that an example belongs to no known class, from its cosine to the nearest class mean."""

from dataclasses import dataclass

import numpy as np
import torch
from sklearn.linear_model import LogisticRegression
from torch import Tensor

from gpldla.heads import Head

DEFAULT_DISTANCE = 1.0  # of known from unknown examples, in standard deviations, if one kind is missing


@dataclass(frozen=True)
class Novelty:
    """log odds of "none of these" = offset − slope · cosine, at a prevalence of one half."""

    slope: float
    offset: float

    def probability(self, cosine: Tensor, prevalence: float = 0.5) -> Tensor:
        """Return p(none of these) [q] for cosines to the nearest class mean."""
        odds = np.log(prevalence) - np.log1p(-prevalence)
        return torch.sigmoid(self.offset - self.slope * cosine + odds)


def fit_novelty(
    head: Head, support: Tensor, labels: Tensor, n_way: int, weights: Tensor | None = None
) -> Novelty:
    """Calibrate on a support set [n, d].

    Known examples are those left out one by one, unknown examples those whose class is left out. One of the
    two kinds is missing if all classes have single examples or if there are only two classes; its cosines are
    then assumed to be `DEFAULT_DISTANCE` standard deviations from those of the other. If both are missing, or
    if there is only one class, every probability is the prevalence.
    """
    if len(torch.unique(labels)) < 2:
        return Novelty(0.0, 0.0)
    return calibrate(*head.novelty_scores(support, labels, n_way, weights))


def calibrate(
    known: Tensor, unknown: Tensor, known_weight: Tensor | None = None, unknown_weight: Tensor | None = None
) -> Novelty:
    """Fit slope and offset to the cosines of known and of unknown examples, [k] and [u], with weights."""
    scores = torch.cat([known, unknown]).double().cpu().numpy()
    weights = np.r_[_weights(known, known_weight), _weights(unknown, unknown_weight)]
    is_unknown = np.r_[np.zeros(len(known)), np.ones(len(unknown))]
    if not len(scores):
        return Novelty(0.0, 0.0)
    centre = float(np.average(scores, weights=weights))
    spread = float(max(np.sqrt(np.average((scores - centre) ** 2, weights=weights)), 1e-3))
    if not len(known) or not len(unknown):
        slope = DEFAULT_DISTANCE / spread
        return Novelty(slope, slope * (centre + (-0.5 if len(known) else 0.5) * DEFAULT_DISTANCE * spread))
    half = weights.sum() / 2  # both kinds have the same total weight
    for kind in (0, 1):
        weights[is_unknown == kind] *= half / weights[is_unknown == kind].sum()
    model = LogisticRegression().fit((scores[:, None] - centre) / spread, is_unknown, weights)
    slope = max(0.0, -float(model.coef_.item()) / spread)
    return Novelty(slope, float(model.intercept_.item()) + slope * centre)


def _weights(scores: Tensor, weights: Tensor | None) -> np.ndarray:
    return np.ones(len(scores)) if weights is None else weights.double().cpu().numpy()
