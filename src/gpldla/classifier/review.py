"""What leaving each example out says about a classifier: which are mistaken, how far to trust it."""

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from gpldla.classifier.expected_accuracy import USES_OF_A_PAIR, jeffreys_interval
from gpldla.classifier.labels import class_indices, list_of_labels

if TYPE_CHECKING:
    from gpldla.classifier.few_shot import FewShotClassifier

SUSPECT_THRESHOLD = 0.7  # an example is suspect if another class has at least this probability
BINS = 10  # of the top probability


class Bin(NamedTuple):
    """Answers of much the same confidence: its mean, the share that is right, and its 90 % interval."""

    confidence: float
    accuracy: float
    low: float
    high: float
    answers: int


@dataclass(frozen=True)
class Review:
    """The answers for examples that are left out.

    indices [m]: the examples that can be left out, as their class has others
    truth [m]: the indices of their classes; proba [m, C]: by the classifier without them
    """

    classes: list[Any]
    indices: np.ndarray
    truth: np.ndarray
    proba: np.ndarray

    @classmethod
    def of(cls, classifier: "FewShotClassifier") -> "Review":
        """Leave out each example of a classifier."""
        classes = classifier.classes.tolist()
        proba = classifier.leave_one_out()
        labels = class_indices(list_of_labels(classifier.labels), classes).numpy()
        tested = np.flatnonzero(~np.isnan(proba).any(1))
        return cls(classes, tested, labels[tested], proba[tested])

    def __len__(self) -> int:
        return len(self.indices)

    @property
    def guess(self) -> np.ndarray:
        """The most probable class of each, [m]."""
        return self.proba.argmax(1) if len(self) else np.empty(0, int)

    @property
    def right(self) -> np.ndarray:
        """Whether it is the label, [m]."""
        right: np.ndarray = self.guess == self.truth
        return right

    @property
    def confidence(self) -> np.ndarray:
        """Its probability, [m]."""
        return self.proba.max(1) if len(self) else np.empty(0)

    def nll(self) -> float:
        """Return the mean of −log p(label)."""
        return mean_nll(self.proba[np.arange(len(self)), self.truth])

    def confused(self) -> list[tuple[Any, Any, int]]:
        """Return (label, taken for, how often), the most frequent pairs first."""
        wrong = ~self.right
        pairs = Counter(zip(self.truth[wrong].tolist(), self.guess[wrong].tolist()))
        return [(self.classes[a], self.classes[b], count) for (a, b), count in pairs.most_common()]

    def confusion(self) -> np.ndarray:
        """Return how often examples of each class (row) were taken for each class (column), [C, C]."""
        counts = np.zeros((len(self.classes), len(self.classes)), int)
        np.add.at(counts, (self.truth, self.guess), 1)
        return counts

    def suspects(self) -> np.ndarray:
        """Return the rows of examples whose labels the others contradict, the most certain first."""
        rows = np.flatnonzero(~self.right & (self.confidence >= SUSPECT_THRESHOLD))
        return rows[np.argsort(-self.confidence[rows], kind="stable")]

    def by_confidence(self) -> np.ndarray:
        """Return all rows, the least sure first."""
        return np.argsort(self.confidence, kind="stable")

    def bins(self) -> list[Bin]:
        """Return the bins that are not empty, of equal width.

        Each pair of examples of one class is used twice, so an interval is that of half as many.
        """
        place = np.clip(np.ceil(self.confidence * BINS).astype(int) - 1, 0, BINS - 1)
        found = []
        for rows in (np.flatnonzero(place == k) for k in range(BINS)):
            if len(rows):
                share = float(self.right[rows].mean())
                low, high = jeffreys_interval(share, len(rows) / USES_OF_A_PAIR)
                found.append(Bin(float(self.confidence[rows].mean()), share, low, high, len(rows)))
        return found


def mean_nll(own: np.ndarray) -> float:
    """Return the mean NLL of the true classes' probabilities [n]."""
    return float(-np.log(own.clip(1e-30, 1)).mean()) + 0.0  # no −0
