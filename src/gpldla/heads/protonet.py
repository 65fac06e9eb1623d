"""Prototypical networks: the nearest class mean."""

from torch import Tensor, nn

from gpldla.heads.base import Head, check_episode, register_head, unit_length
from gpldla.heads.common.linear import LinearPosterior
from gpldla.heads.common.nearest_mean import nearest_mean
from gpldla.utils.errors import require_flag, require_positive


@register_head("protonet")
class ProtoNet(Head):
    """Softmax over −s‖φ(x) − μ_j‖², μ_j the mean of the support features of class j.

    Snell, Swersky and Zemel, "Prototypical Networks for Few-shot Learning", 2017 (arXiv 1703.05175).

    normalize: scale features to unit length first
    scale:     s, 1 in the paper; less helps if distances are so large that training would start with
               probabilities near 0 and 1
    """

    def __init__(
        self, feature_dim: int | None = None, *, normalize: bool = False, scale: float = 1.0
    ) -> None:
        super().__init__()
        require_positive(scale=scale)
        require_flag(normalize=normalize)
        self.normalize, self.scale = normalize, scale

    def adapt(
        self, support: Tensor, labels: Tensor, n_way: int, *, backbone: nn.Module | None = None
    ) -> LinearPosterior:
        """Average the support features [..., n, d] of each class; a class without any has probability 0."""
        check_episode(support, labels, n_way)
        return nearest_mean(support, labels, n_way, self._phi, self.scale)

    def capturable(self) -> bool:
        """Return True: the computation depends on shapes only, not on values."""
        return True

    def _phi(self, features: Tensor) -> Tensor:
        return unit_length(features) if self.normalize else features
