"""Examples by their content: copies are merged, and the order that they are given in does not matter."""

import math
from functools import lru_cache

import torch
from torch import Tensor

VALUES_PER_CHUNK = 1 << 20
KEY_TOLERANCE = 1e-9  # keys of equal rows may differ by rounding
BLOCK = 8  # examples of a class that stay together: of classes with two examples, both


def content_keys(features: Tensor) -> Tensor:
    """Return the projection of each unit row on a fixed vector, [..., n, d] → float64 [..., n]."""
    d = features.shape[-1]
    direction, rows = _direction(d, features.device), features.reshape(-1, d)
    keys = [_keys(chunk, direction) for chunk in rows.split(max(1, VALUES_PER_CHUNK // max(1, d)))]
    return torch.cat(keys).view(features.shape[:-1])


def _keys(rows: Tensor, direction: Tensor) -> Tensor:
    rows = rows.double()
    keys: Tensor = rows @ direction / torch.linalg.vector_norm(rows, dim=-1).clamp_min(1e-300)
    return keys


@lru_cache(maxsize=8)
def _direction(d: int, device: torch.device) -> Tensor:
    with torch.inference_mode(False):  # it outlives the mode that it is first needed in
        return torch.randn(d, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).to(device)


def find_copies(features: Tensor, labels: Tensor) -> Tensor | None:
    """Return for every row of [..., n, d] the index [..., n] of the earliest equal row of its class.

    None where all rows of a class differ.
    """
    n, keys = labels.shape[-1], content_keys(features)
    if not bool((keys.sort(-1).values.diff(dim=-1) <= KEY_TOLERANCE).any()):
        return None
    order = class_order(labels, keys)
    by_key, by_label = keys.gather(-1, order), labels.gather(-1, order)
    close = by_key.diff(dim=-1).abs() <= KEY_TOLERANCE
    close &= by_label.diff(dim=-1) == 0
    rows, position = features.reshape(-1, *features.shape[-2:]), torch.nonzero(close.reshape(-1, n - 1))
    flat_order = order.reshape(-1, n)
    first, second = (rows[position[:, 0], flat_order[position[:, 0], position[:, 1] + k]] for k in (0, 1))
    same = torch.zeros_like(close.reshape(-1, n - 1))
    same[position[:, 0], position[:, 1]] = (first == second).all(-1)
    if not bool(same.any()):
        return None
    group = torch.cat([same.new_zeros(len(same), 1), ~same], -1).cumsum(-1)  # of each row in `order`
    earliest = torch.full_like(flat_order, n).scatter_reduce_(-1, group, flat_order, "amin")
    return (
        torch.empty_like(flat_order).scatter_(-1, flat_order, earliest.gather(-1, group)).view(labels.shape)
    )


def merge_copies(
    features: Tensor, labels: Tensor, weights: Tensor | None
) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
    """Merge equal rows of a class to one row with their weight, [..., n, d], [..., n], [..., n].

    Returns features, labels and weights, and for every row its place [..., n] among them: None where all
    differ. A batch keeps its rows; those that were merged into others have weight 0.
    """
    earliest = find_copies(features.detach(), labels)
    if earliest is None:
        return features, labels, weights, None
    weights = torch.ones_like(labels, dtype=features.dtype) if weights is None else weights.to(features)
    weights = torch.zeros_like(weights).scatter_add_(-1, earliest, weights)
    if labels.ndim > 1:
        return features, labels, weights, earliest
    kept = earliest == torch.arange(len(labels), device=labels.device)
    return features[kept], labels[kept], weights[kept], (kept.cumsum(0) - 1)[earliest]


def class_order(labels: Tensor, keys: Tensor | None) -> Tensor:
    """Return indices [..., n] that sort by class [..., n], and within a class by `keys` or as given."""
    if keys is None:
        return torch.argsort(labels, dim=-1, stable=True)
    by_key = torch.argsort(keys, dim=-1, stable=True)
    return by_key.gather(-1, torch.argsort(labels.gather(-1, by_key), dim=-1, stable=True))


def balanced_subset(labels: Tensor, most: int, keys: Tensor | None = None) -> Tensor:
    """Return indices of examples [..., k], class by class, of all [..., n] or evenly of at most `most`."""
    n = labels.shape[-1]
    kept = class_order(labels, keys)
    if n <= most:
        return kept
    blocks = torch.arange(n, device=labels.device) // BLOCK
    return kept[..., blocks % math.ceil(n / most) == 0]


def balanced_part(support: Tensor, member: Tensor, most: int, *, by_content: bool) -> tuple[Tensor, Tensor]:
    """Return the rows of support [..., n, d] and member [..., n, C] that `balanced_subset` chooses."""
    kept = balanced_subset(member.argmax(-1), most, content_keys(support) if by_content else None)
    index = kept.unsqueeze(-1)
    return (
        support.gather(-2, index.expand(*kept.shape, support.shape[-1])),
        member.gather(-2, index.expand(*kept.shape, member.shape[-1])),
    )
