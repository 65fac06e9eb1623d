"""Meta-Mixture: several initialisations of MAML, each task weighting them by how well they suit it."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from gpldla.heads.base import Head, Posterior, check_episode, register_head, require_dim
from gpldla.heads.common.adapted_network import AdaptedNetworkPosterior
from gpldla.heads.maml import MAML
from gpldla.utils.errors import UserError, require_count, require_positive


@register_head("meta-mixture")
class MetaMixture(Head):
    """A finite mixture of MAML initialisations, by expectation maximisation over tasks.

    Jerfel, Grant, Griffiths and Heller, "Reconciling meta-learning and continual learning with online
    mixtures of tasks", 2019 (arXiv 1812.06080). The network has as many parts as there are components (see
    src/gpldla/backbones/mixture.py), from different random weights, as equal ones would stay equal. Without a
    network, on plain features, each component sees its share of them.

    steps, step_size, first_order: of the inner gradient descent, as for MAML
    components:  number of initialisations
    temperature: divides the losses by which tasks weight the components; towards 0 the best takes all
    """

    consumes = "backbone"

    def __init__(
        self,
        feature_dim: int | None = None,
        *,
        steps: int = 5,
        step_size: float = 0.01,
        first_order: bool = False,
        components: int = 3,
        temperature: float = 1.0,
    ) -> None:
        super().__init__()
        require_count(components=components)
        require_positive(temperature=temperature)
        d = require_dim("meta-mixture", feature_dim)
        if d % components:
            raise UserError(
                f"{d} features cannot be shared by {components} components; choose a network that has so many"
                " parts, such as conv4-mixture, or another number of components."
            )
        self.components, self.temperature = components, temperature
        self.maml = MAML(d // components, steps=steps, step_size=step_size, first_order=first_order)
        self.log_weights = nn.Parameter(torch.zeros(components))  # of the mixture, before normalisation

    def adapt(
        self, support: Tensor, labels: Tensor, n_way: int, *, backbone: nn.Module | None = None
    ) -> "MetaMixturePosterior":
        """Adapt every component; how well each fits the support after that decides on its weight."""
        check_episode(support, labels, n_way)
        parts = _shares(support, self.components, backbone is None)
        networks = self._networks(backbone)
        posteriors = tuple(
            self.maml.adapt(part, labels, n_way, backbone=network) for part, network in zip(parts, networks)
        )
        fits = [-_loss(posterior.log_prob(part), labels) for posterior, part in zip(posteriors, parts)]
        log_responsibilities = self._log_responsibilities(torch.stack(fits, -1))
        return MetaMixturePosterior(posteriors, log_responsibilities, backbone is None)

    def loss(
        self,
        support: Tensor,
        labels: Tensor,
        query: Tensor,
        query_labels: Tensor,
        n_way: int,
        *,
        backbone: nn.Module | None = None,
    ) -> Tensor:
        """Return Σ_l γ_l (loss_l − log π_l): the query loss of component l and its weight in the mixture.

        γ follows from the query losses and is constant.
        """
        posterior = self.adapt(support, labels, n_way, backbone=backbone)
        losses = torch.stack([_loss(p, query_labels) for p in posterior.component_log_probs(query)], -1)
        responsibilities = self._log_responsibilities(-losses).exp().detach()
        prior = self.log_weights.log_softmax(-1).to(losses.dtype)
        return (responsibilities * (losses - prior)).sum(-1).mean()

    def scalars(self) -> dict[str, float]:
        """Return the weight of each component."""
        weights = self.log_weights.softmax(-1).tolist()
        return {f"weight_{number}": weight for number, weight in enumerate(weights)}

    def _log_responsibilities(self, fits: Tensor) -> Tensor:
        """Return log γ_l from mean log-likelihoods of each task, [..., components] both."""
        prior = self.log_weights.log_softmax(-1).to(fits.dtype)
        return (fits / self.temperature + prior).log_softmax(-1)

    def _networks(self, backbone: nn.Module | None) -> list[nn.Module | None]:
        if backbone is None:
            return [None] * self.components
        networks = getattr(backbone, "networks", None)
        if not isinstance(networks, nn.ModuleList) or len(networks) != self.components:
            raise UserError(
                f"meta-mixture with {self.components} components needs a network with as many parts, such as"
                f" conv4-mixture; {type(backbone).__name__} is not one."
            )
        return list(networks)


def _loss(log_prob: Tensor, labels: Tensor) -> Tensor:
    """Return the mean of −log p of the labels of each task, [..., n, C] and [..., n] → [...]."""
    return -log_prob.gather(-1, labels.long().unsqueeze(-1)).squeeze(-1).mean(-1)


def _shares(examples: Tensor, components: int, of_features: bool) -> list[Tensor]:
    """Return what each component sees: the same images, or its share of features."""
    return list(examples.chunk(components, -1)) if of_features else [examples] * components


@dataclass
class MetaMixturePosterior(Posterior):
    """The adapted components and the logarithms of their weights [..., components].

    of_features: whether queries are features, of which each component sees a share
    """

    components: tuple[AdaptedNetworkPosterior, ...]
    log_responsibilities: Tensor
    of_features: bool

    def component_log_probs(self, query: Tensor) -> list[Tensor]:
        """Return log p(y | x, S) of each component, [..., q, C]."""
        parts = _shares(query, len(self.components), self.of_features)
        return [posterior.log_prob(part) for posterior, part in zip(self.components, parts)]

    def log_prob(self, query: Tensor) -> Tensor:
        """Return the log of the weighted mean probability, [..., q, d] or images → [..., q, C]."""
        together = torch.stack(self.component_log_probs(query), -1)  # [..., q, C, components]
        weights = self.log_responsibilities.unsqueeze(-2).unsqueeze(-2)
        absent = ~self.components[0].present.unsqueeze(-2)
        log_prob: Tensor = (together.masked_fill(absent.unsqueeze(-1), 0) + weights).logsumexp(-1)
        return log_prob.masked_fill(absent, -math.inf)
