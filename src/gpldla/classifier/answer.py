"""The answers for new items, from probabilities. Nothing here needs torch."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpldla.classifier.abstention import is_unsure
from gpldla.data.user_files import printable
from gpldla.utils.errors import UserError

UNSURE = "unsure"  # replaces the label in unsure answers


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
