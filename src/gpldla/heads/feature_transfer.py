"""Feature transfer: a classifier of the base classes, then a new linear layer fitted to the support."""

import torch
from torch import Tensor, nn

from gpldla.heads.base import Head, check_episode, class_one_hot, register_head
from gpldla.heads.common.fine_tuning import GradientDescent, softmax_residual
from gpldla.heads.common.linear import LinearPosterior, identity_transform


@register_head("feature-transfer")
class FeatureTransfer(Head):
    """Softmax regression on the features of a network that was trained to classify the base classes.

    The "Baseline" of Chen et al., "A Closer Look at Few-shot Classification", 2019 (arXiv 1904.04232). The
    network is frozen; nothing is learned from episodes. See `GradientDescent` for the options.
    """

    base_stage = "linear"

    def __init__(
        self,
        feature_dim: int | None = None,
        *,
        epochs: int = 100,
        batch_size: int = 4,
        step_size: float = 0.01,
    ) -> None:
        super().__init__()
        self.descent = GradientDescent(epochs, batch_size, step_size)

    def adapt(
        self, support: Tensor, labels: Tensor, n_way: int, *, backbone: nn.Module | None = None
    ) -> LinearPosterior:
        """Fit weights and biases to features [..., n, d], from zero.

        Every gradient in w_j is a combination of the examples, so w_j = Σ_i A_ij φ_i throughout, and the
        descent runs on A [..., n, C] with the Gram matrix of the examples: a step's cost is independent of d.
        """
        check_episode(support, labels, n_way)
        member = class_one_hot(labels, n_way, support.dtype)
        phi = support.detach()
        gram = phi @ phi.mT

        def gradient(parameters: list[Tensor]) -> list[Tensor]:
            A, b = parameters
            residual = softmax_residual(gram @ A + b, member)
            return [residual, residual.sum(-2, keepdim=True)]

        start = [torch.zeros_like(member), torch.zeros_like(member[..., :1, :])]
        A, b = self.descent.minimise(start, gradient, labels.shape[-1])
        return LinearPosterior(A.mT @ phi, b.squeeze(-2), member.any(-2), identity_transform)
