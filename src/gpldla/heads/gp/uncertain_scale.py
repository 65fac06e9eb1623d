"""The scale of the logits that a task leaves open is averaged over instead of being plugged in.

The examples that can be left out say how large β is, up to a standard deviation τ of log β; where every class
has a single example nothing is known but the prior, and τ is its width. The means f̄ of the logits are
proportional to β but for the class priors (Eq. 19), so the predictive (Eq. 21) becomes

    p(y | x, S) = ∫ N(t; 0, 1) E[softmax_y(log π + e^{τt} (f̄ − log π) + noise)] dt

with the noise of the most probable β, as V* and v* change little with it. Being twice too sure costs much
more than being half as sure as possible, and the average lies between the two.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

# Three points of Gauss and Hermite: exact for polynomials in t up to degree 5, and no probability is off by
# more than 0.003 with five classes, 0.01 with twenty.
NODES, WEIGHTS = (-math.sqrt(3), 0.0, math.sqrt(3)), (1 / 6, 2 / 3, 1 / 6)
NEGLIGIBLE = 0.05  # τ of tasks with many examples, of which no probability shows anything


@dataclass
class UncertainScale:
    """What is known of the scale of the logits of tasks.

    spread [...]: τ, the standard deviation of log β
    log_pi [..., C]: the log class priors, which do not scale; −inf for a class without examples
    """

    spread: Tensor
    log_pi: Tensor

    @classmethod
    def unless_known(cls, spread: Tensor | None, log_pi: Tensor) -> "UncertainScale | None":
        """Return what is known of the scale of tasks; None where all know it well enough."""
        return None if spread is None or bool((spread < NEGLIGIBLE).all()) else cls(spread, log_pi)

    @classmethod
    def from_state(cls, state: Mapping[str, Tensor]) -> "UncertainScale | None":
        """Return the scale with this `state`; None if there is none in it."""
        if "scale.spread" not in state and "scale.log_pi" not in state:
            return None
        return cls(state["scale.spread"], state["scale.log_pi"])

    def state(self) -> dict[str, Tensor]:
        """Return the tensors that `from_state` needs."""
        return {"scale.spread": self.spread, "scale.log_pi": self.log_pi}

    def rescaled(self, mean: Tensor, t: Tensor | float) -> Tensor:
        """Return means [..., q, C] of the logits for a log β that is t standard deviations larger."""
        absent = mean.isneginf()
        prior = self.log_pi.masked_fill(self.log_pi.isneginf(), 0).to(mean).unsqueeze(-2)
        evidence = mean.masked_fill(absent, 0) - prior  # a gradient through −inf would be NaN
        factor = (self.spread.to(mean)[..., None, None] * t).exp()
        return (prior + evidence * factor).masked_fill(absent, -math.inf)

    def averaged(self, log_prob: Callable[[Tensor], Tensor], mean: Tensor) -> Tensor:
        """Return log p [..., q, C], averaged over the scale.

        log_prob: of means [3, ..., q, C] that are rescaled from `mean` [..., q, C]
        """
        rescaled = torch.stack([self.rescaled(mean, t) for t in NODES])
        log_weights = mean.new_tensor(WEIGHTS).log().view(-1, *(1,) * mean.ndim)
        absent = mean.isneginf()  # without a gradient, which the logarithm of a sum of zeros has not
        return (
            (log_prob(rescaled).masked_fill(absent, 0) + log_weights)
            .logsumexp(0)
            .masked_fill(absent, -math.inf)
        )

    def averaged_over_beta(self, log_prob: Callable[[Tensor], Tensor], beta: Tensor) -> Tensor:
        """Return the average of log p at several β, from the most probable one [..., 1] on."""
        spread = self.spread.to(beta).reshape(beta.shape)
        parts = [log_prob(beta * (spread * t).exp()) + math.log(w) for t, w in zip(NODES, WEIGHTS)]
        return torch.stack(parts).logsumexp(0)
