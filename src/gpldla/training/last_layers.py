"""Last layers of the base stage: what tells the base classes apart while the network learns its features."""

import math
from abc import abstractmethod

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gpldla.heads.base import unit_length
from gpldla.heads.common.cosine_layer import widened_cosine


class LastLayer(nn.Module):
    """From features [n, feature_dim] to scores of the base classes [n, classes].

    scale:  multiplies the scores
    margin: a number that the loss takes off the true class; what it is taken off depends on the layer
    """

    scale: float = 1.0

    def __init__(self, feature_dim: int, classes: int, margin: float) -> None:
        super().__init__()
        self.margin = margin
        self.add_parameters(feature_dim, classes)

    def add_parameters(self, feature_dim: int, classes: int) -> None:
        """Make one row per class; a subclass may want more, or other names."""
        self.weight = _rows(feature_dim, classes)

    @abstractmethod
    def forward(self, features: Tensor) -> Tensor:
        """[n, feature_dim] → [n, classes]."""

    def loss(self, scores: Tensor, labels: Tensor) -> Tensor:
        """Return the mean cross-entropy of scores, less the margin at the true classes [n]."""
        of_true = F.one_hot(labels, scores.shape[-1])
        return F.cross_entropy(scores - self.scale * self.margin * of_true, labels)


def _rows(feature_dim: int, classes: int) -> nn.Parameter:
    return nn.Parameter(nn.Linear(feature_dim, classes, bias=False).weight.detach())


class Linear(LastLayer):
    """w_j·φ + b_j."""

    def add_parameters(self, feature_dim: int, classes: int) -> None:
        """Make rows and biases as torch does."""
        self.weight, bound = _rows(feature_dim, classes), 1 / math.sqrt(feature_dim)
        self.bias = nn.Parameter(torch.empty(classes).uniform_(-bound, bound))

    def forward(self, features: Tensor) -> Tensor:
        """[n, feature_dim] → [n, classes]."""
        return F.linear(features, self.weight, self.bias)


class Cosine(LastLayer):
    """scale · g_j · cos(v_j, φ), with a norm per class, as Baseline++ has it."""

    def add_parameters(self, feature_dim: int, classes: int) -> None:
        """Make directions and norms."""
        self.scale = 2.0 if classes <= 200 else 10.0  # as in arXiv 1904.04232
        self.directions = _rows(feature_dim, classes)
        self.norms = nn.Parameter(torch.linalg.vector_norm(self.directions.detach(), dim=-1))

    def forward(self, features: Tensor) -> Tensor:
        """[n, feature_dim] → [n, classes]."""
        cosine = unit_length(features) @ unit_length(self.directions).mT.to(features.dtype)
        return self.scale * self.norms * cosine


class NegSoftmax(LastLayer):
    """5 · w_j·φ, the softmax classifier of arXiv 2003.12060."""

    scale = 5.0

    def forward(self, features: Tensor) -> Tensor:
        """[n, feature_dim] → [n, classes]."""
        return self.scale * F.linear(features, self.weight)


class NegCosine(LastLayer):
    """30 · cos(v_j, φ), the cosine classifier of arXiv 2003.12060."""

    scale = 30.0

    def forward(self, features: Tensor) -> Tensor:
        """[n, feature_dim] → [n, classes]."""
        return self.scale * unit_length(features) @ unit_length(self.weight).mT.to(features.dtype)


class ArcMax(NegCosine):
    """20 · cos θ_j, θ_j the angle between v_j and φ; the margin widens the angle of the true class."""

    scale = 20.0

    def loss(self, scores: Tensor, labels: Tensor) -> Tensor:
        """Return the mean cross-entropy with cos(θ + margin) of the true classes [n] where cos θ > 0."""
        of_true = F.one_hot(labels, scores.shape[-1]).bool()
        widened = self.scale * widened_cosine(scores / self.scale, self.margin)
        return F.cross_entropy(torch.where(of_true, widened, scores), labels)


LAYERS: dict[str, type[LastLayer]] = {
    "linear": Linear,
    "cosine": Cosine,
    "neg-softmax": NegSoftmax,
    "neg-cosine": NegCosine,
    "arcmax": ArcMax,
}
