"""Leave-one-out summary of a classifier's own examples, and measurements on others."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from torch import Tensor

from gpldla.classifier.expected_accuracy import CONFIDENCE, ExpectedAccuracy
from gpldla.classifier.few_shot import FewShotClassifier
from gpldla.classifier.labels import list_of_labels
from gpldla.classifier.review import Review, mean_nll
from gpldla.data.user_files import printable

CONFUSIONS_SHOWN, SUSPECTS_SHOWN = 5, 10


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
    review: the answers for all examples that can be left out, from which this follows
    """

    counts: dict[Any, int]
    accuracy: float | None
    nll: float | None
    tested: int
    confused: list[tuple[Any, Any, int]]
    suspects: list[Suspect]
    expected: ExpectedAccuracy | None = None
    review: Review | None = field(default=None, compare=False, repr=False)

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
    review, counts = Review.of(classifier), Counter(list_of_labels(classifier.labels))
    suspects = [
        Suspect(
            printable(items[review.indices[row]]),
            review.classes[review.truth[row]],
            review.classes[review.guess[row]],
            float(review.confidence[row]),
        )
        for row in review.suspects()[:SUSPECTS_SHOWN]
    ]
    return FitSummary(
        {name: counts[name] for name in review.classes},
        float(100 * review.right.mean()) if len(review) else None,
        review.nll() if len(review) else None,
        len(review),
        review.confused()[:CONFUSIONS_SHOWN],
        suspects,
        classifier.expected_accuracy(),
        review,
    )


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
    return Measurement(len(known), right, mean_nll(own), len(labels) - len(known))
