"""How uncertain an answer is, and which part of that more examples could remove."""

import math
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from gpldla.heads import Posterior
from gpldla.heads.gp.predictive import normal_points

POINTS_PER_QUERY = 1024  # quasi-random logits
VALUES_PER_CHUNK = 1 << 22  # of logits: bounds the memory


class Uncertainty(NamedTuple):
    """In bits, arrays with one value per row: total = aleatoric + epistemic."""

    total: np.ndarray
    aleatoric: np.ndarray
    epistemic: np.ndarray


def uncertainty_of(posterior: Posterior, query: Tensor) -> Tensor:
    """Return total, aleatoric and epistemic uncertainty of query features, [q, d] → [q, 3], in bits.

    Total: the entropy of the probabilities. Aleatoric: the mean entropy over classifiers drawn from the
    posterior. Epistemic: the difference, the mutual information of label and classifier, never negative.
    """
    n_way = posterior.logits(query[:1])[0].shape[-1]
    step = max(1, VALUES_PER_CHUNK // (POINTS_PER_QUERY * n_way))
    return torch.cat([_of_chunk(posterior, part) for part in torch.split(query, step)])


def _of_chunk(posterior: Posterior, query: Tensor) -> Tensor:
    mean, spread = posterior.logits(query)
    uncertain = posterior.rescaled(mean, mean.new_zeros(())) is not None  # then the scale is drawn, too
    points = normal_points(POINTS_PER_QUERY, mean.shape[-1] + uncertain).to(mean)  # [points, C or C + 1]
    rescaled = posterior.rescaled(mean, points[:, -1, None, None])  # [points, q, C], or None
    points = points[:, : mean.shape[-1]]
    if spread.ndim == mean.ndim:  # variances of independent logits
        noise = spread.sqrt() * points.unsqueeze(-2)
    else:  # a covariance, [q, C, C], with zeros for classes that cannot occur
        values, vectors = torch.linalg.eigh(spread)
        noise = (vectors * values.clamp_min(0).sqrt().unsqueeze(-2) @ points.T).movedim(-1, 0)
    total = _bits(posterior.log_prob(query).exp())
    drawn = ((mean if rescaled is None else rescaled) + noise).softmax(-1)
    aleatoric = torch.minimum(_bits(drawn).mean(0), total)
    return torch.stack([total, aleatoric, total - aleatoric], -1)


def _bits(p: Tensor) -> Tensor:
    """Return the entropy of probabilities, [..., C] → [...]."""
    bits: Tensor = torch.special.entr(p).sum(-1) / math.log(2)
    return bits
