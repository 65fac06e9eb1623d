"""The constants of the one-shot prior, and their choice for a domain from all other domains."""

from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from itertools import product
from unittest import mock

import numpy as np

from benchmarks.honesty.tasks import Task, draw
from gpldla import GPLDLAClassifier
from gpldla.heads.gp import root, strangers


@dataclass(frozen=True)
class Constants:
    """The constants of `gpldla.heads.gp.strangers` and `root`; the defaults are those of the package."""

    scale: float = strangers.LOGIT_SCALE
    stabilised: float = root.STABILISED
    likeness: float = strangers.PRIOR_LIKENESS
    freedom: float = strangers.PRIOR_FREEDOM
    growth: float = strangers.GROWTH

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Compute with these constants."""
        values = {
            (strangers, "LOGIT_SCALE"): self.scale,
            (root, "STABILISED"): self.stabilised,
            (strangers, "PRIOR_LIKENESS"): self.likeness,
            (strangers, "PRIOR_FREEDOM"): self.freedom,
            (strangers, "GROWTH"): self.growth,
        }
        with ExitStack() as stack:
            for (module, name), value in values.items():
                stack.enter_context(mock.patch.object(module, name, value))
            yield


# What is tried with one example per class, and how the prior may grow with more.
SCALES, STABILISED = (1.2, 1.35, 1.5, 1.65), (0.0, 0.5, 1.0)
LIKENESSES, FREEDOMS = (0.2, 0.3, 0.45), (2.0, 4.0, 8.0)
ONE_SHOT = [Constants(*values) for values in product(SCALES, STABILISED, LIKENESSES, FREEDOMS)]
GROWTHS = (0.0, 1 / 3, 1 / 2)
# Tasks of a domain that a choice is made on, as shots of each class and their number
ONE_SHOT_TASKS: dict[tuple[int, ...], int] = {(1,) * 5: 16, (1,) * 20: 4}
MORE_SHOTS_TASKS: dict[tuple[int, ...], int] = {(2,) * 5: 8, (5,) * 5: 6, (10,) * 5: 4}


class Choice:
    """Constants by their NLL on all domains but one, which are then those of the domain left out.

    With one example per class the mean of log NLL counts. With more the mean of NLL does: that of an easy
    domain is nearly 0, and its logarithm would decide.
    """

    def __init__(self, domains: dict[str, tuple[np.ndarray, np.ndarray]]) -> None:
        self.domains = domains
        self._known: dict[tuple[str, Constants, int], float] = {}

    def without(self, name: str | None) -> Constants:
        """Return what is best on all domains but this one; None leaves none out."""
        others = [one for one in self.domains if one != name]
        best = min(ONE_SHOT, key=lambda c: self._mean(others, c, ONE_SHOT_TASKS))
        grown = [replace(best, growth=growth) for growth in GROWTHS]
        return min(grown, key=lambda c: self._mean(others, c, MORE_SHOTS_TASKS))

    def _mean(self, names: Iterable[str], constants: Constants, tasks: dict[tuple[int, ...], int]) -> float:
        return float(np.mean([self._score(name, constants, tasks) for name in names]))

    def _score(self, name: str, constants: Constants, tasks: dict[tuple[int, ...], int]) -> float:
        """Return the mean of NLL or its logarithm over the kinds of tasks that the domain has classes for."""
        key = (name, constants, len(tasks))
        if key not in self._known:
            X, y = self.domains[name]
            with constants.applied():
                kinds = [_mean_nll(X, list(draw(y, shots, count))) for shots, count in tasks.items()]
            found = np.array([nll for nll in kinds if nll is not None])
            self._known[key] = float(np.mean(np.log(found) if tasks is ONE_SHOT_TASKS else found))
        return self._known[key]


def _mean_nll(X: np.ndarray, tasks: list[Task]) -> float | None:
    found = []
    for task in tasks:
        log_prob = GPLDLAClassifier().fit(X[task.support], task.labels).predict_log_proba(X[task.query])
        found.append(-float(log_prob[np.arange(len(task.truth)), task.truth].clip(-30).mean()))
    return float(np.mean(found)) if found else None
