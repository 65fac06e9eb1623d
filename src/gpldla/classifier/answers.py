"""What a classifier says of the examples it was made from, and of new ones."""

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
SUSPECT_THRESHOLD = 0.7  # the probability of another class from which on a label is doubted
UNSURE = "unsure"  # what stands for a label in answers that are too doubtful


@dataclass(frozen=True)
class Suspect:
    """An example that the others speak against."""

    item: str
    label: Any
    rather: Any
    probability: float  # of `rather`, without the example


@dataclass(frozen=True)
class FitSummary:
    """What the examples say about themselves.

    counts: examples a class; accuracy (percent) and nll: leave-one-out, None where each class has only one
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
    """Leave each of the classifier's examples out in turn; `items` are their names, in order."""
    classes = classifier.classes.tolist()
    proba, numbers = (
        classifier.leave_one_out(),
        class_indices(list_of_labels(classifier.labels), classes).numpy(),
    )
    tested = np.flatnonzero(~np.isnan(proba).any(1))
    own = proba[tested, numbers[tested]]
    guess = proba[tested].argmax(1) if len(tested) else np.empty(0, int)
    wrong = guess != numbers[tested]
    pairs = Counter((classes[a], classes[b]) for a, b in zip(numbers[tested][wrong], guess[wrong]))
    suspects = [
        Suspect(
            printable(items[place]), classes[numbers[place]], classes[number], float(proba[place, number])
        )
        for place, number in zip(tested[wrong], guess[wrong])
        if proba[place, number] >= SUSPECT_THRESHOLD
    ]
    suspects.sort(key=lambda suspect: -suspect.probability)
    return FitSummary(
        {name: int((numbers == number).sum()) for number, name in enumerate(classes)},
        float(100 * (1 - wrong.mean())) if len(tested) else None,
        float(-np.log(own.clip(1e-30, 1)).mean()) + 0.0 if len(tested) else None,  # no −0
        len(tested),
        [(a, b, count) for (a, b), count in pairs.most_common(CONFUSIONS_SHOWN)],
        suspects[:SUSPECTS_SHOWN],
    )


@dataclass(frozen=True)
class Answer:
    """What is said of one item: `unsure` where the expected error is larger than asked for.

    The expected error counts both mistaking one class for another and an item of no known class.
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
    """Return classes as files have them; what could be mistaken there is refused."""
    names: dict[str, Any] = {}
    for label in classes.tolist():
        name = printable(label)
        if name in names:
            raise UserError(
                f"The classes {names[name]!r} and {label!r} are written alike; give them other names."
            )
        names[name] = label
    if UNSURE in names:
        raise UserError(f"A class is called {UNSURE!r}, as doubtful answers are; give it another name.")
    return list(names)


def answer(
    proba: np.ndarray,
    none_of_these: np.ndarray | None,
    items: Sequence[Any],
    classes: Sequence[Any],
    max_error: float,
) -> list[Answer]:
    """Put probabilities [n, C] and [n] into words."""
    unsure = is_unsure(proba, none_of_these, max_error).tolist()
    answers = []
    for place, item in enumerate(items):
        top = int(proba[place].argmax())
        none = None if none_of_these is None else float(none_of_these[place])
        probabilities = {name: float(p) for name, p in zip(classes, proba[place])}
        answers.append(
            Answer(
                printable(item), classes[top], float(proba[place, top]), none, unsure[place], probabilities
            )
        )
    return answers
