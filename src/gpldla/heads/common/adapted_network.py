"""A network and a last layer whose weights are adapted to each task, as the methods around MAML do."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from types import MethodType
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.modules.batchnorm import _BatchNorm as BatchNorm

from gpldla.heads.base import Posterior
from gpldla.utils.modules import shared_copy

Weights = dict[str, Tensor]
NETWORK = "network."  # prefix of the names of the network's own parameters


def network_weights(backbone: nn.Module | None, *, without_norms: bool = False) -> Weights:
    """Return a network's parameters by the names that `scores` knows, perhaps without those of BatchNorm."""
    if backbone is None:
        return {}
    left_out = [n for n, m in backbone.named_modules() if without_norms and isinstance(m, BatchNorm)]
    return {
        NETWORK + name: parameter
        for name, parameter in backbone.named_parameters()
        if name.rpartition(".")[0] not in left_out
    }


def zero_rows(like: Tensor, n_way: int, feature_dim: int) -> Weights:
    """Return a last layer of zeros, which makes classes exchangeable and allows any number of them."""
    return {"rows": like.new_zeros(n_way, feature_dim), "biases": like.new_zeros(n_way)}


def adapted_features(backbone: nn.Module | None, weights: Weights, x: Tensor) -> Tensor:
    """Return the features of one task's examples [n, d]; without a network they are what is given."""
    if backbone is None:
        return x
    own = {n.removeprefix(NETWORK): w for n, w in weights.items() if n.startswith(NETWORK)}
    features: Tensor = functional_call(backbone, own, (x,))
    return features.to(weights["rows"].dtype)


def scores(backbone: nn.Module | None, weights: Weights, x: Tensor) -> Tensor:
    """Return the scores of one task's examples, [n, ...] → [n, C]."""
    return adapted_features(backbone, weights, x) @ weights["rows"].mT + weights["biases"]


def support_loss(
    backbone: nn.Module | None, weights: Weights, x: Tensor, y: Tensor, possible: Tensor
) -> Tensor:
    """Return the mean cross-entropy of one task's examples; possible [C]: the classes that have any."""
    return nn.functional.cross_entropy(scores(backbone, weights, x).masked_fill(~possible, -math.inf), y)


def present_classes(labels: Tensor, n_way: int) -> Tensor:
    """Return which classes have examples, [..., n] → [..., C]."""
    return (labels.unsqueeze(-1) == torch.arange(n_way, device=labels.device)).any(-2)


def over_tasks(
    function: Callable[..., Any], backbone: nn.Module | None, examples: Tensor
) -> Callable[..., Any]:
    """Map a function of one task over a batch; on a CPU whole networks run one by one, which is faster.

    Networks may draw random numbers in training, others for each task.
    """
    one_at_a_time = backbone is not None and examples.device.type == "cpu"
    return torch.vmap(function, chunk_size=1 if one_at_a_time else None, randomness="different")


def as_tasks(support: Tensor, labels: Tensor, present: Tensor) -> list[Tensor]:
    """Return the arguments of a function over tasks: all leading axes of the labels become one."""
    batch = labels.shape[:-1]
    return [t.reshape(batch.numel(), *t.shape[len(batch) :]) for t in (support, labels.long(), present)]


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
class AdaptedNetworkPosterior(Posterior):
    """The adapted weights of each task, [tasks, ...]; present [..., C]: whether a class has examples."""

    weights: Weights
    present: Tensor
    backbone: nn.Module | None

    def log_prob(self, query: Tensor) -> Tensor:
        """Return log p(y | x, S) of images [..., q, c, h, w] or features [..., q, d] as [..., q, C]."""
        batch = self.present.shape[:-1]
        tasks = query.reshape(batch.numel(), *query.shape[len(batch) :])
        network = with_batch_statistics(self.backbone)
        forward = over_tasks(lambda w, x: scores(network, w, x), network, query)
        of_tasks: Tensor = forward(self.weights, tasks)
        of_tasks = of_tasks.view(*batch, *of_tasks.shape[1:])
        return of_tasks.masked_fill(~self.present.unsqueeze(-2), -math.inf).log_softmax(-1)
