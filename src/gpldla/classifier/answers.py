"""Leave-one-out summary of a classifier's own examples, and its answers for new items."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpldla.classifier.abstention import is_unsure
from gpldla.classifier.few_shot import FewShotClassifier
from gpldla.classifier.labels import class_indices, list_of_labels
from gpldla.data.user_files import printable
from gpldla.utils.errors import UserError

CONFUSIONS_SHOWN, SUSPECTS_SHOWN = 5, 10
SUSPECT_THRESHOLD = 0.7  # an example is suspect if another class has at least this probability
UNSURE = "unsure"  # replaces the label in unsure answers


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
    """

    counts: dict[Any, int]
    accuracy: float | None
    nll: float | None
    tested: int
    confused: list[tuple[Any, Any, int]]
    suspects: list[Suspect]

    def as_json(self) -> dict[str, Any]:
        """Return everything as JSON."""
        return {
            "classes": {str(name): count for name, count in self.counts.items()},
            "leave_one_out": {"accuracy": self.accuracy, "nll": self.nll, "examples": self.tested},
            "confused": [{"label": a, "taken_for": b, "times": n} for a, b, n in self.confused],
            "suspects": [vars(suspect) for suspect in self.suspects],
        }


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
        float(-np.log(own.clip(1e-30, 1)).mean()) + 0.0 if len(tested) else None,  # no −0
        len(tested),
        [(a, b, count) for (a, b), count in pairs.most_common(CONFUSIONS_SHOWN)],
        suspects[:SUSPECTS_SHOWN],
    )


@dataclass(frozen=True)
class Answer:
    """The answer for one item; `unsure` if its expected error exceeds the maximum that was asked for.

    The expected error counts both a wrong class and an item of no known class.
    """

    item: str
    label: Any
    probability: float
    none_of_these: float | None
    unsure: bool
    probabilities: dict[Any, float]

    def as_json(self) -> dict[str, Any]:
        """Return everything as JSON."""
        return vars(self) | {"probabilities": {str(k): v for k, v in self.probabilities.items()}}


def json_class_names(classes: np.ndarray) -> list[str]:
    """Return class names as strings, for files; refuse names that could not be told apart there."""
    names: dict[str, Any] = {}
    for label in classes.tolist():
        name = printable(label)
        if name in names:
            raise UserError(
                f"The classes {names[name]!r} and {label!r} are written alike; give them other names."
            )
        names[name] = label
    if UNSURE in names:
        raise UserError(f"A class is called {UNSURE!r}, which marks unsure answers; give it another name.")
    return list(names)


def answer(
    proba: np.ndarray,
    none_of_these: np.ndarray | None,
    items: Sequence[Any],
    classes: Sequence[Any],
    max_error: float,
) -> list[Answer]:
    """Return the answers for items with these probabilities [n, C] and [n]."""
    unsure = is_unsure(proba, none_of_these, max_error).tolist()
    answers = []
    for row, item in enumerate(items):
        top = int(proba[row].argmax())
        none = None if none_of_these is None else float(none_of_these[row])
        probabilities = {name: float(p) for name, p in zip(classes, proba[row])}
        answers.append(
            Answer(printable(item), classes[top], float(proba[row, top]), none, unsure[row], probabilities)
        )
    return answers
