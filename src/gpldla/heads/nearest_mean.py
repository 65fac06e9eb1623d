"""The nearest class mean, which several methods end in."""

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from gpldla.heads.base import Posterior, class_one_hot


def class_means(phi: Tensor, labels: Tensor, n_way: int) -> tuple[Tensor, Tensor]:
    """Average the features [..., n, d] by class: means [..., C, d], and which classes have any [..., C]."""
    member = class_one_hot(labels, n_way, phi.dtype)
    counts = member.sum(-2)
    return member.mT @ phi / counts.clamp_min(1).unsqueeze(-1), counts > 0


@dataclass
class NearestMeanPosterior(Posterior):
    """Softmax over −‖φ(x) − μ_j‖², with μ [..., C, d]; a class that is not `present` [..., C] is impossible.

    transform: turns query features to φ
    """

    means: Tensor
    present: Tensor
    transform: Callable[[Tensor], Tensor]

    def log_prob(self, query: Tensor) -> Tensor:
        """Return log p(y | x, S), [..., q, d] → [..., q, C]."""
        phi = self.transform(query)
        # −‖φ‖² is the same for all classes and falls out of the softmax.
        scores = 2 * phi @ self.means.mT - self.means.square().sum(-1).unsqueeze(-2)
        return scores.masked_fill(~self.present.unsqueeze(-2), float("-inf")).log_softmax(-1)
