"""SNAIL: a causal network reads labelled examples and a query as a sequence, and names the query's class."""

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gpldla.heads.base import Head, Posterior, check_episode, class_one_hot, register_head, require_dim
from gpldla.utils.errors import UserError, require_count

ORDER_SEED = 0  # of the order of the examples in evaluation, where nothing may be random


@register_head("snail")
class SNAIL(Head):
    """Temporal convolutions and causal attention over (features, label) of the examples, then the query.

    Mishra, Rohaninejad, Chen and Abbeel, "A Simple Neural Attentive Meta-Learner", 2018 (arXiv 1707.03141).
    Labels enter as one-hot rows and leave as scores, so the most classes are part of the network, and neither
    the names of classes nor the order of examples are without effect. Classes with examples are numbered in
    order, so that one without has none.

    ways:      the most classes of a task
    dimension: to which features are mapped linearly first
    max_shots: of the longest sequence, `ways` times so many, that the dilations of the convolutions span
    vary_shots: whether training takes a random number of shots, from 1 to those of the episode
    """

    def __init__(
        self,
        feature_dim: int | None = None,
        *,
        ways: int = 20,
        dimension: int = 64,
        max_shots: int = 5,
        vary_shots: bool = True,
    ) -> None:
        super().__init__()
        require_count(ways=ways, dimension=dimension, max_shots=max_shots)
        self.ways, self.vary_shots = ways, vary_shots
        self.project = nn.Linear(require_dim("snail", feature_dim), dimension)
        length = ways * max_shots + 1
        channels = dimension + ways
        self.blocks = nn.ModuleList()
        for keys, values, filters in ((64, 32, 128), (256, 128, 128), (512, 256, 0)):
            self.blocks.append(Attention(channels, keys, values))
            channels += values
            for level in range(1, math.ceil(math.log2(length)) + 1) if filters else ():
                self.blocks.append(DenseConvolution(channels, filters, 2**level))
                channels += filters
        self.classify = nn.Linear(channels, ways)

    def adapt(
        self, support: Tensor, labels: Tensor, n_way: int, *, backbone: nn.Module | None = None
    ) -> "SNAILPosterior":
        """Let the network read the examples [..., n, d], in a random order that is always the same."""
        order = torch.randperm(labels.shape[-1], generator=torch.Generator().manual_seed(ORDER_SEED))
        return self._read(support, labels, n_way, order.to(labels.device))

    def loss(
        self, support: Tensor, labels: Tensor, query: Tensor, query_labels: Tensor, n_way: int, **_: object
    ) -> Tensor:
        """Return the mean of −log p(y | x, S), in training with examples in a new order, perhaps fewer."""
        if self.training:
            order = torch.randperm(labels.shape[-1], device=labels.device)
            support, labels = self._with_fewer_shots(support[..., order, :], labels[..., order], n_way)
        posterior = self._read(support, labels, n_way, torch.arange(labels.shape[-1], device=labels.device))
        return -posterior.log_prob(query).gather(-1, query_labels.long().unsqueeze(-1)).mean()

    def _with_fewer_shots(self, support: Tensor, labels: Tensor, n_way: int) -> tuple[Tensor, Tensor]:
        """Keep the first examples of each class, a random number of them, if all classes have as many."""
        member = class_one_hot(labels, n_way, support.dtype)
        counts = member.sum(-2)
        shots = int(counts.flatten()[0])
        if not self.vary_shots or shots < 2 or (counts != shots).any():
            return support, labels
        kept = int(torch.randint(1, shots + 1, ()))
        number = (member.cumsum(-2) * member).sum(-1)  # of each example within its class, from 1
        indices = (number <= kept).nonzero(as_tuple=True)[-1].view(*labels.shape[:-1], n_way * kept)
        rows = indices.unsqueeze(-1).expand(*indices.shape, support.shape[-1])
        return support.gather(-2, rows), labels.gather(-1, indices)

    def _read(self, support: Tensor, labels: Tensor, n_way: int, order: Tensor) -> "SNAILPosterior":
        """Run all blocks over the examples, and keep what each block was given."""
        check_episode(support, labels, n_way)
        present = class_one_hot(labels, n_way, support.dtype).any(-2)
        rank = (present.cumsum(-1) - 1).clamp_min(0)  # of each class among those with examples, [..., C]
        if n_way > self.ways:
            raise UserError(
                f"This SNAIL has labels for {self.ways} classes, not {n_way}; train one with head.ways ="
                f" {n_way} or more."
            )
        slots = rank.gather(-1, labels.long())
        items = torch.cat([self.project(support), class_one_hot(slots, self.ways, support.dtype)], -1)
        items = items[..., order, :]
        given = []
        for block in self.blocks:
            given.append(items)
            items = torch.cat([items, block(items, items, within=True)], -1)
        return SNAILPosterior(self, tuple(given), rank, present)

    def scores(self, given: tuple[Tensor, ...], query: Tensor) -> Tensor:
        """Return the scores of slots for queries, each the last item, [..., q, d] → [..., q, ways]."""
        phi = self.project(query)
        items = torch.cat([phi, phi.new_zeros(*phi.shape[:-1], self.ways)], -1)
        for block, earlier in zip(self.blocks, given, strict=True):
            items = torch.cat([items, block(items, earlier, within=False)], -1)
        classified: Tensor = self.classify(items)
        return classified


