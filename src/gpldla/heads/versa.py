"""VERSA: a network that is trained over episodes writes the posterior of a class's linear weights."""

import math
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor, nn

from gpldla.heads.base import Head, Posterior, check_episode, class_one_hot, register_head, require_dim
from gpldla.heads.gp import predictive
from gpldla.utils.errors import UserError, require_count

LOG_VARIANCE = (-10.0, 10.0)  # beyond these, exp would under- or overflow in training


@register_head("versa")
class Versa(Head):
    """Logits f_j(x) = w_j·φ(x) + b_j, with Gaussian w_j and b_j that four perceptrons read off a class mean.

    Gordon, Bronskill, Bauer, Nowozin and Turner, "Meta-Learning Probabilistic Inference for Prediction", 2019
    (arXiv 1805.09921). All classes share the perceptrons, so a class does not depend on the others.

    dimension: to which features are mapped linearly first, the width of the perceptrons; 0: as they are
    samples:   of the logits, in training; evaluation integrates over them
    """

    def __init__(self, feature_dim: int | None = None, *, dimension: int = 256, samples: int = 10) -> None:
        super().__init__()
        d = require_dim("versa", feature_dim)
        if not hasattr(dimension, "__index__") or dimension < 0:
            raise UserError(f"dimension must be 0 or a whole number of features, not {dimension!r}.")
        require_count(samples=samples)
        self.samples = samples
        self.project = nn.Linear(d, dimension) if dimension else nn.Identity()
        width = dimension or d
        self.weight_mean, self.weight_log_var = _perceptron(width, width), _perceptron(width, width)
        self.bias_mean, self.bias_log_var = _perceptron(width, 1), _perceptron(width, 1)

    def adapt(
        self, support: Tensor, labels: Tensor, n_way: int, *, backbone: nn.Module | None = None
    ) -> "VersaPosterior":
        """Return the posterior of the weights, from features [..., n, d] with labels [..., n]."""
        check_episode(support, labels, n_way)
        phi = self.project(support)
        member = class_one_hot(labels, n_way, phi.dtype)
        counts = member.sum(-2)
        means = member.mT @ phi / counts.clamp_min(1).unsqueeze(-1)  # ν, [..., C, width]
        return VersaPosterior(
            project=self.project,
            weight_mean=self.weight_mean(means),
            weight_var=self.weight_log_var(means).clamp(*LOG_VARIANCE).exp(),
            bias_mean=self.bias_mean(means).squeeze(-1),
            bias_var=self.bias_log_var(means).clamp(*LOG_VARIANCE).exp().squeeze(-1),
            present=counts > 0,
            samples=self.samples if self.training else 0,
        )

    def capturable(self) -> bool:
        """Return True: the loss is made of fixed shapes."""
        return True


def _perceptron(width: int, outputs: int) -> nn.Sequential:
    """Return two hidden layers with ELU and a linear end."""
    layers = [nn.Linear(width, width), nn.Linear(width, width), nn.Linear(width, outputs)]
    for layer in layers:
        nn.init.xavier_normal_(layer.weight)
        nn.init.normal_(layer.bias, std=1e-3)
    return nn.Sequential(layers[0], nn.ELU(), layers[1], nn.ELU(), layers[2])


@dataclass
class VersaPosterior(Posterior):
    """Independent Gaussian weights [..., C, width] and biases [..., C] of each class.

    present [..., C]: whether each class has examples; a class without has probability 0
    samples: of the logits for a prediction; 0: the integral over them
    """

    has_logits: ClassVar[bool] = True

    project: nn.Module
    weight_mean: Tensor
    weight_var: Tensor
    bias_mean: Tensor
    bias_var: Tensor
    present: Tensor
    samples: int

    def logits(self, query: Tensor) -> tuple[Tensor, Tensor]:
        """Return mean and variance of the logits, [..., q, d] → twice [..., q, C]."""
        phi = self.project(query)
        mean = phi @ self.weight_mean.mT + self.bias_mean.unsqueeze(-2)
        var = phi.square() @ self.weight_var.mT + self.bias_var.unsqueeze(-2)
        return mean.masked_fill(~self.present.unsqueeze(-2), -math.inf), var

    def log_prob(self, query: Tensor) -> Tensor:
        """Return the log of the mean probability over the logits, [..., q, d] → [..., q, C]."""
        mean, var = self.logits(query)
        if self.samples:
            return predictive.monte_carlo(mean, var, self.samples)
        return predictive.quadrature(mean, var)
