"""A posterior in the space of a task, which centres and whitens features that were not trained for it."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from gpldla.heads.base import KnownClasses, Posterior, unit_length
from gpldla.heads.gp.coupled import CoupledPosterior
from gpldla.heads.gp.linear_gp import LinearGPPosterior
from gpldla.heads.gp.novelty import class_fit
from gpldla.heads.gp.task_space import TaskSpace
from gpldla.heads.gp.uncertain_scale import UncertainScale

SPACE = ("center", "directions", "shrink", "power")  # what a posterior's state keeps of its space


@dataclass
class TaskPosterior(Posterior):
    """A posterior in the space of a task.

    diagonal: the paper's posterior; coupled: that with the exact covariance around the same mode, or None
    means: the class means in this space, up to a factor, [..., C, d]; beta [...]: as it was chosen
    from_single_examples: whether β was chosen where every class has one example, which cannot measure it
    from_unlabelled: whether unlabelled rows helped to find space and class means
    uncertain_scale: what is known of β where the examples could not measure it, else None
    """

    has_novelty: ClassVar[bool] = True
    has_logits: ClassVar[bool] = True
    has_representation: ClassVar[bool] = True
    space: TaskSpace
    diagonal: LinearGPPosterior
    means: Tensor
    beta: Tensor
    coupled: CoupledPosterior | None = None
    from_single_examples: bool = False
    from_unlabelled: bool = False
    uncertain_scale: UncertainScale | None = None

    @property
    def inner(self) -> LinearGPPosterior | CoupledPosterior:
        """What answers, for features in the task's space."""
        return self.diagonal if self.coupled is None else self.coupled

    def log_prob(self, query: Tensor) -> Tensor:
        """Return log p(y | x, S), [..., q, d] → [..., q, C]."""
        return self.inner.log_prob(self.space(query), self.uncertain_scale)

    def logits(self, query: Tensor) -> tuple[Tensor, Tensor]:
        """Return mean [..., q, C] and variance [..., q, C] or covariance [..., q, C, C] of the logits."""
        return self.inner.logits(self.space(query))

    def rescaled(self, mean: Tensor, t: Tensor) -> Tensor | None:
        """Return the means of the logits at other scales, where the scale is uncertain."""
        return None if self.uncertain_scale is None else self.uncertain_scale.rescaled(mean, t)

    def representation(self, query: Tensor) -> Tensor:
        """Return φ in the task's space, [..., q, d]."""
        return self.diagonal.representation(self.space(query))

    def class_fit(self, query: Tensor, classes: KnownClasses) -> Tensor:
        """Return how well each query fits the class that it fits best, [..., q, d] → [..., q]."""
        return class_fit(self.space(query), classes)

    def nearest_mean_cosine(self, query: Tensor) -> Tensor:
        """Return the cosine between each query and the nearest class mean, [..., q, d] → [..., q]."""
        cosine = unit_length(self.space(query)) @ unit_length(self.means).mT
        absent = self.diagonal.bias_mean.isinf()  # classes without examples
        return cosine.masked_fill(absent.unsqueeze(-2), -torch.inf).amax(-1)

    def state(self) -> dict[str, Tensor]:
        """Return space, moments, β and class means; nothing with the full covariance."""
        if self.coupled is not None:
            return {}  # it needs the support examples
        state = {f"space.{name}": getattr(self.space, name) for name in SPACE}
        state = {name: tensor for name, tensor in state.items() if tensor is not None}
        state |= self.diagonal.state() | {"posterior.beta": self.beta}
        if self.means is not self.diagonal.weight_mean:
            state["posterior.means"] = self.means
        if self.uncertain_scale is not None:
            state |= self.uncertain_scale.state()
        return state

    def fix_draws(self, seed: int = 0) -> None:
        """Fix the draws of a Monte Carlo predictive."""
        self.diagonal.fix_draws(seed)
