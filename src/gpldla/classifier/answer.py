"""The answers for new items, from probabilities. Nothing here needs torch."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
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
    columns: what the table that the item comes from says about it, such as its id
    """

    item: str
    label: Any
    probability: float
    none_of_these: float | None
    unsure: bool
    probabilities: dict[Any, float]
    columns: dict[str, Any] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        """Return everything as JSON; `columns` only if there are any."""
        facts = vars(self) | {"probabilities": {str(k): v for k, v in self.probabilities.items()}}
        if not self.columns:
            del facts["columns"]
        return facts


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
    columns: Mapping[str, Sequence[Any]] | None = None,
) -> list[Answer]:
    """Return the answers for items with these probabilities [n, C] and [n].

    columns: further values of each item, which are passed on
    """
    unsure = is_unsure(proba, none_of_these, max_error).tolist()
    answers = []
    for row, item in enumerate(items):
        top = int(proba[row].argmax())
        none = None if none_of_these is None else float(none_of_these[row])
        probabilities = {name: float(p) for name, p in zip(classes, proba[row])}
        probability, others = (
            float(proba[row, top]),
            {n: values[row] for n, values in (columns or {}).items()},
        )
        answers.append(
            Answer(printable(item), classes[top], probability, none, unsure[row], probabilities, others)
        )
    return answers
