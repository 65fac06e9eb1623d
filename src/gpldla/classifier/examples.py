"""The labelled examples of a task, and changes to them."""

import difflib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import PurePath
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gpldla.utils.errors import UserError

LISTED = 5  # examples that an error message names at most


@dataclass(frozen=True)
class Examples:
    """Labelled examples; every change returns a new object.

    rows:    what a head consumes [n, ...], such as features [n, d]
    labels:  indices of classes, int64 [n]
    weights: how often each example counts [n]; None: once each
    names:   the name of each example, such as the path of a picture; None if they have no names
    """

    rows: Tensor
    labels: Tensor
    weights: Tensor | None = None
    names: tuple[str, ...] | None = None

    def __len__(self) -> int:
        return len(self.rows)

    def add(self, more: "Examples") -> "Examples":
        """Return these examples and `more`, whose labels are indices of the same classes."""
        weights = None
        if self.weights is not None or more.weights is not None:
            weights = torch.cat([self._weights(), more._weights().to(self.rows)])
        names = None
        if self.names is not None or more.names is not None:
            names = (*self._names(), *more._names())
        labels = torch.cat([self.labels, more.labels.to(self.labels)])
        return Examples(torch.cat([self.rows, more.rows.to(self.rows)]), labels, weights, names)

    def relabel(self, indices: Sequence[int], labels: Tensor) -> "Examples":
        """Return the examples with other labels [k] for those at the k indices."""
        changed = self.labels.clone()
        changed[torch.as_tensor(indices, device=changed.device)] = labels.to(changed)
        return replace(self, labels=changed)

    def remove(self, indices: Sequence[int]) -> "Examples":
        """Return the examples without those at the indices."""
        kept = torch.ones(len(self), dtype=torch.bool, device=self.labels.device)
        kept[torch.as_tensor(indices, device=kept.device)] = False
        weights = None if self.weights is None else self.weights[kept]
        names = self.names
        if names is not None:
            names = tuple(name for name, is_kept in zip(names, kept.tolist()) if is_kept)
        return Examples(self.rows[kept], self.labels[kept], weights, names)

    def recode(self, new_index: Sequence[int]) -> "Examples":
        """Return the examples with classes in another order: class i becomes class new_index[i]."""
        return replace(self, labels=torch.as_tensor(new_index, device=self.labels.device)[self.labels])

    def find(self, which: Sequence[Any]) -> list[int]:
        """Return the indices of examples that are given by index, by name, or by the end of a path."""
        return [self._find_one(one) for one in which]

    def to(self, device: str | torch.device) -> "Examples":
        """Return the examples on another device."""
        weights = None if self.weights is None else self.weights.to(device)
        return replace(self, rows=self.rows.to(device), labels=self.labels.to(device), weights=weights)

    def _find_one(self, which: Any) -> int:
        if isinstance(which, (int, np.integer)) and not isinstance(which, bool):
            if not -len(self) <= which < len(self):
                raise UserError(f"There is no example {which}; there are {len(self)}, counted from 0.")
            return int(which) % len(self)
        name = str(which)
        if self.names is None:
            raise UserError(f"The examples have no names, so {name!r} cannot be found; give its index.")
        found = [index for index, known in enumerate(self.names) if known == name]
        if not found:  # or the end of a path, such as wren/1.jpg of photos/wren/1.jpg
            ending = PurePath(name).parts
            found = [i for i, known in enumerate(self.names) if ending and _ends_with(known, ending)]
        if not found:
            raise UserError(f"There is no example {name!r}{_nearest(name, self.names)}")
        if len(found) > 1:
            listed = ", ".join(f"{i} ({self.names[i]})" for i in found[:LISTED])
            more = f" and {len(found) - LISTED} more" if len(found) > LISTED else ""
            raise UserError(
                f"{len(found)} examples are called {name!r}; give the index of one: {listed}{more}."
            )
        return found[0]

    def _weights(self) -> Tensor:
        return self.rows.new_ones(len(self)) if self.weights is None else self.weights

    def _names(self) -> tuple[str, ...]:
        return ("",) * len(self) if self.names is None else self.names


def _ends_with(name: str, ending: tuple[str, ...]) -> bool:
    return PurePath(name).parts[-len(ending) :] == ending


def _nearest(name: str, names: Sequence[str]) -> str:
    """Return the end of a sentence that names the examples with the names most like this one."""
    by_end = {
        PurePath(known).name: known for known in names
    }  # what is misspelt is often given without folders
    near = difflib.get_close_matches(name, names, LISTED) or [
        by_end[end] for end in difflib.get_close_matches(PurePath(name).name, by_end, LISTED)
    ]
    if not near:
        return f"; there are {len(names)}, `gpldla info --items` lists them."
    quoted = [repr(one) for one in near]
    listed = quoted[0] if len(quoted) == 1 else f"{', '.join(quoted[:-1])} or {quoted[-1]}"
    return f"; did you mean {listed}?"


def list_of_examples(which: Any) -> list[Any]:
    """Return a user's choice of examples as a list; a single one is refused."""
    if isinstance(which, (str, bytes, PurePath)) or not hasattr(which, "__iter__"):
        raise UserError("Give a list of examples, not a single one.")
    return list(which)
