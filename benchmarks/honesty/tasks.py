"""Tasks: a few examples of some classes, and other rows of the same classes to answer."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from benchmarks.honesty.domains import SEED

QUERIES = 15  # per class, at most


@dataclass(frozen=True)
class Task:
    """Indices of rows, and their classes."""

    support: np.ndarray
    labels: np.ndarray
    query: np.ndarray
    truth: np.ndarray


def draw(y: np.ndarray, shots: tuple[int, ...], count: int, *, twice: bool = False) -> Iterator[Task]:
    """Draw tasks with so many examples of each class; `twice` repeats the first example."""
    rng = np.random.default_rng([SEED, *shots])
    of_class = [np.flatnonzero(y == c) for c in np.unique(y)]
    of_class = [rows for rows in of_class if len(rows) >= max(shots) + 5]
    for _ in range(count if len(of_class) >= len(shots) else 0):
        support, labels, query, truth = [], [], [], []
        for label, place in enumerate(rng.choice(len(of_class), len(shots), replace=False)):
            rows = rng.permutation(of_class[place])[: shots[label] + QUERIES]
            support.append(rows[: shots[label]])
            query.append(rows[shots[label] :])
            labels.append(np.full(shots[label], label))
            truth.append(np.full(len(query[-1]), label))
        if twice:
            support.append(support[0][:1])
            labels.append(labels[0][:1])
        yield Task(*(np.concatenate(part) for part in (support, labels, query, truth)))
