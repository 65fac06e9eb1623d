"""Prototypical networks: the nearest class mean."""

from dataclasses import dataclass

from torch import Tensor, nn

from gpldla.heads.base import Head, Posterior, check_episode, class_one_hot, register_head, unit_length


@register_head("protonet")
class ProtoNet(Head):
    """Softmax over −‖φ(x) − μ_j‖², μ_j the mean of the support features of class j.

    Snell, Swersky and Zemel, "Prototypical Networks for Few-shot Learning", 2017 (arXiv 1703.05175).

    normalize: scale features to unit length first
    """

    def __init__(self, feature_dim: int | None = None, *, normalize: bool = False) -> None:
        super().__init__()
        self.normalize = normalize

    def adapt(
        self, support: Tensor, labels: Tensor, n_way: int, *, backbone: nn.Module | None = None
    ) -> "ProtoNetPosterior":
        """Average the support features [..., n, d] of each class; a class without examples is impossible."""
        check_episode(support, labels, n_way)
        phi = unit_length(support) if self.normalize else support
        member = class_one_hot(labels, n_way, phi.dtype)
        counts = member.sum(-2)
        prototypes = member.mT @ phi / counts.clamp_min(1).unsqueeze(-1)
        return ProtoNetPosterior(prototypes, counts > 0, self.normalize)


@dataclass
class ProtoNetPosterior(Posterior):
    """Prototypes [..., C, d], and which classes have one [..., C]."""

    prototypes: Tensor
    present: Tensor
    normalize: bool

    def log_prob(self, query: Tensor) -> Tensor:
        """Return log softmax of −‖φ(x) − μ_j‖², [..., q, d] → [..., q, C]."""
        phi = unit_length(query) if self.normalize else query
        # −‖φ‖² is the same for all classes and falls out of the softmax.
        scores = 2 * phi @ self.prototypes.mT - self.prototypes.square().sum(-1).unsqueeze(-2)
        return scores.masked_fill(~self.present.unsqueeze(-2), float("-inf")).log_softmax(-1)
