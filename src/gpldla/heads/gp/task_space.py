"""A task's own view of features that were not trained for it: centred, and whitened within the classes."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gpldla.heads.base import can_read_values, class_one_hot, unit_length
from gpldla.heads.gp.products import directions_by_products
from gpldla.heads.gp.root import rooted
from gpldla.utils.errors import UserError


@dataclass
class TaskSpace:
    """An affine map of features, z ↦ (z − c)·A^{-1/2}, found from the support set.

    normalize_first: rows are scaled to unit length first, so that long ones do not rule the mean
    center:     c [..., d], or None
    metric:     [d, d], a linear map learned elsewhere that comes first, or None
    directions: D [..., r, d], or None: z becomes z + (zDᵀ · shrink)D, which is z A^{-1/2}; its rows are
                orthonormal, the eigenvectors of S, except in graphs, see `products.py`
    shrink:     [..., r]: by how much the component along each of them changes, in [−1, 0]
    power:      [...], what features are raised to before everything else, see `root_power`; None is 1

    A = I + κS, where S is the scatter of the support around its class means and κS has as trace its degrees
    of freedom. That is the shared covariance of linear discriminant analysis under an inverse-Wishart prior
    around a multiple of I that weighs as much as d examples. Single examples have no scatter around their
    class means; `pooled_if_single` says what stands for it.
    """

    normalize_first: bool
    center: Tensor | None = None
    metric: Tensor | None = None
    directions: Tensor | None = None
    shrink: Tensor | None = None
    power: Tensor | None = None

    def __call__(self, features: Tensor) -> Tensor:
        """Map features, [..., n, d] → [..., n, d]."""
        z = rooted(features, self.power)
        z = unit_length(z) if self.normalize_first else z
        if self.center is not None:
            length2 = 1.0 if self.normalize_first else z.square().sum(-1, keepdim=True)
            z = zero_rounding_rows(z - self.center.unsqueeze(-2), length2)
        if self.metric is not None:
            z = z @ self.metric
        if self.directions is not None and self.shrink is not None:
            along = (z @ self.directions.mT) * self.shrink.unsqueeze(-2)  # [..., n, r]
            z = torch.addmm(z, along, self.directions) if z.ndim == 2 else z + along @ self.directions
        return z


def weighted_one_hot(labels: Tensor, n_way: int, weights: Tensor | None, dtype: torch.dtype) -> Tensor:
    """Return the membership matrix [..., n, n_way], with how often an example counts in place of 1."""
    member = class_one_hot(labels, n_way, dtype)
    return member if weights is None else member * weights.unsqueeze(-1)


def class_means(features: Tensor, member: Tensor) -> Tensor:
    """Return the weighted mean of each class [..., C, d]; 0 for a class without examples.

    features [..., n, d], member [..., n, C]: the weight of an example in the column of its class, else 0.
    """
    share = member / positive(member.sum(-2, keepdim=True))
    return share.mT @ features


def mean_of_class_means(features: Tensor, member: Tensor) -> Tensor:
    """Return the centre of the classes, however many examples each has: [..., d]."""
    present = (member.sum(-2) > 0).to(features.dtype)  # [..., C]
    weights = present / present.sum(-1, keepdim=True)
    return (weights.unsqueeze(-2) @ class_means(features, member)).squeeze(-2)


def within_class_directions(features: Tensor, member: Tensor) -> tuple[Tensor, Tensor]:
    """Return the directions [..., r, d] of A = I + κS and how A^{-1/2} shrinks them [..., r]."""
    weight = member.sum(-1, keepdim=True)  # [..., n, 1]
    residuals = (features - (member > 0).to(features.dtype) @ class_means(features, member)) * weight.sqrt()
    trace = zero_if_rounding(residuals.square().sum((-2, -1)), (features.square() * weight).sum((-2, -1)))
    return scatter_directions(residuals, scatter_scale(trace, member))


def scatter_directions(residuals: Tensor, kappa: Tensor) -> tuple[Tensor, Tensor]:
    """Return the directions [..., r, d] of A = I + κS and how A^{-1/2} shrinks them [..., r].

    residuals [..., n, d] with S = Σ r rᵀ; κ [...]
    In a graph the directions are others, with the same A^{-1/2}.
    """
    if torch.compiler.is_compiling():
        return directions_by_products(residuals, kappa)
    n, d = residuals.shape[-2:]
    if n <= d:
        values, vectors = torch.linalg.eigh(residuals @ residuals.mT)
        directions = vectors.mT @ residuals / positive(values).sqrt().unsqueeze(-1)
    else:
        values, vectors = torch.linalg.eigh(residuals.mT @ residuals)
        directions = vectors.mT
    # What rounding left of zero eigenvalues has no direction.
    real = values > values[..., -1:] * max(n, d) * torch.finfo(values.dtype).eps
    shrink = (1 + kappa.unsqueeze(-1) * values.clamp_min(0)).rsqrt() - 1
    if values.ndim == 1:
        return directions[real], shrink[real]
    return directions * real.unsqueeze(-1), shrink * real


def pooled_if_single(member: Tensor) -> Tensor:
    """Return the membership whose scatter stands for that within the classes, [..., n, C] → [..., n, C].

    Where every class has a single example, the scatter within classes is unknown, but examples of one class
    differ along much the same directions as examples of different classes: all examples, each once, are taken
    as one class.
    """
    single = all_single(member)[..., None, None]
    if can_read_values(single) and not bool(single.any()):
        return member
    first = torch.arange(member.shape[-1], device=member.device) == 0
    everything = (member.sum(-1, keepdim=True) > 0).to(member.dtype) * first.to(member.dtype)
    return torch.where(single, everything, member)


def all_single(member: Tensor) -> Tensor:
    """Return whether no class has a second example, [..., n, C] → [...]."""
    return ((member > 0).sum(-2) <= 1).all(-1)


def zero_rounding_rows(rows: Tensor, length2: Tensor | float) -> Tensor:
    """Return rows [..., n, d] with zeros for those that are what rounding leaves of a difference.

    length2 [..., n, 1]: the squared length of what was subtracted from
    """
    least = (32 * torch.finfo(rows.dtype).eps) ** 2
    real = rows.square().sum(-1, keepdim=True) > least * length2
    if can_read_values(real) and bool(real.all()):
        return rows
    return rows * real


def scatter_scale(trace: Tensor, member: Tensor) -> Tensor:
    """Return κ = (degrees of freedom) / trace S, [...]; 0 where all examples lie on their class means."""
    counts = member.sum(-2)
    freedom = (counts - (counts > 0).to(counts.dtype)).clamp_min(0).sum(-1)
    return (freedom / positive(trace)) * (trace > 0)


def zero_if_rounding(trace: Tensor, total: Tensor) -> Tensor:
    """Return the trace of S, or 0 where it is what rounding leaves of examples that are all alike."""
    return trace * (trace > 10 * torch.finfo(trace.dtype).eps * total)


def positive(x: Tensor) -> Tensor:
    """Return x with 1 for what is not positive, to divide by."""
    return x.where(x > 0, 1)


def as_square_matrix(metric: Any) -> Tensor:
    """Return a matrix as a saved model has it, in lists."""
    try:
        matrix = torch.tensor(metric, dtype=torch.get_default_dtype())
        if matrix.ndim == 2 and matrix.shape[0] == matrix.shape[1] and matrix.isfinite().all():
            return matrix
    except (TypeError, ValueError):
        pass
    raise UserError("metric must be a square matrix [d, d] of finite numbers.")


def for_each_task(function: Callable[[Tensor, Tensor], Tensor], features: Tensor, member: Tensor) -> Tensor:
    """Apply a function to the rows that count of each task, [..., n, d], [..., n, C]; stack the results."""
    tasks = zip(features.reshape(-1, *features.shape[-2:]), member.reshape(-1, *member.shape[-2:]))
    kept = [(rows, own, own.sum(-1) > 0) for rows, own in tasks]
    results = [function(rows[counts], own[counts]) for rows, own, counts in kept]
    return torch.stack(results).view(*member.shape[:-2], -1)
