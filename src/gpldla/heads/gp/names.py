"""Names of classes as the prior mean of the weights: w_j ~ N(a·t_j, β²I), t_j the embedding of a name.

With w_j = a·t_j + v_j and v_j ~ N(0, β²I) a logit is what the names say, a·t_j·u, plus GPLDLA's f_j for v_j.
u is the unit feature of an item. A vector that is common to all w_j changes no probability, so the mean of
all names is subtracted from each. So is the mean of class means from items, as far as classes have examples:
a name that is near to everything is no evidence. Derivation and experiments: docs/names.md.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from gpldla.heads.base import can_read_values, unit_length
from gpldla.heads.gp.strangers import LOGIT_SCALE, PRIOR_FREEDOM, PRIOR_LIKENESS
from gpldla.heads.gp.task_space import class_means, positive

NAME_WIDTH = 1.0  # how far (in log a) a task may be from a₀; β is better known
PRIOR_OVERLAP = 0.5  # correlation of the noise of a name and of examples, where a task is too small to tell
SCALES = tuple(2.0**k for k in range(-5, 3))  # of a, around a₀
BETAS = tuple(2.0**k for k in range(-3, 4))  # of β, around β₀


@dataclass
class Names:
    """What the names say about items, up to the scale a.

    directions [C, d]: the unit embeddings of names minus their mean; 0 for a class without a name
    named [C]: which classes have a name
    center [d]: the sum of the class means of unit features, over C, which is subtracted from unit features
    """

    directions: Tensor
    named: Tensor
    center: Tensor

    @classmethod
    def of(cls, prior_mean: Tensor, features: Tensor, member: Tensor) -> "Names":
        """Return the names' part for examples: prior_mean [C, d], features [n, d], member [n, C]."""
        named = (prior_mean != 0).any(-1)
        unit = unit_length(prior_mean.to(features)) * named.unsqueeze(-1)
        mean = unit.sum(0) / named.sum().clamp_min(1)
        directions = (unit - mean) * named.unsqueeze(-1)
        return cls(
            directions, named, class_means(unit_length(features), member).sum(0) / max(1, len(prior_mean))
        )

    def scores(self, features: Tensor) -> Tensor:
        """Return t_j·(u − c) of items, [q, d] → [q, C]."""
        return (unit_length(features) - self.center) @ self.directions.mT

    def left_out_scores(self, features: Tensor, member: Tensor) -> Tensor:
        """Return the same of the examples [n, d], each without its own part in the centre, [n, C]."""
        u, counts = unit_length(features), member.sum(0)
        own_mean = member.gt(0).to(u) @ class_means(u, member)
        weight, count = member.sum(-1), member.gt(0).to(u) @ counts
        left = (count - weight).clamp_min(0)
        remains = (left > 1e-9 * count).to(u)
        without = (own_mean * count.unsqueeze(-1) - u * weight.unsqueeze(-1)) / positive(left).unsqueeze(-1)
        moved = own_mean - without * remains.unsqueeze(-1)
        return (u - self.center + moved / member.shape[-1]) @ self.directions.mT

    def first_scale(self) -> float:
        """Return a₀ without any example: names take the place of items of other classes."""
        count, d = int(self.named.sum()), self.directions.shape[-1]
        directions = self.directions[self.named]
        cosines = directions @ directions.mT
        other = ~torch.eye(count, dtype=torch.bool, device=cosines.device)
        spread2 = cosines[other].var(correction=0).item() if count > 2 else 0.0
        freedom = max(0.0, count * (count - 3) / 2)
        return LOGIT_SCALE / math.sqrt(_shrunk(spread2, freedom, PRIOR_LIKENESS / d**0.5))

    def scale_of(self, left_out: Tensor, member: Tensor, first: float) -> float:
        """Return a₀ from scores of examples [n, C]: their spread over classes to which they do not belong."""
        others = self._others(member)
        centred = _centred(left_out, others)
        count = others.sum(-1)
        freedom = (count - 1).clamp_min(0).sum().item()
        spread2 = centred.square().sum().item() / max(freedom, 1.0)
        return LOGIT_SCALE / math.sqrt(_shrunk(spread2, freedom, (LOGIT_SCALE / first) ** 2))

    def overlap(self, left_out: Tensor, cosine: Tensor, member: Tensor) -> float:
        """Return the correlation of scores and cosines with classes to which examples do not belong.

        left_out, cosine [n, C]: both of examples that are left out, the second with the means of classes
        """
        others = self._others(member) & (member.sum(0) > 0) & cosine.isfinite()
        a, b = _centred(left_out, others), _centred(cosine.nan_to_num(), others)
        freedom = (others.sum(-1) - 1).clamp_min(0).sum().item()
        product = (a * b).sum() / positive(a.square().sum() * b.square().sum()).sqrt()
        measured = min(max(product.item(), 0.0), 1.0)
        return (PRIOR_FREEDOM * PRIOR_OVERLAP + freedom * measured) / (PRIOR_FREEDOM + freedom)

    def _others(self, member: Tensor) -> Tensor:
        return (member <= 0) & self.named & (member.sum(-1, keepdim=True) > 0)


def among_seen(mean: Tensor, log_pi: Tensor, seen: Tensor) -> Tensor:
    """Return logits [n, C] in which examples only tell the classes that have some from each other.

    mean: with log π_j in it. How probable all classes with examples are together is left to the names: an
    item of a class without any is like some of these by chance, which their examples do not know.
    seen [C]: which classes have examples; log_pi [C]: −inf for an impossible class
    """
    if can_read_values(mean) and bool((seen | ~log_pi.isfinite()).all()):
        return mean
    of_seen = log_pi.masked_fill(~seen, -torch.inf).logsumexp(0)
    together = of_seen - mean.masked_fill(~seen, -torch.inf).logsumexp(-1, keepdim=True)
    return torch.where(seen, mean + together, log_pi)


def _centred(values: Tensor, mask: Tensor) -> Tensor:
    """Return values [n, C] minus the mean of those in the mask, row by row; 0 elsewhere."""
    kept = mask.to(values)
    mean = (values * kept).sum(-1, keepdim=True) / kept.sum(-1, keepdim=True).clamp_min(1)
    return (values - mean) * kept


def _shrunk(value: float, freedom: float, prior: float) -> float:
    return (PRIOR_FREEDOM * prior + freedom * value) / (PRIOR_FREEDOM + freedom)
