"""Leave-one-out summary of a classifier's own examples, and measurements on others."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor

from gpldla.classifier.expected_accuracy import CONFIDENCE, ExpectedAccuracy
from gpldla.classifier.few_shot import FewShotClassifier
from gpldla.classifier.labels import class_indices, list_of_labels
from gpldla.data.user_files import printable

CONFUSIONS_SHOWN, SUSPECTS_SHOWN = 5, 10
SUSPECT_THRESHOLD = 0.7  # an example is suspect if another class has at least this probability


@dataclass(frozen=True)
class Suspect:
    """An example whose label is probably wrong, judging by the other examples."""

    item: str
    label: Any
    rather: Any  # the more probable label
    probability: float  # of `rather`, by the classifier without the example


@dataclass(frozen=True)
class FitSummary:
    """Leave-one-out results for the examples of a classifier.

    counts: examples per class; accuracy (percent) and nll: None if each class has only one example
    tested: number of examples that can be left out, as their class has others
    confused: (label, taken for, how often), the most frequent pairs
    expected: the accuracy to expect for new items; None where nothing can be said
    """

    counts: dict[Any, int]
    accuracy: float | None
    nll: float | None
    tested: int
    confused: list[tuple[Any, Any, int]]
    suspects: list[Suspect]
    expected: ExpectedAccuracy | None = None

    def as_json(self) -> dict[str, Any]:
        """Return everything as JSON."""
        return {
            "classes": {str(name): count for name, count in self.counts.items()},
            "leave_one_out": {"accuracy": self.accuracy, "nll": self.nll, "examples": self.tested},
            "expected": None if self.expected is None else _in_percent(self.expected),
            "confused": [{"label": a, "taken_for": b, "times": n} for a, b, n in self.confused],
            "suspects": [vars(suspect) for suspect in self.suspects],
        }


def _in_percent(expected: ExpectedAccuracy) -> dict[str, float]:
    shares = {"accuracy": expected.accuracy, "low": expected.low, "high": expected.high}
    return {name: 100 * share for name, share in shares.items()} | {"confidence": 100 * CONFIDENCE}


def summarise(classifier: FewShotClassifier, items: Sequence[Any]) -> FitSummary:
    """Return the leave-one-out results of a classifier; `items` are the names of its examples, in order."""
    classes = classifier.classes.tolist()
    proba, labels = (
        classifier.leave_one_out(),
        class_indices(list_of_labels(classifier.labels), classes).numpy(),
    )
    tested = np.flatnonzero(~np.isnan(proba).any(1))
    own = proba[tested, labels[tested]]
    guess = proba[tested].argmax(1) if len(tested) else np.empty(0, int)
    wrong = guess != labels[tested]
    pairs = Counter((classes[a], classes[b]) for a, b in zip(labels[tested][wrong], guess[wrong]))
    suspects = [
        Suspect(printable(items[index]), classes[labels[index]], classes[other], float(proba[index, other]))
        for index, other in zip(tested[wrong], guess[wrong])
        if proba[index, other] >= SUSPECT_THRESHOLD
    ]
    suspects.sort(key=lambda suspect: -suspect.probability)
    return FitSummary(
        {name: int((labels == index).sum()) for index, name in enumerate(classes)},
        float(100 * (1 - wrong.mean())) if len(tested) else None,
        _mean_nll(own) if len(tested) else None,
        len(tested),
        [(a, b, count) for (a, b), count in pairs.most_common(CONFUSIONS_SHOWN)],
        suspects[:SUSPECTS_SHOWN],
        classifier.expected_accuracy(),
    )


def _mean_nll(own: np.ndarray) -> float:
    """Return the mean NLL of the true classes' probabilities [n]."""
    return float(-np.log(own.clip(1e-30, 1)).mean()) + 0.0  # no −0


@dataclass(frozen=True)
class Measurement:
    """How well a classifier does on labelled items that it was not fitted to.

    accuracy (percent) and nll: of the items whose class it knows; unknown: how many others there are
    """

    count: int
    accuracy: float | None
    nll: float | None
    unknown: int

    def as_json(self) -> dict[str, Any]:
        """Return everything as JSON."""
        return vars(self).copy()

    def sentence(self, name: str) -> str:
        """Return a line for the terminal."""
        others = f"; {self.unknown} more are of classes that it does not know" if self.unknown else ""
        if self.accuracy is None or self.nll is None:
            return f"On {name}: none of the items is of a class that the classifier knows."
        return (
            f"On {name}: accuracy {self.accuracy:.1f} %, NLL {self.nll:.3f}, on {self.count} items{others}."
        )


def measure_on(classifier: FewShotClassifier, represented: Tensor, labels: Sequence[Any]) -> Measurement:
    """Measure on items as `FewShotModel.embed` represents them, [n, ...], with one label each."""
    index_of = {name: index for index, name in enumerate(classifier.classes.tolist())}
    known = [i for i, label in enumerate(labels) if label in index_of]
    if not known:
        return Measurement(0, None, None, len(labels))
    proba = classifier.probabilities(represented[known])
    truth = np.array([index_of[labels[i]] for i in known])
    own = proba[np.arange(len(known)), truth]
    right = float(100 * (proba.argmax(1) == truth).mean())
    return Measurement(len(known), right, _mean_nll(own), len(labels) - len(known))
