"""How a model answers a task: its temperature there, and the weight of a prior that the task sets itself.

A model's temperature is fitted on tasks of validation classes, and so is its prior. On another domain both
are often wrong, in either direction. Three cases are weighed, with δ = log T − log T_home(shots, ways):

    home:  the task is like those of home, δ ~ N(0, AT_HOME²)                      h
    away:  the model's prior is right, but not its temperature, δ ~ N(0, AWAY²)    (1 − h)(1 − a)
    own:   the features are good, but the prior is not: GPLDLA with a prior
           that the task itself sets, the head "gpldla-auto", answers              (1 − h) a

each multiplied by its likelihood of the support examples, every one of which is predicted by a head that has
not seen it: Π_i p(y_i | x_i, S without i)^COUNTED, for home and away integrated over δ. T is the exponential
of the mean of δ in the first two cases, and the answer a mixture of the model's, with T, and of that of the
task's own prior. With one example per class nothing can be left out: T is that of home, and h and a alone
give the weights.

h follows from the gap: the log odds of its own class against the others that the head gives an example which
it has seen, averaged over the support. Away from home features crowd together, and the gap is much smaller.
Its logarithm is N(g, s²) at home and N(g, s² + WIDER²) elsewhere. g and s are measured on validation classes,
from which other classes of home may differ by BETWEEN. a depends on whether the task's own prior is honest on
this model's features, on validation classes.
"""

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from gpldla.heads import Head
from gpldla.heads.base import class_one_hot

AT_HOME, AWAY = 0.1, 1.0  # standard deviations of δ; for the latter see docs/models.md
WIDER, BETWEEN = 1.0, 0.1  # those of the mean log gap between domains, and between classes of home
PRIOR_HOME = 0.5  # of a task to be like those of home
MOST_SURE = 4.0  # log odds of h: one number of a task never decides more than that
# a, if the ECE of the task's own prior on one-shot validation tasks is at most HONEST points, and if not
HONEST, OWN_IF_HONEST, OWN_IF_NOT = 10.0, 0.95, 0.1
USUAL_WAYS = 5
COUNTED = 0.25  # of the log likelihood of left-out examples, which are more alike than queries will be
MOST_FOLDS = 5
MOST_EXAMPLES = 512  # that are predicted, of a fold or of a support set
GRID = torch.linspace(-4, 4, 81, dtype=torch.float64)  # of δ
LOWEST = -1e3  # log probability: so that one impossible example does not decide everything


class Shape(NamedTuple):
    """The logarithms that a task's temperature at home depends on: of shots, and of ways / USUAL_WAYS."""

    log_shots: float
    log_ways: float

    @classmethod
    def of(cls, labels: Tensor) -> "Shape":
        """Return the shape of a support set with labels [n]; of shots that differ, the geometric mean."""
        counts = torch.unique(labels, return_counts=True)[1].double()
        return cls(counts.log().mean().item(), math.log(len(counts) / USUAL_WAYS))


@dataclass(frozen=True)
class Linear:
    """A number that depends on the shape of a task."""

    constant: float
    shots: float = 0.0
    ways: float = 0.0

    def at(self, shape: Shape) -> float:
        """Return the number for a shape."""
        return self.constant + self.shots * shape.log_shots + self.ways * shape.log_ways


class TaskAnswer(NamedTuple):
    """The temperatures [E] of tasks, and the shares [E] of their own prior in the answers."""

    temperature: Tensor
    share: Tensor


