"""The nearest class mean, the classifier of several methods."""

from collections.abc import Callable

from torch import Tensor

from gpldla.heads.base import class_one_hot
from gpldla.heads.common.linear import LinearPosterior


def nearest_mean(
    support: Tensor, labels: Tensor, n_way: int, transform: Callable[[Tensor], Tensor], scale: float = 1.0
) -> LinearPosterior:
    """Return softmax over −s‖φ(x) − μ_j‖², μ_j the mean of φ over the support examples of class j.

    −s‖φ(x)‖² is the same for all classes and cancels in the softmax, which leaves s(2μ_j·φ(x) − ‖μ_j‖²).
    support [..., n, d], labels [..., n]; transform: maps features to φ; scale: s
    """
    phi = transform(support)
    member = class_one_hot(labels, n_way, phi.dtype)
    counts = member.sum(-2)
    means = member.mT @ phi / counts.clamp_min(1).unsqueeze(-1)  # μ, [..., C, d]
    return LinearPosterior(2 * scale * means, -scale * means.square().sum(-1), counts > 0, transform)
