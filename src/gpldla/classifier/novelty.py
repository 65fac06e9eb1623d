"""The probability that an example belongs to no known class, from its likeness to the nearest one."""

from dataclasses import dataclass

import numpy as np
import torch
from sklearn.linear_model import LogisticRegression
from torch import Tensor

from gpldla.heads.base import class_one_hot, unit_length
from gpldla.heads.gpldla_auto import GPLDLAAuto, TaskPosterior, balanced_subset

MAX_FOLDS = 10  # groups of classes that are left out in turn
MIN_CLASSES = 3  # with which one can be left out
DEFAULT_DISTANCE = 1.0  # in standard deviations, of known from unknown examples; where one kind is missing


@dataclass(frozen=True)
class Novelty:
    """log odds of "none of these" = offset − slope · likeness, where both kinds are equally common."""

    slope: float
    offset: float

    def probability(self, posterior: TaskPosterior, query: Tensor, prevalence: float = 0.5) -> Tensor:
        """Return p(none of these), [q, d] → [q], where a share `prevalence` of examples is."""
        odds = np.log(prevalence) - np.log1p(-prevalence)
        return torch.sigmoid(self.offset - self.slope * nearest_mean_cosine(posterior, query) + odds)


def nearest_mean_cosine(posterior: TaskPosterior, query: Tensor) -> Tensor:
    """Return the cosine between each query and the nearest class mean, [..., q, d] → [..., q]."""
    cosine = unit_length(posterior.space(query)) @ unit_length(posterior.means).mT
    return cosine.masked_fill(posterior.diagonal.bias_mean.isinf().unsqueeze(-2), -torch.inf).amax(-1)


def fit_novelty(
    head: GPLDLAAuto, support: Tensor, labels: Tensor, n_way: int, weights: Tensor | None = None
) -> Novelty:
    """Calibrate on a support set [n, d]: examples left out alone are known, those of left-out classes not.

    Where classes have single examples, or where there are only two classes, one of the two kinds is missing;
    then it is taken to be `DEFAULT_DISTANCE` standard deviations from the other, and where both are, nothing
    can be told: every probability is the prevalence. So it is with a single class, whose mean is the centre.
    Of many examples, an even choice is looked at.
    """
    if len(labels.unique()) < 2:
        return Novelty(0.0, 0.0)
    kept = balanced_subset(class_one_hot(labels, n_way, support.dtype))
    if len(kept) < len(labels):
        support, labels = support[kept], labels[kept]
        weights = None if weights is None else weights[kept]
    member = class_one_hot(labels, n_way, support.dtype)
    if weights is not None:
        member = member * weights.unsqueeze(-1)
    left_out = head.left_out(support, member)
    counted, present = left_out.counted > 0, member.sum(-2) > 0
    known = left_out.cosine.masked_fill(~present, -torch.inf).amax(-1)
    unknown, order = _unknown(head, support, labels, n_way, weights)
    weight = member.sum(-1)
    return calibrate(known[counted], unknown, weight[counted], weight[order])


def calibrate(
    known: Tensor, unknown: Tensor, known_weight: Tensor | None = None, unknown_weight: Tensor | None = None
) -> Novelty:
    """Fit slope and offset to the likeness of known and of unknown examples, [k] and [u], with weights."""
    scores = torch.cat([known, unknown]).double().cpu().numpy()
    weights = np.r_[_weights(known, known_weight), _weights(unknown, unknown_weight)]
    is_unknown = np.r_[np.zeros(len(known)), np.ones(len(unknown))]
    if not len(scores):
        return Novelty(0.0, 0.0)
    centre = np.average(scores, weights=weights)
    spread = max(np.sqrt(np.average((scores - centre) ** 2, weights=weights)), 1e-3)
    if not len(known) or not len(unknown):
        slope = DEFAULT_DISTANCE / spread
        return Novelty(slope, slope * (centre + (-0.5 if len(known) else 0.5) * DEFAULT_DISTANCE * spread))
    half = weights.sum() / 2  # both kinds count alike
    for kind in (0, 1):
        weights[is_unknown == kind] *= half / weights[is_unknown == kind].sum()
    model = LogisticRegression().fit((scores[:, None] - centre) / spread, is_unknown, weights)
    slope = max(0.0, -model.coef_.item() / spread)
    return Novelty(slope, model.intercept_.item() + slope * centre)


def _weights(scores: Tensor, weights: Tensor | None) -> np.ndarray:
    return np.ones(len(scores)) if weights is None else weights.double().cpu().numpy()


def _unknown(
    head: GPLDLAAuto, support: Tensor, labels: Tensor, n_way: int, weights: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Return the likeness of examples to the classes that remain without theirs, and their places."""
    classes = labels.unique()
    likenesses, places = [support.new_empty(0)], [labels.new_empty(0)]
    folds = classes.tensor_split(min(MAX_FOLDS, len(classes))) if len(classes) >= MIN_CLASSES else ()
    for fold in folds:
        out = torch.isin(labels, fold)
        posterior = head.adapt(
            support[~out], labels[~out], n_way, weights=None if weights is None else weights[~out]
        )
        likenesses.append(nearest_mean_cosine(posterior, support[out]))
        places.append(torch.nonzero(out).flatten())
    return torch.cat(likenesses), torch.cat(places)
