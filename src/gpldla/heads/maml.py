"""MAML: a few gradient steps on the support set adapt the network to a task."""

from functools import partial

import torch
from torch import Tensor, nn
from torch.func import grad

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
from gpldla.utils.errors import UserError, require_count, require_positive


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
    ) -> AdaptedNetworkPosterior:
        """Take the inner steps on images [..., n, c, h, w] with a network, or on features [..., n, d]."""
        check_episode(support, labels, n_way)
        if self.ways and n_way != self.ways:
            raise UserError(
                f"This MAML has a last layer for {self.ways} classes; train one with head.ways = {n_way},"
                " or with head.ways = 0 for any number."
            )
        present = present_classes(labels, n_way)
        network = with_batch_statistics(backbone)
        start = self.adapted_weights(backbone) | self._last_layer(n_way, support)

        def descend(x: Tensor, y: Tensor, possible: Tensor) -> Weights:
            weights = start
            for _ in range(self.steps):
                with torch.set_grad_enabled(torch.is_grad_enabled() and not self.first_order):
                    slopes = grad(partial(support_loss, network))(weights, x, y, possible)
                weights = {name: w - self.step_size * slopes[name] for name, w in weights.items()}
            return weights

        weights = over_tasks(descend, backbone, support)(*as_tasks(support, labels, present))
        return AdaptedNetworkPosterior(weights, present, backbone)

    def adapted_weights(self, backbone: nn.Module | None) -> Weights:
        """Return the parameters of the network that the inner steps change."""
        return network_weights(backbone)

    def _last_layer(self, n_way: int, like: Tensor) -> Weights:
        if self.last_layer is None:
            return zero_rows(like, n_way, self.feature_dim)
        return {"rows": self.last_layer.weight.to(like), "biases": self.last_layer.bias.to(like)}