@dataclass(frozen=True)
class TaskTemperature:
    """What a model knows of tasks of validation classes: log T, g, log s, and how honest their own prior is.

    own_error: the ECE in points of the head "gpldla-auto" on one-shot tasks; None: it is never used
    """

    log_temperature: Linear
    log_gap: Linear
    log_deviation: Linear
    own_error: float | None = None

    def of(
        self,
        head: Head,
        support: Tensor,
        labels: Tensor,
        n_way: int,
        *,
        own: Head | None = None,
        backbone: nn.Module | None = None,
    ) -> TaskAnswer:
        """Return how tasks with support [E, n, ...] and the same labels [n] are answered.

        own: the head "gpldla-auto", or None if the task's own prior is left out
        """
        shape = Shape.of(labels)
        support, labels = _in_order(support, labels)
        home = self.like_home(log_gap(head, support, labels, n_way, backbone), shape).unsqueeze(-1)  # [E, 1]
        a = self.own_weight(own)
        prior = torch.cat([home, (1 - home) * (1 - a), (1 - home) * a], -1).log()  # [E, 3]
        log_temperature = torch.full((len(support),), self.log_temperature.at(shape), dtype=torch.float64)
        likelihood = left_out_likelihood(head, support, labels, n_way, self.log_temperature, backbone)
        if likelihood is None:
            return TaskAnswer(log_temperature.exp(), prior.exp()[:, 2])
        # of case and δ [E, 2, G]
        joint = prior[:, :2, None] + _LOG_PRIORS + COUNTED * likelihood.unsqueeze(1)
        shift = (joint.logsumexp(1).softmax(-1) * GRID).sum(-1)
        of_own = torch.full_like(shift, -torch.inf)
        if a > 0 and own is not None:
            of_own = prior[:, 2] + COUNTED * own_likelihood(own, support, labels, n_way)
        share = (of_own - joint.flatten(1).logsumexp(-1)).sigmoid()
        return TaskAnswer((log_temperature + shift).exp(), share)

    def own_weight(self, own: Head | None) -> float:
        """Return a, the prior weight of the task's own prior away from home."""
        if own is None or self.own_error is None:
            return 0.0
        return OWN_IF_HONEST if self.own_error <= HONEST else OWN_IF_NOT

    def like_home(self, gap: Tensor, shape: Shape) -> Tensor:
        """Return the probability h that tasks with this log gap [...] are like those of home."""
        deviation = gap - self.log_gap.at(shape)
        variance = math.exp(2 * self.log_deviation.at(shape)) + BETWEEN**2
        home = PRIOR_HOME * _normal(deviation, math.sqrt(variance))
        elsewhere = (1 - PRIOR_HOME) * _normal(deviation, math.sqrt(variance + WIDER**2))
        return (home.log() - elsewhere.log()).clamp(-MOST_SURE, MOST_SURE).sigmoid()

    def as_json(self) -> dict[str, Any]:
        """Return the numbers for a model's config.json."""
        return {name: value for name, value in asdict(self).items() if value is not None}

    @classmethod
    def from_json(cls, facts: dict[str, Any]) -> "TaskTemperature":
        """Return what `as_json` gave."""
        own = facts.get("own_error")
        parts = {name: part for name, part in facts.items() if name != "own_error"}
        numbers = {name: {key: float(value) for key, value in part.items()} for name, part in parts.items()}
        values = [value for part in numbers.values() for value in part.values()]
        if not all(math.isfinite(value) for value in [*values, 0.0 if own is None else float(own)]):
            raise ValueError("calibration")
        linear = {name: Linear(**part) for name, part in numbers.items()}
        return cls(**linear, own_error=None if own is None else float(own))


def log_gap(
    head: Head, support: Tensor, labels: Tensor, n_way: int, backbone: nn.Module | None = None
) -> Tensor:
    """Return the logarithm [E] of the gap of tasks with support [E, n, ...] and the same labels [n]."""
    posterior = head.adapt(support, labels.expand(len(support), -1), n_way, backbone=backbone)
    chosen = _some(torch.arange(len(labels), device=labels.device))
    log_prob = posterior.log_prob(support[:, chosen]).double().cpu().clamp_min(LOWEST)
    present = torch.unique(labels.cpu())
    own = class_one_hot(labels[chosen].cpu(), n_way, log_prob.dtype)[:, present]  # [n, C]
    log_prob = log_prob[..., present]
    others = (log_prob * (1 - own)).sum(-1) / max(1, len(present) - 1)
    return ((log_prob * own).sum(-1) - others).mean(-1).clamp_min(1e-6).log()


