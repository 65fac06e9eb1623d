"""Drawing episodes: thousands at once, each determined by (seed, split, index) alone."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from gpldla.data import Part
from gpldla.utils.counter_random import splitmix64, stream
from gpldla.utils.errors import UserError

KEYS_PER_CHUNK = 4_000_000  # bounds the memory of one draw
_LAST = torch.iinfo(torch.int64).max


@dataclass(frozen=True)
class Episodes:
    """Image indices of many episodes, class after class.

    support: int64 [E, ways * shots]; labels: int64 [ways * shots]
    query:   int64 [E, ways * queries]; query_labels: int64 [ways * queries]
    classes: int64 [E, ways], indices of the classes in the part
    """

    support: Tensor
    labels: Tensor
    query: Tensor
    query_labels: Tensor
    classes: Tensor


def fold_indices(ways: int, shots: int, queries: int, folds: int) -> Tensor:
    """Return indices into an episode's images, support first, as each fold has them: [folds, n + q].

    The first fold leaves them as they were drawn. From fold to fold the images of each class are rotated,
    evenly over all of them: with 1 shot, 4 queries and 5 folds each image is the support once, and with as
    many folds as images per class and one query each image is the query once (leave-one-out).
    """
    support = torch.arange(ways * shots).view(ways, shots)
    query = ways * shots + torch.arange(ways * queries).view(ways, queries)
    of_class = torch.cat([support, query], dim=1)  # [ways, shots + queries]
    rotated = [of_class.roll(-(fold * (shots + queries) // folds), dims=1) for fold in range(folds)]
    return torch.stack([torch.cat([r[:, :shots].flatten(), r[:, shots:].flatten()]) for r in rotated])


class EpisodeSampler:
    """Draws episodes from the classes of a part; support and query never share an image.

    An episode depends on its index alone, not on those drawn before it, so that neither resuming nor the
    number of processes changes the episodes.

    separate_groups: take the support of a class from one group of images (one font family) and its query
    from the other groups
    """

    def __init__(
        self,
        part: Part,
        *,
        ways: int,
        shots: int,
        queries: int,
        seed: int,
        split: str,
        separate_groups: bool = False,
        device: torch.device | str = "cpu",
    ) -> None:
        for name, value, least in (("ways", ways, 2), ("shots", shots, 1), ("queries", queries, 1)):
            if value < least:
                raise UserError(f"{name} must be at least {least}, not {value}.")
        if len(part.counts) < ways:
            raise UserError(
                f"An episode of {ways} ways needs {ways} classes, and {part.image_set.name!r} has"
                f" {len(part.counts)} here; ask for fewer ways."
            )
        for name, count in zip(part.class_names, part.counts):
            if count < shots + queries:
                raise UserError(
                    f"Class {name!r} has {count} images, fewer than {shots} shots + {queries} queries;"
                    " ask for fewer or add images."
                )
        self.ways, self.shots, self.queries = ways, shots, queries
        self._stream = stream(seed, split)
        self._counts = torch.as_tensor(part.counts, device=device)
        self._offsets = self._counts.cumsum(0) - self._counts
        self._groups, self._support_groups = None, None
        if separate_groups:
            groups, eligible = _groups_by_class(part, shots, queries)
            self._groups, self._support_groups = groups.to(device), eligible.to(device)

    def draw(self, first: int, count: int) -> Episodes:
        """Return the episodes first .. first + count - 1."""
        chunk_size = max(1, KEYS_PER_CHUNK // (self.ways * int(self._counts.max()) + len(self._counts)))
        drawn = [
            self._draw(start, min(chunk_size, first + count - start))
            for start in range(first, first + count, chunk_size)
        ]
        classes, support, query = (torch.cat(tensors) for tensors in zip(*drawn))
        labels = torch.arange(self.ways, device=self._counts.device)
        return Episodes(
            support.flatten(1),
            labels.repeat_interleave(self.shots),
            query.flatten(1),
            labels.repeat_interleave(self.queries),
            classes,
        )

    def _draw(self, first: int, count: int) -> tuple[Tensor, Tensor, Tensor]:
        """Return classes [E, ways], support [E, ways, shots] and query [E, ways, queries]."""
        device = self._counts.device
        indices = torch.arange(first, first + count, device=device)
        episode_keys = splitmix64(indices + self._stream).unsqueeze(-1)  # [E, 1]
        class_keys = splitmix64(
            episode_keys + torch.arange(len(self._counts), device=device)
        )  # [E, n_classes]
        classes = _smallest(class_keys, self.ways)  # [E, ways]

        # One key per image of each chosen class; they do not depend on the position of the class.
        largest = int(self._counts.max())
        chosen_keys = splitmix64(class_keys.gather(1, classes) + 1).unsqueeze(-1)  # [E, ways, 1]
        image_indices = torch.arange(largest, device=device)
        image_keys = splitmix64(chosen_keys + image_indices)  # [E, ways, largest]
        exists = image_indices < self._counts[classes].unsqueeze(-1)
        if self._groups is None or self._support_groups is None:
            drawn = _smallest(image_keys.masked_fill(~exists, _LAST), self.shots + self.queries)
            support, query = drawn[..., : self.shots], drawn[..., self.shots :]
        else:
            n_groups = self._support_groups.shape[1]
            group_keys = splitmix64(splitmix64(chosen_keys + 2) + torch.arange(n_groups, device=device))
            group = _smallest(
                group_keys.masked_fill(~self._support_groups[classes], _LAST), 1
            )  # [E, ways, 1]
            in_group = self._groups[classes] == group  # [E, ways, largest]
            support = _smallest(image_keys.masked_fill(~(exists & in_group), _LAST), self.shots)
            query = _smallest(image_keys.masked_fill(~exists | in_group, _LAST), self.queries)
        offsets = self._offsets[classes].unsqueeze(-1)
        return classes, support + offsets, query + offsets


def _groups_by_class(part: Part, shots: int, queries: int) -> tuple[Tensor, Tensor]:
    """Return the group of each image [n_classes, largest], and which may be support [n_classes, n_groups]."""
    if part.groups is None:
        raise UserError(
            f"Data set {part.image_set.name!r} has no groups of images; leave separate_groups off."
        )
    n_groups = int(part.groups.max()) + 1
    groups = np.full((len(part.counts), part.counts.max()), -1)
    eligible = np.zeros((len(part.counts), n_groups), dtype=bool)
    starts = np.cumsum(part.counts) - part.counts
    for row, (name, start, count) in enumerate(zip(part.class_names, starts, part.counts)):
        groups[row, :count] = part.groups[start : start + count]
        sizes = np.bincount(groups[row, :count], minlength=n_groups)
        eligible[row] = (sizes >= shots) & (count - sizes >= queries)
        if not eligible[row].any():
            raise UserError(
                f"Class {name!r} has no group of {shots} images that leaves {queries} in its other groups"
                f" (sizes {sizes[sizes > 0].tolist()}); ask for fewer shots or queries."
            )
    return torch.from_numpy(groups), torch.from_numpy(eligible)


def _smallest(keys: Tensor, k: int) -> Tensor:
    """Return the indices of the k smallest keys of the last axis, sorted by key, which draws k at random."""
    return keys.topk(k, largest=False, sorted=True).indices
