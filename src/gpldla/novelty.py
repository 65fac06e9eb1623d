"""The probability that an example belongs to no known class, from its likeness to the nearest one."""

from dataclasses import dataclass

import numpy as np
import torch
from sklearn.linear_model import LogisticRegression
from torch import Tensor

from gpldla.heads.base import class_one_hot, unit_length
from gpldla.heads.gpldla_auto import GPLDLAAuto, TaskPosterior

MOST_FOLDS = 10  # groups of classes that are left out in turn
FEWEST_CLASSES = 3  # with which one can be left out
USUAL_DISTANCE = 1.0  # in standard deviations, of known from unknown examples; where one kind is missing


@dataclass(frozen=True)
class Novelty:
    """log odds of "none of these" = offset − slope · likeness, where both kinds are equally common."""

    slope: float
    offset: float

    def probability(self, posterior: TaskPosterior, query: Tensor, prevalence: float = 0.5) -> Tensor:
        """Return p(none of these), [q, d] → [q], where a share `prevalence` of examples is."""
        odds = np.log(prevalence) - np.log1p(-prevalence)
        return torch.sigmoid(self.offset - self.slope * likeness(posterior, query) + odds)


def likeness(posterior: TaskPosterior, query: Tensor) -> Tensor:
    """Return the cosine between each query and the nearest class mean, [..., q, d] → [..., q]."""
    diagonal = posterior.diagonal
    cosine = unit_length(posterior.space(query)) @ unit_length(diagonal.weight_mean).mT  # w* is along μ
    return cosine.masked_fill(diagonal.bias_mean.isinf().unsqueeze(-2), -torch.inf).amax(-1)


def fit_novelty(
    head: GPLDLAAuto, support: Tensor, labels: Tensor, n_way: int, weights: Tensor | None = None
) -> Novelty:
    """Calibrate on a support set [n, d]: examples left out alone are known, those of left-out classes not.

    Where classes have single examples, or where there are only two classes, one of the two kinds is missing;
    then it is taken to be `USUAL_DISTANCE` standard deviations from the other, and where both are, nothing
    can be told: every probability is the prevalence.
    """
    member = class_one_hot(labels, n_way, support.dtype)
    if weights is not None:
        member = member * weights.unsqueeze(-1)
    left_out = head.left_out(support, member)
    present = member.sum(-2) > 0
    known = left_out.cosine.masked_fill(~present, -torch.inf).amax(-1)[left_out.counted > 0]
    return calibrate(known, _unknown(head, support, labels, n_way, weights))


def calibrate(known: Tensor, unknown: Tensor) -> Novelty:
    """Fit slope and offset to the likeness of known and of unknown examples, [k] and [u]."""
    if not len(known) and not len(unknown):
        return Novelty(0.0, 0.0)
    if not len(known) or not len(unknown):
        there = known if len(known) else unknown
        spread = max(there.std(correction=0).item(), 1e-3)
        middle = there.mean().item() + (-0.5 if len(known) else 0.5) * USUAL_DISTANCE * spread
        return Novelty(USUAL_DISTANCE / spread, USUAL_DISTANCE / spread * middle)
    scores = torch.cat([known, unknown]).double().cpu().numpy()
    centre, spread = scores.mean(), max(scores.std(), 1e-3)
    is_unknown = np.r_[np.zeros(len(known)), np.ones(len(unknown))]
    model = LogisticRegression(class_weight="balanced").fit((scores[:, None] - centre) / spread, is_unknown)
    slope = max(0.0, -model.coef_.item() / spread)
    return Novelty(slope, model.intercept_.item() + slope * centre)


def _unknown(head: GPLDLAAuto, support: Tensor, labels: Tensor, n_way: int, weights: Tensor | None) -> Tensor:
    """Return the likeness of examples to the classes that remain when theirs is left out."""
    classes = labels.unique()
    if len(classes) < FEWEST_CLASSES:
        return support.new_empty(0)
    likenesses = []
    for fold in classes.tensor_split(min(MOST_FOLDS, len(classes))):
        out = torch.isin(labels, fold)
        posterior = head.adapt(
            support[~out], labels[~out], n_way, weights=None if weights is None else weights[~out]
        )
        likenesses.append(likeness(posterior, support[out]))
    return torch.cat(likenesses)
