"""Matching networks: attention over the support examples."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from gpldla.heads.base import (
    Head,
    Posterior,
    check_episode,
    class_one_hot,
    register_head,
    require_dim,
    unit_length,
)
from gpldla.utils.errors import require_count, require_positive


@register_head("matchingnet")
class MatchingNet(Head):
    """Softmax over the cosine similarities to all support examples, summed by class.

    Vinyals et al., "Matching Networks for One Shot Learning", 2016 (arXiv 1606.04080).

    full_context: embed each example conditioned on the whole support set; the result then depends on the
                  order of the support examples
    scale:        multiplies the similarities. The paper has 1, with which all probabilities are similar:
                  cosines of non-negative features lie in [0, 1].
    read_steps:   how often a query reads the support set (full context)
    """

    def __init__(
        self,
        feature_dim: int | None = None,
        *,
        full_context: bool = False,
        scale: float = 10.0,
        read_steps: int = 5,
    ) -> None:
        super().__init__()
        require_positive(scale=scale)
        require_count(read_steps=read_steps)
        self.scale = scale
        self.context = (
            FullContext(require_dim("matchingnet", feature_dim), read_steps) if full_context else None
        )

    def adapt(
        self, support: Tensor, labels: Tensor, n_way: int, *, backbone: nn.Module | None = None
    ) -> "MatchingNetPosterior":
        """Keep the (embedded) support examples [..., n, d]; a class without examples has probability 0."""
        check_episode(support, labels, n_way)
        embedded = support if self.context is None else self.context.embed_support(support)
        member = class_one_hot(labels, n_way, support.dtype)
        return MatchingNetPosterior(embedded, unit_length(embedded), member, self.scale, self.context)


class FullContext(nn.Module):
    """Full-context embeddings: f and g of the paper's appendix, on features f' = g' of length d."""

    def __init__(self, d: int, read_steps: int) -> None:
        super().__init__()
        self.over_support = nn.LSTM(d, d, bidirectional=True, batch_first=True)
        self.reader = nn.LSTMCell(2 * d, d)
        self.read_steps = read_steps

    def embed_support(self, support: Tensor) -> Tensor:
        """g(x_i, S) = forward_i + backward_i + g'(x_i), an LSTM both ways over the support, [..., n, d]."""
        flat = support.flatten(0, -3) if support.ndim > 2 else support.unsqueeze(0)
        forward, backward = self.over_support(flat)[0].chunk(2, dim=-1)
        contextual: Tensor = (forward + backward + flat).view_as(support)
        return contextual

    def embed_query(self, query: Tensor, support: Tensor) -> Tensor:
        """f(x, S) [..., q, d]: an LSTM that reads the embedded support [..., n, d] `read_steps` times."""
        h, cell = query, torch.zeros_like(query).flatten(0, -2)
        for _ in range(self.read_steps):
            read = (h @ support.mT).softmax(-1) @ support  # r = Σ_i a(h, g(x_i)) g(x_i)
            new, cell = self.reader(torch.cat([query, read], -1).flatten(0, -2), (h.flatten(0, -2), cell))
            h = new.view_as(query) + query
        return h


@dataclass
class MatchingNetPosterior(Posterior):
    """Embedded support examples, unscaled and at unit length [..., n, d]; membership [..., n, C]."""

    support: Tensor
    unit_support: Tensor
    member: Tensor
    scale: float
    context: FullContext | None

    def log_prob(self, query: Tensor) -> Tensor:
        """Return the log of the attention on each class, [..., q, d] → [..., q, C]."""
        if self.context is not None:
            query = self.context.embed_query(query, self.support)
        attention = (self.scale * unit_length(query) @ self.unit_support.mT).softmax(-1)  # [..., q, n]
        # Attention is at least e^(−2 scale) / n; the sum of a class underflows only if scale is very large.
        tiny = torch.finfo(attention.dtype).tiny
        by_class = attention @ self.member  # Σ_i a(x, x_i) y_i
        absent = (self.member.sum(-2) == 0).unsqueeze(-2)
        return by_class.clamp_min(tiny).log().masked_fill(absent, -math.inf)