class DenseConvolution(nn.Module):
    """Causal convolution of two items, `dilation` apart, with a gate: tanh(first)·σ(second)."""

    def __init__(self, channels: int, filters: int, dilation: int) -> None:
        super().__init__()
        self.dilation = dilation
        self.now = nn.Linear(channels, 2 * filters)
        self.before = nn.Linear(channels, 2 * filters, bias=False)

    def forward(self, items: Tensor, earlier: Tensor, *, within: bool) -> Tensor:
        """Return what is added to items [..., m, channels], as [..., m, filters].

        within: whether the items are `earlier` themselves, each after those before it; otherwise each of them
        is, by itself, the one after all of `earlier` [..., n, channels]
        """
        if within:
            before = F.pad(earlier, (0, 0, self.dilation, 0))[..., : earlier.shape[-2], :]
        elif self.dilation <= earlier.shape[-2]:
            before = earlier[..., -self.dilation, :].unsqueeze(-2)
        else:
            before = torch.zeros_like(earlier[..., :1, :])
        first, second = (self.now(items) + self.before(before)).chunk(2, -1)
        gated: Tensor = first.tanh() * second.sigmoid()
        return gated


class Attention(nn.Module):
    """One head of attention over the items up to each."""

    def __init__(self, channels: int, keys: int, values: int) -> None:
        super().__init__()
        self.query, self.key = nn.Linear(channels, keys), nn.Linear(channels, keys)
        self.value = nn.Linear(channels, values)

    def forward(self, items: Tensor, earlier: Tensor, *, within: bool) -> Tensor:
        """Return what is added to items [..., m, channels], as [..., m, values]; see `DenseConvolution`."""
        query = self.query(items)
        keys, values = self.key(earlier), self.value(earlier)
        likeness = query @ keys.mT / math.sqrt(keys.shape[-1])  # [..., m, n]
        if within:
            later = torch.ones(likeness.shape[-2:], dtype=torch.bool, device=items.device).triu(1)
            likeness = likeness.masked_fill(later, -math.inf)
            read: Tensor = likeness.softmax(-1) @ values
            return read
        own_key, own_value = self.key(items), self.value(items)
        to_itself = (query * own_key).sum(-1, keepdim=True) / math.sqrt(keys.shape[-1])
        attention = torch.cat([likeness, to_itself], -1).softmax(-1)
        answer: Tensor = attention[..., :-1] @ values + attention[..., -1:] * own_value
        return answer


@dataclass
class SNAILPosterior(Posterior):
    """What each block was given of the examples, [..., n, channels] each.

    rank, present [..., C]: the slot of each class, and whether it has examples
    """

    head: SNAIL
    given: tuple[Tensor, ...]
    rank: Tensor
    present: Tensor

    def log_prob(self, query: Tensor) -> Tensor:
        """Return log p(y | x, S), [..., q, d] → [..., q, C]."""
        scores = self.head.scores(self.given, query)
        slots = self.rank.unsqueeze(-2).expand(*scores.shape[:-1], self.rank.shape[-1])
        return scores.gather(-1, slots).masked_fill(~self.present.unsqueeze(-2), -math.inf).log_softmax(-1)
