"""A second answer to a task, of GPLDLA with a prior that the task itself sets; see `task_temperature.py`."""

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from gpldla.heads import Head, Posterior, create_head

NEGLIGIBLE = 1e-3  # share below which the second answer is left out


@dataclass(frozen=True)
class OwnPrior:
    """The posterior of the head "gpldla-auto" on the examples of a task, and its share in the answers."""

    posterior: Posterior
    share: float

    def mixed(self, log_prob: Tensor, rows: Tensor) -> Tensor:
        """Return the mixture of log probabilities [..., q, C] of rows [..., q, d] with the task's own."""
        return mixture(log_prob, self.posterior.log_prob(rows), self.share)

    def to(self, device: str | torch.device) -> "OwnPrior":
        """Return the second answer on another device."""
        return replace(self, posterior=self.posterior.to(device))


def own_prior_head() -> Head:
    """Return the head whose prior each task sets itself."""
    return create_head("gpldla-auto").eval()


def mixture(log_prob: Tensor, of_own: Tensor, share: float | Tensor) -> Tensor:
    """Return log((1 − share) · p + share · p_own); share: a number from 0 to 1, or a tensor."""
    if not isinstance(share, Tensor):
        return torch.logaddexp(log_prob + math.log1p(-share), of_own.to(log_prob) + math.log(share))
    share = share.to(log_prob)
    return torch.logaddexp(log_prob + torch.log1p(-share), of_own.to(log_prob) + share.log())