def left_out_likelihood(
    head: Head,
    support: Tensor,
    labels: Tensor,
    n_way: int,
    log_temperature: Linear,
    backbone: nn.Module | None = None,
) -> Tensor | None:
    """Return Σ log p(y_i | x_i, S without i) at each δ of GRID, [E, G]; None if no class has two examples.

    T at home is that of the shots that are left.
    """
    parts = []
    for kept, left in _folds(labels, n_way):
        posterior = head.adapt(support[:, kept], _repeated(labels[kept], support), n_way, backbone=backbone)
        log_prob = posterior.log_prob(support[:, left]).double().cpu().clamp_min(LOWEST)  # [E, left, C]
        rates = (-log_temperature.at(Shape.of(labels[kept])) - GRID).exp()
        parts.append(torch.stack([_sum_of_own(log_prob * rate, labels[left].cpu()) for rate in rates], -1))
    return torch.stack(parts).sum(0) if parts else None


def own_likelihood(own: Head, support: Tensor, labels: Tensor, n_way: int) -> Tensor:
    """Return Σ log p(y_i | x_i, S without i) of the task's own prior, [E]."""
    total = torch.zeros(len(support), dtype=torch.float64)
    for kept, left in _folds(labels, n_way):
        posterior = own.adapt(support[:, kept], _repeated(labels[kept], support), n_way)
        log_prob = posterior.log_prob(support[:, left]).double().cpu().clamp_min(LOWEST)
        total += _sum_of_own(log_prob, labels[left].cpu())
    return total


def _folds(labels: Tensor, n_way: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield indices of examples that stay and of examples that are predicted by these.

    Fold k leaves out the k-th example of every class that has others, so that a task with N shots takes N
    adaptations, MOST_FOLDS at most.
    """
    rank, spare = _rank_in_class(labels), torch.bincount(labels, minlength=n_way)[labels] > 1
    for k in range(MOST_FOLDS):
        out = spare & (rank == k)
        if not out.any():
            return
        yield (~out).nonzero().flatten(), _some(out.nonzero().flatten())


def _repeated(labels: Tensor, support: Tensor) -> Tensor:
    return labels.expand(len(support), -1)


def _sum_of_own(log_prob: Tensor, labels: Tensor) -> Tensor:
    """Return Σ log p(own class) [E] of tempered log probabilities [E, n, C] that are not normalised yet."""
    own = log_prob.gather(-1, labels.view(1, -1, 1).expand(len(log_prob), -1, 1)).squeeze(-1)
    return (own - log_prob.logsumexp(-1)).sum(-1)


def _in_order(support: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Return support [E, n, ...] and labels [n] by class and by content: no other order matters."""
    rows = support.flatten(2).double()
    direction = torch.arange(rows.shape[-1], device=rows.device, dtype=rows.dtype).cos()
    by_content = (rows @ direction).argsort(-1)  # [E, n]
    order = by_content.gather(1, labels[by_content].argsort(dim=-1, stable=True))
    return support[torch.arange(len(support), device=rows.device).unsqueeze(1), order], labels.sort().values


def _rank_in_class(labels: Tensor) -> Tensor:
    """Return how many examples of the same class come before each one, [n]."""
    order = labels.argsort(stable=True)
    counts = torch.unique(labels, return_counts=True)[1]
    first = (counts.cumsum(0) - counts).repeat_interleave(counts)
    rank = torch.empty_like(order)
    rank[order] = torch.arange(len(labels), device=labels.device) - first
    return rank


def _some(indices: Tensor) -> Tensor:
    """Return all indices, or MOST_EXAMPLES of them at equal distances."""
    step = max(1, math.ceil(len(indices) / MOST_EXAMPLES))
    return indices[::step]


def _normal(x: Tensor, deviation: float) -> Tensor:
    density: Tensor = (-0.5 * (x / deviation).square()).exp() / deviation
    return density


# log p(δ) at home and away, [2, G]
_LOG_PRIORS = torch.stack([_normal(GRID, AT_HOME), _normal(GRID, AWAY)]).log().log_softmax(-1)
