"""Which unlabelled items to label next: those whose labels would teach most about all the others.

The logit of every class is a Gaussian process with the covariance k(x, x') = φ(x)·φ(x'), see
`gpldla.heads.gp`. Given noisy observations at the labelled examples, K is the posterior covariance. A label
at x would reduce the variance at an item x* by

    K(x, x*)² / (K(x, x) + s²),

whatever the label is (V-optimal design: Cohn, Ghahramani and Jordan, "Active learning with statistical
models", 1996). It matters where the class is open: both ends are weighted by a(x) = 1 − Σ_c p(c | x)², the
probability that two draws of the label differ. The score of x is a(x) times the sum of a(x*) times this
reduction over the pool. After each choice K is conditioned on it, so that the choices of one batch differ.

An outlier teaches nothing about others, and of many similar items one is enough. Items of classes that have
no examples yet are far from all examples; they are found earlier than by chance without a term of their own.
"""

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from gpldla.classifier.task import AdaptedTask
from gpldla.utils.errors import UserError, require_count

# s²: the variance of an observation relative to that of the prior at unit length. Chosen among 0.03, 0.1,
# 0.3, 1 and 3 on photographs of miniImageNet's training and validation classes and on docstrings.
NOISE = 0.1
MAX_TARGETS = 1024  # items of the pool at which the variance is measured
MAX_CANDIDATES = 1 << 14  # items of the pool among which is chosen: bounds time and memory


class Suggestions(NamedTuple):
    """Items of a pool, the most informative first.

    indices [n]; gain [n]: the share of the pool's weighted variance that each label would remove
    """

    indices: np.ndarray
    gain: np.ndarray


def suggest(task: AdaptedTask, rows: Tensor, count: int) -> Suggestions:
    """Choose `count` of the unlabelled rows [q, ...], fewer if there are no more.

    Of a pool of more than MAX_CANDIDATES rows an even choice is looked at.
    """
    require_count(n=count)
    if not task.posterior.has_representation:
        raise UserError("This head has no kernel to choose with; use a model with the head 'gpldla-auto'.")
    if not len(rows):
        raise UserError("There is nothing to choose from; give at least one item.")
    looked_at = _evenly(len(rows), MAX_CANDIDATES).to(rows.device)
    pool = rows[looked_at]
    open_ = 1 - task.log_prob(pool).exp().square().sum(-1)  # a(x), [N]
    examples = task.require_examples()
    weights = examples.rows.new_ones(len(examples)) if examples.weights is None else examples.weights
    phi = task.in_chunks(pool, task.posterior.representation)
    known = task.in_chunks(examples.rows, task.posterior.representation)
    with torch.inference_mode():
        indices, gain = choose(phi.double(), known.double(), weights.double(), open_.double(), count)
    return Suggestions(looked_at[indices].cpu().numpy(), gain.cpu().numpy())


def choose(phi: Tensor, known: Tensor, weights: Tensor, open_: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Choose greedily among the pool's features [N, d]; return indices [n] and gains [n].

    known [L, d], weights [L]: the labelled examples, and how often each counts; open_ [N]: a(x)
    """
    targets = _evenly(len(phi), MAX_TARGETS).to(phi.device)
    posterior = _Conditioned(known, weights)
    cross = posterior.covariance(phi, phi[targets])  # K(x, x*), [N, M]
    variance = posterior.variance(phi)  # K(x, x), [N]
    weight = open_[targets]
    whole = (weight * variance[targets]).sum().clamp_min(1e-30)
    squares = cross.square() @ weight  # Σ a(x*) K(x, x*)², [N]
    taken = torch.zeros(len(phi), dtype=torch.bool, device=phi.device)
    factor = phi.new_zeros(len(phi), min(count, len(phi)))  # U: after the choices, K becomes K − UUᵀ
    chosen, gains = [], []
    for step in range(factor.shape[1]):
        reduction = squares.clamp_min(0) / (variance + NOISE)
        best = int((open_ * reduction).masked_fill(taken, -torch.inf).argmax())
        chosen.append(best)
        gains.append(float(reduction[best] / whole))
        column = posterior.covariance(phi, phi[best : best + 1]).squeeze(-1) - factor @ factor[best]
        u = column / (variance[best] + NOISE).sqrt()
        # Σ a (K − u u*)² = Σ a K² − 2u Σ a K u* + u² Σ a u*²
        weighted = weight * u[targets]
        mixed = cross @ weighted - factor @ (factor[targets].mT @ weighted)
        squares += u.square() * (weighted @ u[targets]) - 2 * u * mixed
        variance = (variance - u.square()).clamp_min(0)
        factor[:, step] = u
        taken[best] = True
    return torch.tensor(chosen, device=phi.device), torch.tensor(gains)


class _Conditioned:
    """Covariances of the Gaussian process given noisy observations at labelled examples [L, d].

    By whichever of the two inverses is smaller, [L, L] or [d, d]:
    K(x, x') = φ·φ' − φΦᵀ(ΦΦᵀ + N)⁻¹Φφ' = φ·(I + ΦᵀN⁻¹Φ)⁻¹φ', N the diagonal matrix of s²/weight
    """

    def __init__(self, known: Tensor, weights: Tensor) -> None:
        noise = NOISE / weights
        count, d = known.shape
        self._in_function_space = count <= d
        if self._in_function_space:
            factor = torch.linalg.cholesky(known @ known.mT + noise.diag())
            self._map = torch.linalg.solve_triangular(factor, known, upper=False)  # [L, d]
        else:
            precision = torch.eye(d, dtype=known.dtype, device=known.device)
            precision += (known / noise.unsqueeze(-1)).mT @ known
            factor = torch.linalg.cholesky(precision)
            self._map = torch.linalg.solve_triangular(factor, torch.eye(d).to(known), upper=False)  # [d, d]

    def covariance(self, x: Tensor, y: Tensor) -> Tensor:
        """Return K between rows [n, d] and [m, d]: [n, m]."""
        mapped: Tensor = (x @ self._map.mT) @ (y @ self._map.mT).mT
        return x @ y.mT - mapped if self._in_function_space else mapped

    def variance(self, x: Tensor) -> Tensor:
        """Return K(x, x) of rows [n, d]: [n]."""
        mapped = (x @ self._map.mT).square().sum(-1)
        variance: Tensor = x.square().sum(-1) - mapped if self._in_function_space else mapped
        return variance.clamp_min(0)


def _evenly(count: int, most: int) -> Tensor:
    """Return at most so many of the indices below `count`, at even distances."""
    return torch.linspace(0, count - 1, min(count, most)).round().long()
