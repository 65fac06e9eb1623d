"""How uncertain an answer is, and which part of that more examples could remove."""

import math
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from gpldla.heads.gp.predictive import normal_points
from gpldla.heads.gpldla_auto import TaskPosterior

POINTS = 1024  # quasi-random logits a query


class Uncertainty(NamedTuple):
    """In bits, arrays of one number a row: total = aleatoric + epistemic."""

    total: np.ndarray
    aleatoric: np.ndarray
    epistemic: np.ndarray


def uncertainty_of(posterior: TaskPosterior, query: Tensor) -> Tensor:
    """Return total, aleatoric and epistemic uncertainty of query features, [q, d] → [q, 3], in bits.

    Total: the entropy of the probabilities. Aleatoric: the mean entropy over classifiers drawn from the
    posterior. Epistemic: the difference, the mutual information of label and classifier, never negative.
    """
    values = max(1, (1 << 22) // (POINTS * posterior.diagonal.bias_mean.shape[-1]))
    return torch.cat([_of_few(posterior, part) for part in query.split(values, -2)])


def _of_few(posterior: TaskPosterior, query: Tensor) -> Tensor:
    z = posterior.space(query)
    mean, spread = posterior.inner.logits(z)
    points = normal_points(POINTS, mean.shape[-1]).to(mean)  # [points, C]
    if spread.ndim == mean.ndim:  # variances of independent logits
        noise = spread.sqrt() * points.unsqueeze(-2)
    else:  # a covariance, [q, C, C], with zeros for classes that cannot occur
        values, vectors = torch.linalg.eigh(spread)
        noise = (vectors * values.clamp_min(0).sqrt().unsqueeze(-2) @ points.T).movedim(-1, 0)
    total = _bits(posterior.inner.log_prob(z).exp())
    aleatoric = torch.minimum(_bits((mean + noise).softmax(-1)).mean(0), total)
    return torch.stack([total, aleatoric, total - aleatoric], -1)


def _bits(p: Tensor) -> Tensor:
    """Return the entropy of probabilities, [..., C] → [...]."""
    return torch.special.entr(p).sum(-1) / math.log(2)
