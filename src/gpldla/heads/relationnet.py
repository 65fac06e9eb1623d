"""Relation networks: a small network learns to compare a query with a class."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from gpldla.heads.base import Head, Posterior, check_episode, class_one_hot, register_head, require_dim

FILTERS, HIDDEN = 64, 8
VALUES_PER_CHUNK = 1 << 26  # of pairs of maps, in evaluation: bounds the memory
MIN_MAP_SIDE = 10  # smaller maps are padded, so that something remains of them after two blocks


@register_head("relationnet")
class RelationNet(Head):
    """A relation score in (0, 1) of each query and class, from both feature maps.

    Sung et al., "Learning to Compare: Relation Network for Few-Shot Learning", 2018 (arXiv 1711.06025). The
    maps of a class are summed, concatenated with the query's and passed to two convolution blocks and two
    linear layers. Trained by the squared error to 1 for the right class and 0 for the others. As
    probabilities, the scores are divided by their sum.
    """

    consumes = "maps"

    def __init__(self, feature_dim: int | tuple[int, int, int] | None = None) -> None:
        super().__init__()
        shape = (feature_dim, 1, 1) if isinstance(feature_dim, int) else feature_dim
        channels, height, width = require_dim("relationnet", shape)
        blocks: list[nn.Module] = []
        inputs = 2 * channels
        padding = 1 if min(height, width) < MIN_MAP_SIDE else 0
        for _ in range(2):
            blocks += [nn.Conv2d(inputs, FILTERS, 3, padding=padding), nn.BatchNorm2d(FILTERS), nn.ReLU()]
            height, width = height + 2 * padding - 2, width + 2 * padding - 2
            if min(height, width) >= 2:
                blocks.append(nn.MaxPool2d(2))
                height, width = height // 2, width // 2
            inputs = FILTERS
        self.relation = nn.Sequential(
            *blocks,
            nn.Flatten(),
            nn.Linear(FILTERS * height * width, HIDDEN),
            nn.ReLU(),
            nn.Linear(HIDDEN, 1),
        )

    def adapt(
        self, support: Tensor, labels: Tensor, n_way: int, *, backbone: nn.Module | None = None
    ) -> "RelationNetPosterior":
        """Sum the maps [..., n, c, h, w] (or features [..., n, d]) of each class."""
        check_episode(support, labels, n_way)
        n_axes = labels.ndim
        member = class_one_hot(labels, n_way, support.dtype)  # [..., n, C]
        sums = (member.mT @ support.flatten(n_axes)).unflatten(-1, _map_shape(support, n_axes))
        return RelationNetPosterior(self.relation, sums, member.any(-2))

    def loss(
        self, support: Tensor, labels: Tensor, query: Tensor, query_labels: Tensor, n_way: int, **_: object
    ) -> Tensor:
        """Return the mean squared error of the relation scores."""
        scores = self.adapt(support, labels, n_way).log_relation(query).exp()
        return (scores - class_one_hot(query_labels, n_way, scores.dtype)).square().mean()


@dataclass
class RelationNetPosterior(Posterior):
    """The summed maps of each class [..., C, c, h, w], and whether each class has examples [..., C]."""

    relation: nn.Module
    sums: Tensor
    present: Tensor

    def log_relation(self, query: Tensor) -> Tensor:
        """Return the log of each relation score, [..., q, c, h, w] → [..., q, C]."""
        n_axes = self.present.ndim
        maps = query.reshape(*query.shape[:n_axes], *_map_shape(query, n_axes))
        pairs = (*maps.shape[:n_axes], self.present.shape[-1], *maps.shape[n_axes:])  # [..., q, C, c, h, w]
        of_class = self.sums.unsqueeze(n_axes - 1).expand(pairs)
        of_query = maps.unsqueeze(n_axes).expand(pairs)
        together = torch.cat([of_class, of_query], -3).flatten(0, n_axes)
        return nn.functional.logsigmoid(self.relation(together)).view(pairs[: n_axes + 1])

    def log_prob(self, query: Tensor) -> Tensor:
        """Return the log of the scores divided by their sum, [..., q, c, h, w] → [..., q, C]."""
        if torch.is_grad_enabled():
            scores = self.log_relation(query)
        else:  # pairs of maps take much memory: one chunk of queries at a time
            values_per_query = 2 * self.sums.numel()
            axis = self.present.ndim - 1
            chunks = query.split(max(1, VALUES_PER_CHUNK // max(1, values_per_query)), axis)
            scores = torch.cat([self.log_relation(queries) for queries in chunks], axis)
        return scores.masked_fill(~self.present.unsqueeze(-2), -math.inf).log_softmax(-1)


def _map_shape(examples: Tensor, n_axes: int) -> tuple[int, int, int]:
    """Return [c, h, w] of maps, or [d, 1, 1] of plain features."""
    shape = examples.shape[n_axes:]
    return (shape[0], 1, 1) if len(shape) == 1 else (shape[0], shape[1], shape[2])
