"""A prior scale that a task cannot measure is averaged over instead of being plugged in.

Where every class has a single example nothing is known of β but its prior, log β ~ N(log β₀, τ²). The means f̄
of the logits are proportional to β but for the class priors (Eq. 19), so the predictive (Eq. 21) becomes

    p(y | x, S) = ∫ N(t; 0, 1) E[softmax_y(log π + e^{τt} (f̄ − log π) + noise)] dt

with the noise of β₀, as V* and v* change little with β. Being twice too sure costs much more than being half
as sure as possible, and the average lies between the two.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from gpldla.heads.gp.peak import PRIOR_WIDTH
from gpldla.heads.gp.task_space import all_single

# Three points of Gauss and Hermite: exact for polynomials in t up to degree 5, and no probability is off by
# more than 0.003 with five classes, 0.01 with twenty.
NODES = ((-math.sqrt(3), 1 / 6), (0.0, 2 / 3), (math.sqrt(3), 1 / 6))


@dataclass
class UncertainScale:
    """What is known of the scale of the logits of tasks.

    spread [...]: τ, the standard deviation of log β; 0 for tasks that have measured β
    log_pi [..., C]: the log class priors, which do not scale; −inf for a class without examples
    """

    spread: Tensor
    log_pi: Tensor

    @classmethod
    def of_single_examples(cls, member: Tensor, log_pi: Tensor) -> "UncertainScale | None":
        """Return the prior of β for tasks [..., n, C]; None if all have a class with two examples."""
        single = all_single(member)
        return cls(single * PRIOR_WIDTH, log_pi) if bool(single.any()) else None

    @classmethod
    def from_state(cls, state: Mapping[str, Tensor]) -> "UncertainScale | None":
        """Return the scale with this `state`; None if there is none in it."""
        return cls(state["scale.spread"], state["scale.log_pi"]) if "scale.spread" in state else None

    def state(self) -> dict[str, Tensor]:
        """Return the tensors that `from_state` needs."""
        return {"scale.spread": self.spread, "scale.log_pi": self.log_pi}

    def rescaled(self, mean: Tensor, t: Tensor | float) -> Tensor:
        """Return means [..., q, C] of the logits with log β at t standard deviations above log β₀."""
        prior = self.log_pi.masked_fill(self.log_pi.isneginf(), 0).to(mean).unsqueeze(-2)
        return prior + (mean - prior) * (self.spread.to(mean)[..., None, None] * t).exp()

    def averaged(self, log_prob: Callable[[Tensor], Tensor], mean: Tensor) -> Tensor:
        """Return log p, averaged over the scale; log_prob: of means [..., q, C], as is `mean`."""
        parts = [log_prob(self.rescaled(mean, t)) + math.log(weight) for t, weight in NODES]
        return torch.stack(parts).logsumexp(0)
