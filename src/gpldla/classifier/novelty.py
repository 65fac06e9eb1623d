"""The probability that an example belongs to no known class, from how well it fits the one it fits best."""

from dataclasses import dataclass, field, replace

import numpy as np
import torch
from sklearn.linear_model import LogisticRegression
from torch import Tensor

from gpldla.heads import Head, Posterior
from gpldla.heads.base import KnownClasses, NoveltyScores

DEFAULT_DISTANCE = 1.0  # of known from unknown examples, in standard deviations, if either is missing
# Where all classes have single examples: the log odds of "none of these" where a row fits as left-out classes
# do on average, and how they fall per unit of fit. Chosen on 36 kinds of features, of which no one decides.
OFFSET, SLOPE = 0.27, 0.13


@dataclass(frozen=True)
class Novelty:
    """log odds of "none of these" = offset − slope · score, at a prevalence of one half.

    classes: what the score, `Posterior.class_fit`, compares a row with. None: the score is the cosine to the
    nearest class mean, as it is where base classes calibrate and in files of earlier versions
    """

    slope: float
    offset: float
    classes: KnownClasses | None = field(default=None, compare=False)

    def score(self, posterior: Posterior, rows: Tensor) -> Tensor:
        """Return the score of rows [q, ...], larger for those that look known: [q]."""
        if self.classes is None:
            return posterior.nearest_mean_cosine(rows)
        return posterior.class_fit(rows, self.classes)

    def probability(self, score: Tensor, prevalence: float = 0.5) -> Tensor:
        """Return p(none of these) [q] for scores [q]."""
        odds = np.log(prevalence) - np.log1p(-prevalence)
        return torch.sigmoid(self.offset - self.slope * score + odds)

    def to(self, device: str | torch.device) -> "Novelty":
        """Return the calibration on another device."""
        if self.classes is None:
            return self
        return replace(self, classes=KnownClasses(*(tensor.to(device) for tensor in self.classes)))


def fit_novelty(
    head: Head, support: Tensor, labels: Tensor, n_way: int, weights: Tensor | None = None
) -> Novelty:
    """Calibrate on a support set [n, d].

    Known examples are those left out one by one, unknown examples those whose class is left out. With single
    examples of all classes there are unknown ones only: they set the level, and `SLOPE` and `OFFSET` are
    given. Without a centre two classes have known ones only, see `calibrate`. If both are missing, or if
    there is only one class, every probability is the prevalence.
    """
    if len(torch.unique(labels)) < 2:
        return Novelty(0.0, 0.0)
    scores = head.novelty_scores(support, labels, n_way, weights)
    if len(scores.known) or not len(scores.unknown):
        found = calibrate(scores.known, scores.unknown, scores.known_weight, scores.unknown_weight)
    else:
        found = _from_unknown(scores)
    return replace(found, classes=scores.classes)


def _from_unknown(scores: NoveltyScores) -> Novelty:
    level = np.average(_array(scores.unknown), weights=_weights(scores.unknown, scores.unknown_weight))
    slope = SLOPE / scores.unit
    return Novelty(slope, OFFSET + slope * float(level))


def calibrate(
    known: Tensor, unknown: Tensor, known_weight: Tensor | None = None, unknown_weight: Tensor | None = None
) -> Novelty:
    """Fit slope and offset to the scores of known and of unknown examples, [k] and [u], with weights.

    Scores of a kind that is missing are assumed to be `DEFAULT_DISTANCE` standard deviations from the others.
    """
    scores = _array(torch.cat([known, unknown]))
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
    return np.ones(len(scores)) if weights is None else _array(weights)


def _array(tensor: Tensor) -> np.ndarray:
    return tensor.double().cpu().numpy()
