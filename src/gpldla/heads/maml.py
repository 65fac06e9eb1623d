"""MAML: a few gradient steps on the support set adapt the network to a task."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from types import MethodType
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad
from torch.nn.modules.batchnorm import _BatchNorm as BatchNorm

from gpldla.heads.base import Head, Posterior, check_episode, register_head, require_dim
from gpldla.utils.errors import UserError, require_count, require_positive
from gpldla.utils.modules import shared_copy

Weights = dict[str, Tensor]
NETWORK = "network."  # prefix of the names of the network's own parameters


@register_head("maml")
class MAML(Head):
    """Gradient descent on the support set, from initial weights that are learned over episodes.

    Finn, Abbeel and Levine, "Model-Agnostic Meta-Learning for Fast Adaptation of Deep Networks", 2017
    (arXiv 1703.03400). Network and last layer are adapted together; without a network, on plain features,
    only the last layer. BatchNorm always uses the statistics of its input, support or query.

    steps, step_size: of the inner gradient descent
    first_order: ignore second derivatives
    ways:        0: the last layer starts from zero, so any number of classes works, in any order. Else it
                 starts from learned rows, one per class as in the paper, for tasks of that many classes.
    """

    consumes = "backbone"

    def __init__(
        self,
        feature_dim: int | None = None,
        *,
        steps: int = 5,
        step_size: float = 0.01,
        first_order: bool = False,
        ways: int = 0,
    ) -> None:
        super().__init__()
        require_count(steps=steps)
        require_positive(step_size=step_size)
        if not hasattr(ways, "__index__") or ways < 0 or ways == 1:
            raise UserError(f"ways must be 0 or a whole number of at least 2, not {ways!r}.")
        self.steps, self.step_size, self.first_order, self.ways = steps, step_size, first_order, ways
        self.feature_dim = require_dim("maml", feature_dim)
        self.last_layer = nn.Linear(self.feature_dim, ways) if ways else None

    def adapt(
        self, support: Tensor, labels: Tensor, n_way: int, *, backbone: nn.Module | None = None
    ) -> "MAMLPosterior":
        """Take the inner steps on images [..., n, c, h, w] with a network, or on features [..., n, d]."""
        check_episode(support, labels, n_way)
        if self.ways and n_way != self.ways:
            raise UserError(
                f"This MAML has a last layer for {self.ways} classes; train one with head.ways = {n_way},"
                " or with head.ways = 0 for any number."
            )
        present = (labels.unsqueeze(-1) == torch.arange(n_way, device=labels.device)).any(-2)
        start, network = self._start(n_way, support, backbone), with_batch_statistics(backbone)

        def support_loss(weights: Weights, x: Tensor, y: Tensor, possible: Tensor) -> Tensor:
            scores = _scores(network, weights, x).masked_fill(~possible, -math.inf)
            return nn.functional.cross_entropy(scores, y)

        def descend(x: Tensor, y: Tensor, possible: Tensor) -> Weights:
            weights = start
            for _ in range(self.steps):
                with torch.set_grad_enabled(torch.is_grad_enabled() and not self.first_order):
                    slopes = grad(support_loss)(weights, x, y, possible)
                weights = {name: w - self.step_size * slopes[name] for name, w in weights.items()}
            return weights

        batch = labels.shape[:-1]
        tasks = [t.reshape(batch.numel(), *t.shape[len(batch) :]) for t in (support, labels.long(), present)]
        return MAMLPosterior(_over_tasks(descend, backbone, support)(*tasks), present, backbone)

    def _start(self, n_way: int, like: Tensor, backbone: nn.Module | None) -> Weights:
        network = {} if backbone is None else {NETWORK + n: p for n, p in backbone.named_parameters()}
        if self.last_layer is None:
            last = {"rows": like.new_zeros(n_way, self.feature_dim), "biases": like.new_zeros(n_way)}
        else:
            last = {"rows": self.last_layer.weight.to(like), "biases": self.last_layer.bias.to(like)}
        return network | last


def _scores(backbone: nn.Module | None, weights: Weights, x: Tensor) -> Tensor:
    """Return the scores of one task's examples, [n, ...] → [n, C]."""
    if backbone is not None:
        own = {n.removeprefix(NETWORK): w for n, w in weights.items() if n.startswith(NETWORK)}
        x = functional_call(backbone, own, (x,)).to(weights["rows"].dtype)
    return x @ weights["rows"].mT + weights["biases"]


def _over_tasks(
    function: Callable[..., Any], backbone: nn.Module | None, examples: Tensor
) -> Callable[..., Any]:
    """Map a function of one task over a batch; on a CPU whole networks run one by one, which is faster.

    Networks may draw random numbers in training, others for each task.
    """
    one_at_a_time = backbone is not None and examples.device.type == "cpu"
    return torch.vmap(function, chunk_size=1 if one_at_a_time else None, randomness="different")


def with_batch_statistics(backbone: nn.Module | None) -> nn.Module | None:
    """Return a network with the same weights whose BatchNorm uses the statistics of its input.

    It is a copy, because a functional call puts the adapted weights into the modules while it runs, and other
    threads may be using the network.
    """
    if backbone is None:
        return None
    network = shared_copy(backbone)
    for layer in network.modules():
        if isinstance(layer, BatchNorm):
            layer.forward = MethodType(_batch_norm_forward, layer)  # type: ignore[method-assign]
    return network


def _batch_norm_forward(layer: BatchNorm, x: Tensor) -> Tensor:
    """BatchNorm in plain operations: torch 2.13's own has a wrong second derivative under vmap."""
    var, mean = torch.var_mean(x, (0, *range(2, x.ndim)), correction=0, keepdim=True)
    x = (x - mean) * (var + layer.eps).rsqrt()
    if layer.affine:
        shape = (-1, *(1,) * (x.ndim - 2))
        x = x * layer.weight.view(shape) + layer.bias.view(shape)
    return x


@dataclass
class MAMLPosterior(Posterior):
    """The adapted weights of each task, [tasks, ...]; present [..., C]: whether a class has examples."""

    weights: Weights
    present: Tensor
    backbone: nn.Module | None

    def log_prob(self, query: Tensor) -> Tensor:
        """Return log p(y | x, S) of images [..., q, c, h, w] or features [..., q, d] as [..., q, C]."""
        batch = self.present.shape[:-1]
        tasks = query.reshape(batch.numel(), *query.shape[len(batch) :])
        network = with_batch_statistics(self.backbone)
        forward = _over_tasks(lambda w, x: _scores(network, w, x), network, query)
        scores: Tensor = forward(self.weights, tasks)
        scores = scores.view(*batch, *scores.shape[1:])
        return scores.masked_fill(~self.present.unsqueeze(-2), -math.inf).log_softmax(-1)
