"""ML-LSTM: a learned optimiser, whose cell state is the weights that it adapts to a task."""

import math
from functools import partial

import torch
from torch import Tensor, nn
from torch.func import grad_and_value

from gpldla.heads.base import Head, check_episode, register_head, require_dim
from gpldla.heads.common.adapted_network import (
    AdaptedNetworkPosterior,
    Weights,
    as_tasks,
    network_weights,
    over_tasks,
    present_classes,
    support_loss,
    with_batch_statistics,
    zero_rows,
)
from gpldla.utils.errors import require_count

SMALLEST = 10.0  # P of the paper: numbers below e^−P are not given by their logarithm


@register_head("ml-lstm")
class MetaLearnerLSTM(Head):
    """A learned LSTM that updates every weight of a network from its gradient, and learned initial weights.

    Ravi and Larochelle, "Optimization as a Model for Few-Shot Learning", 2017 (ICLR). All weights share one
    small network, so it does not depend on how many there are, nor on the number of classes. Gradients and
    losses are inputs without a derivative. BatchNorm always uses the statistics of its input.

    steps:  updates of a task, each with the whole support set
    hidden: size of the LSTM that reads gradients and losses
    """

    consumes = "backbone"

    def __init__(self, feature_dim: int | None = None, *, steps: int = 12, hidden: int = 20) -> None:
        super().__init__()
        require_count(steps=steps, hidden=hidden)
        self.feature_dim, self.steps = require_dim("ml-lstm", feature_dim), steps
        self.optimiser = LearnedOptimiser(hidden)

    def adapt(
        self, support: Tensor, labels: Tensor, n_way: int, *, backbone: nn.Module | None = None
    ) -> AdaptedNetworkPosterior:
        """Update the weights on images [..., n, c, h, w] with a network, or on features [..., n, d]."""
        check_episode(support, labels, n_way)
        present, network = present_classes(labels, n_way), with_batch_statistics(backbone)
        start = network_weights(backbone) | zero_rows(support, n_way, self.feature_dim)
        sizes = [weight.numel() for weight in start.values()]

        def unflatten(theta: Tensor) -> Weights:
            parts = theta.split(sizes)
            return {name: part.view_as(weight) for (name, weight), part in zip(start.items(), parts)}

        def descend(x: Tensor, y: Tensor, possible: Tensor) -> Weights:
            theta = torch.cat([weight.flatten() for weight in start.values()])
            state = self.optimiser.start(theta)
            for _ in range(self.steps):
                current = {name: weight.detach() for name, weight in unflatten(theta).items()}
                slopes, loss = grad_and_value(partial(support_loss, network))(current, x, y, possible)
                gradient = torch.cat([slopes[name].flatten() for name in start])
                theta, state = self.optimiser(theta, gradient.detach(), loss.detach(), state)
            return unflatten(theta)

        weights = over_tasks(descend, backbone, support)(*as_tasks(support, labels, present))
        return AdaptedNetworkPosterior(weights, present, backbone)


class LearnedOptimiser(nn.Module):
    """Two layers for every weight θ: an LSTM over its gradients and losses, then the two gates of the update.

    θ_t = σ(f)·θ_{t−1} − σ(i)·gradient, with f and i linear in the LSTM's output, in θ_{t−1} and
    in what they were before.
    """

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.of_inputs, self.of_hidden = nn.Linear(4, 4 * hidden), nn.Linear(hidden, 4 * hidden, bias=False)
        self.forget, self.step = nn.Linear(hidden + 2, 1), nn.Linear(hidden + 2, 1)
        for parameter in self.parameters():
            nn.init.uniform_(parameter, -0.01, 0.01)
        nn.init.uniform_(self.forget.bias, 4, 5)  # almost nothing is forgotten at first,
        nn.init.uniform_(self.step.bias, -5, -4)  # and the rate is about 0.01

    def start(self, theta: Tensor) -> tuple[Tensor, ...]:
        """Return the state before the first update of weights [P]: h, c [P, hidden], and f, i [P, 1]."""
        hidden, gate = self.of_hidden.in_features, theta.new_zeros(len(theta), 1)
        h = theta.new_zeros(len(theta), hidden)
        return h, h, gate, gate

    def forward(
        self, theta: Tensor, gradient: Tensor, loss: Tensor, state: tuple[Tensor, ...]
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Return the updated weights [P] and state, from the gradient [P] and the loss of the task."""
        h, c, f, i = state
        inputs = torch.cat(
            [preprocessed(gradient), preprocessed(loss.unsqueeze(0)).expand(len(theta), 2)], -1
        )
        gates = self.of_inputs(inputs.to(self.of_inputs.weight.dtype)) + self.of_hidden(h)
        entrance, kept, exit_, candidate = gates.chunk(4, -1)
        c = kept.sigmoid() * c + entrance.sigmoid() * candidate.tanh()
        h = exit_.sigmoid() * c.tanh()
        column = theta.unsqueeze(-1)
        f = self.forget(torch.cat([h, column, f], -1))
        i = self.step(torch.cat([h, column, i], -1))
        updated = f.sigmoid() * column - i.sigmoid() * gradient.unsqueeze(-1)
        return updated.squeeze(-1), (h, c, f, i)


def preprocessed(x: Tensor) -> Tensor:
    """Return numbers x as (log|x| / P, sign x), small ones as (−1, e^P·x): [...] → [..., 2]."""
    large = x.abs() > math.exp(-SMALLEST)
    log = x.abs().clamp_min(math.exp(-SMALLEST)).log() / SMALLEST
    magnitude = torch.where(large, log, -1.0)
    return torch.stack([magnitude, torch.where(large, x.sign(), math.exp(SMALLEST) * x)], -1)
