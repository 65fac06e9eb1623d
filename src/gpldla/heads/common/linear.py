"""A linear classifier, the posterior of several methods."""

import math
from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from gpldla.heads.base import Posterior


@dataclass
class LinearPosterior(Posterior):
    """Softmax of φ(x)·w_j + b_j, with weights [..., C, d] and biases [..., C] (or broadcast to it).

    present [..., C]: whether each class has examples; a class without has probability 0
    transform: maps query features to φ
    """

    weights: Tensor
    biases: Tensor
    present: Tensor
    transform: Callable[[Tensor], Tensor]

    def scores(self, query: Tensor) -> Tensor:
        """Return φ(x)·w_j + b_j, [..., q, d] → [..., q, C]."""
        return self.transform(query) @ self.weights.mT + self.biases.unsqueeze(-2)

    def log_prob(self, query: Tensor) -> Tensor:
        """Return log p(y | x, S), [..., q, d] → [..., q, C]."""
        return self.scores(query).masked_fill(~self.present.unsqueeze(-2), -math.inf).log_softmax(-1)


def identity_transform(features: Tensor) -> Tensor:
    """Return the features unchanged."""
    return features
