"""LLAMA: MAML whose outer loss has the Laplace term of a hierarchical Bayesian model."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gpldla.heads.base import register_head
from gpldla.heads.common.adapted_network import (
    AdaptedNetworkPosterior,
    Weights,
    adapted_features,
    network_weights,
    with_batch_statistics,
)
from gpldla.heads.common.kfac import fisher_log_det, recorded_layers
from gpldla.heads.maml import MAML
from gpldla.utils.errors import require_positive


@register_head("llama")
class LLAMA(MAML):
    """MAML with the log-determinant of a curvature of the query's likelihood in the outer loss.

    Grant, Finn, Levine, Darrell and Griffiths, "Recasting Gradient-Based Meta-Learning as Hierarchical
    Bayes", 2018 (arXiv 1801.08930). The curvature is a Kronecker-factored Fisher matrix at the adapted
    weights, without the scales and shifts of BatchNorm, which are not adapted either. A prediction is that of
    MAML: the term changes the training alone.

    curvature: weight η of the term
    damping:   part of the mean of each factor's diagonal that is added to it
    """

    def __init__(
        self,
        feature_dim: int | None = None,
        *,
        steps: int = 5,
        step_size: float = 0.01,
        first_order: bool = False,
        ways: int = 0,
        curvature: float = 1e-6,
        damping: float = 1e-3,
    ) -> None:
        super().__init__(feature_dim, steps=steps, step_size=step_size, first_order=first_order, ways=ways)
        require_positive(curvature=curvature, damping=damping)
        self.curvature, self.damping = curvature, damping

    def adapted_weights(self, backbone: nn.Module | None) -> Weights:
        """Return the parameters of the network but those of BatchNorm."""
        return network_weights(backbone, without_norms=True)

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
        """Return −log p(query) as a mean, plus η/2·log det of the curvature as a mean over tasks."""
        posterior = self.adapt(support, labels, n_way, backbone=backbone)
        batch = labels.shape[:-1]
        tasks = query.reshape(batch.numel(), *query.shape[len(batch) :])
        y = query_labels.reshape(batch.numel(), -1).long()
        losses = [self._task_loss(posterior, task, tasks[task], y[task]) for task in range(len(tasks))]
        return torch.stack(losses).mean()

    @torch.enable_grad()
    def _task_loss(self, posterior: AdaptedNetworkPosterior, task: int, query: Tensor, y: Tensor) -> Tensor:
        """Return the loss of one task of a batch from its queries [q, ...] with labels [q]."""
        weights = {n: w[task] for n, w in posterior.weights.items()}
        weights = {n: w if w.requires_grad else w.detach().requires_grad_() for n, w in weights.items()}
        network = with_batch_statistics(posterior.backbone)
        if network is not None:
            network.eval()  # in which blocks call each layer by itself; their BatchNorm is not affected
        present = posterior.present.reshape(-1, posterior.present.shape[-1])[task]
        with recorded_layers(network) as record:
            features = adapted_features(network, weights, query)
        outputs = features @ weights["rows"].mT + weights["biases"]
        record.add(features.unsqueeze(1), outputs)
        log_prob = outputs.masked_fill(~present, -math.inf).log_softmax(-1)
        term = fisher_log_det(record, log_prob, self.damping) / 2
        return F.nll_loss(log_prob, y) + self.curvature * term
