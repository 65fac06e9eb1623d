"""The torch modules that are traced to ONNX graphs: of posteriors, and of heads that still adapt."""

import math

import torch
from torch import Tensor, nn

from gpldla.classifier.calibration import apply_temperature
from gpldla.classifier.own_prior import OwnPrior
from gpldla.heads import Head, Posterior
from gpldla.utils.errors import UserError


class PosteriorModule(nn.Module):
    """An adapted posterior: features [n, d] → probabilities [n, C].

    own_prior: a second answer to be mixed in, or None
    """

    def __init__(self, posterior: Posterior, temperature: float, own_prior: OwnPrior | None = None) -> None:
        super().__init__()
        self.subject = type(posterior).__name__
        self.posterior = as_constant(posterior)
        self.temperature = _positive(temperature)
        self.own_prior = own_prior
        if own_prior is not None:
            self.own_prior = OwnPrior(as_constant(own_prior.posterior), own_prior.share)

    def forward(self, features: Tensor) -> Tensor:
        """Return the probabilities, with the temperature applied."""
        log_prob = apply_temperature(self.posterior.log_prob(features), self.temperature)
        if self.own_prior is not None:
            log_prob = self.own_prior.mixed(log_prob, features)
        return log_prob.exp()


class HeadModule(nn.Module):
    """A head: support [n, d], labels [n], query [q, d] → probabilities [q, C]."""

    outputs = ("probabilities",)

    def __init__(self, head: Head, temperature: float) -> None:
        super().__init__()
        self.subject = type(head).__name__
        self.head, self.temperature = head, _positive(temperature)

    def forward(self, support: Tensor, labels: Tensor, query: Tensor) -> tuple[Tensor]:
        """Adapt the head to the support examples and return the probabilities of the queries."""
        n_way = labels.max().item() + 1  # unknown while tracing, except ...
        torch._check(n_way >= 2)  # type: ignore[no-untyped-call, unused-ignore]  # ... for its minimum
        posterior = self.head.adapt(support, labels, n_way)  # type: ignore[arg-type]
        return (apply_temperature(posterior.log_prob(query), self.temperature).exp(),)


def as_constant(posterior: Posterior) -> Posterior:
    """Return a copy of a posterior with all tensors in float32 on the CPU, as constants of the graph."""

    def constant(tensor: Tensor) -> Tensor:
        tensor = tensor.detach().cpu()
        return tensor.float() if tensor.is_floating_point() else tensor

    constants = posterior.map_tensors(constant)
    constants.fix_draws()
    return constants


def _positive(temperature: float) -> float:
    if not 0 < temperature < math.inf:
        raise UserError(f"The temperature must be a positive number, not {temperature!r}.")
    return temperature
