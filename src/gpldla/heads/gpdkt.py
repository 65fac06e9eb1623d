"""GPDKT: one Gaussian-process regression per class on ±1 targets, with a deep kernel."""

import math
from typing import Literal, get_args

import torch
from torch import Tensor, nn

from gpldla.heads.base import (
    Head,
    check_episode,
    class_one_hot,
    register_head,
    require_dim,
    unit_length,
)
from gpldla.heads.common.linear import LinearPosterior
from gpldla.utils.errors import UserError, require_positive

Kernel = Literal["linear", "cosine", "bncosine"]


@register_head("gpdkt")
class GPDKT(Head):
    """Softmax of the posterior means of C Gaussian processes, one against the rest.

    Patacchiola et al., "Bayesian Meta-Learning for the Few-Shot Setting via Deep Kernels", 2020
    (arXiv 1910.05199). The hyperparameters are shared by the classes, so any number of them works, and one
    Cholesky factor of the n×n kernel matrix serves all of them.

    kernel: s·φ(x)·φ(x') with unscaled features ("linear"), at unit length ("cosine"), or standardised per
            dimension over the images of an episode, then at unit length ("bncosine"). s is learned.
    noise:  variance of the targets, fixed
    """

    def __init__(
        self, feature_dim: int | None = None, *, kernel: Kernel = "bncosine", noise: float = 0.1
    ) -> None:
        super().__init__()
        if kernel not in get_args(Kernel):
            raise UserError(f"kernel must be 'linear', 'cosine' or 'bncosine', not {kernel!r}.")
        require_positive(noise=noise)
        self.kernel, self.noise = kernel, noise
        self.log_scale = nn.Parameter(torch.zeros(()))
        self.mean = nn.Parameter(torch.zeros(()))
        self.batch_norm = _BatchNorm(require_dim("gpdkt", feature_dim)) if kernel == "bncosine" else None

    def adapt(
        self, support: Tensor, labels: Tensor, n_way: int, *, backbone: nn.Module | None = None
    ) -> LinearPosterior:
        """Solve for the posterior means; features are standardised by the running statistics of training."""
        check_episode(support, labels, n_way)
        phi = self._phi(support)
        member = class_one_hot(labels, n_way, phi.dtype)
        targets = 2 * member - 1 - self.mean.to(phi.dtype)  # [..., n, C]
        chol = self._cholesky(phi)
        # The posterior mean at x is s·φ(x)·Φᵀ(K + noise)⁻¹y: linear in φ(x), with weights [..., C, d].
        weights = self._scale(phi) * torch.cholesky_solve(targets, chol).mT @ phi
        return LinearPosterior(weights, self.mean.to(phi.dtype).expand(n_way), member.any(-2), self._phi)

    def loss(
        self, support: Tensor, labels: Tensor, query: Tensor, query_labels: Tensor, n_way: int, **_: object
    ) -> Tensor:
        """Return −log p(targets of support and query), the marginal likelihood, per target and class."""
        check_episode(support, labels, n_way)
        together = torch.cat([support, query], -2)
        if self.batch_norm is not None:
            together = self.batch_norm.batch_normalise(together)
        phi = together if self.kernel == "linear" else unit_length(together)
        one_hot = class_one_hot(torch.cat([labels, query_labels], -1), n_way, phi.dtype)
        y = 2 * one_hot - 1 - self.mean.to(phi.dtype)
        chol = self._cholesky(phi)
        whitened = torch.linalg.solve_triangular(chol, y, upper=False)  # [..., n, C]
        fit = whitened.square().mean((-2, -1))
        log_det = 2 * chol.diagonal(dim1=-2, dim2=-1).log().mean(-1)  # of one target
        loss: Tensor = 0.5 * (fit + log_det + math.log(2 * math.pi)).mean()
        return loss

    def capturable(self) -> bool:
        """Return True: the computation depends on shapes only, not on values."""
        return True

    def scalars(self) -> dict[str, float]:
        """Return the kernel's scale and the mean of the processes."""
        return {"scale": self.log_scale.exp().item(), "mean": self.mean.item()}

    def _phi(self, features: Tensor) -> Tensor:
        if self.batch_norm is not None:
            features = self.batch_norm(features)
        return features if self.kernel == "linear" else unit_length(features)

    def _scale(self, like: Tensor) -> Tensor:
        return self.log_scale.exp().to(like.dtype)

    def _cholesky(self, phi: Tensor) -> Tensor:
        """Factor K + noise·I, K = sΦΦᵀ [..., n, n].

        The rounding error of K grows with its entries. Where it would exceed the noise, as with large raw
        features in float32, a multiple of it replaces the noise, so that the matrix stays positive definite.
        """
        K = self._scale(phi) * phi @ phi.mT
        n = K.shape[-1]
        largest = K.diagonal(dim1=-2, dim2=-1).amax(-1)
        noise = (4 * n * torch.finfo(K.dtype).eps * largest.detach()).clamp_min(self.noise)
        noisy = K + noise[..., None, None] * torch.eye(n, dtype=K.dtype, device=K.device)
        factor: Tensor = torch.linalg.cholesky_ex(noisy).L
        return factor


class _BatchNorm(nn.BatchNorm1d):
    """Standardise each of d features: in `loss` per episode, in `adapt` by running statistics.

    A subclass of torch's, so that training with several episodes or processes per update handles its
    statistics like those of other BatchNorm layers.
    """

    running_mean: Tensor
    running_var: Tensor
    momentum: float

    def forward(self, features: Tensor) -> Tensor:
        """Use the running statistics, [..., n, d] → [..., n, d]."""
        return self._scaled(features, self.running_mean, self.running_var)

    def batch_normalise(self, features: Tensor) -> Tensor:
        """Use the statistics of each episode [..., n, d], and in training mode update the running ones."""
        var, mean = torch.var_mean(features, dim=-2, correction=0, keepdim=True)
        if self.training:
            n = features.shape[-2]
            with torch.no_grad():
                for running, current in (
                    (self.running_mean, mean),
                    (self.running_var, var * n / max(n - 1, 1)),
                ):
                    running.lerp_(current.flatten(0, -2).mean(0).to(running.dtype), self.momentum)
        return self._scaled(features, mean, var)

    def _scaled(self, features: Tensor, mean: Tensor, var: Tensor) -> Tensor:
        standard = (features - mean) * (var + self.eps).rsqrt()
        return (standard * self.weight + self.bias).to(features.dtype)
