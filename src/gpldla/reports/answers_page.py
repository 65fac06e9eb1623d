"""The page of answers for new items: how many of what, the surest and the least sure, what to label next."""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from gpldla import __version__
from gpldla.classifier.answer import Answer
from gpldla.classifier.few_shot import FewShotClassifier
from gpldla.classifier.review import Review
from gpldla.data.user_files import printable
from gpldla.reports.fit_page import suggested_items
from gpldla.reports.html import write_answers_report
from gpldla.reports.plots import trust_plot
from gpldla.reports.shown_items import ShownItem, shown_item

LEAST_SURE, STRANGE, PER_CLASS = 12, 12, 6  # items shown
CLASSES_SHOWN = 25  # with examples of their surest answers
ROWS = 500  # of the table of all answers
STRANGER = 0.5  # the probability of "none of these" from which an item is shown as strange


@dataclass(frozen=True)
class AnsweredItems:
    """Answers for new items, in order.

    represented: the items as `FewShotModel.embed` represents them, [n, ...]
    file: that of the classifier; max_error, prevalence: with which answers were called unsure
    """

    classifier: FewShotClassifier
    answers: Sequence[Answer]
    items: Sequence[Any]
    represented: Tensor
    file: Path
    max_error: float
    prevalence: float

    @property
    def reads(self) -> str:
        """What the items are, "pictures" or "texts"."""
        return self.classifier.model.backbone.reads


def write_answers_page(path: Path, given: AnsweredItems) -> None:
    """Write the page as one self-contained file."""
    answers, classifier = given.answers, given.classifier
    correct = np.array([one.probability * (1 - (one.none_of_these or 0)) for one in answers])
    unsure = np.array([one.unsure for one in answers], bool)
    least_sure = np.argsort(correct, kind="stable")[:LEAST_SURE]
    none = np.array([one.none_of_these or 0 for one in answers])
    strange = [i for i in np.argsort(-none, kind="stable").tolist() if none[i] >= STRANGER]
    write_answers_report(
        path,
        {
            "version": __version__,
            "file": str(given.file),
            "quoted_file": shlex.quote(str(given.file)),
            "title": given.file.stem,
            "reads": given.reads,
            "thing": given.reads[:-1],
            "n": len(answers),
            "answered": int((~unsure).sum()),
            "unsure": int(unsure.sum()),
            "expected_right": float(correct[~unsure].mean()) if (~unsure).any() else None,
            "expected_strangers": _sum_of_strangers(answers),
            "max_error": given.max_error,
            "prevalence": given.prevalence,
            "classes": _class_rows(answers),
            "least_sure": [_shown(given, i) for i in least_sure.tolist()],
            "strange": [_shown(given, i) for i in strange[:STRANGE]],
            "n_strange": len(strange),
            "surest": _surest_of_classes(given, correct),
            "next": suggested_items(classifier, given.items, given.represented),
            "trust": _trust(classifier),
            "rows": list(answers[:ROWS]),
        },
    )


def _sum_of_strangers(answers: Sequence[Answer]) -> float | None:
    known = [one.none_of_these for one in answers if one.none_of_these is not None]
    return sum(known) if known else None


def _class_rows(answers: Sequence[Answer]) -> list[dict[str, Any]]:
    """Return how many answers are of each class, the most frequent first."""
    counts: dict[Any, list[int]] = {name: [0, 0] for name in answers[0].probabilities}
    for one in answers:
        counts[one.label][one.unsure] += 1
    rows = [{"name": printable(name), "sure": sure, "unsure": not_} for name, (sure, not_) in counts.items()]
    return sorted(rows, key=lambda row: -row["sure"] - row["unsure"])


def _surest_of_classes(given: AnsweredItems, correct: np.ndarray) -> list[tuple[str, list[ShownItem]]]:
    """Return the surest answers of each class, of the most frequent classes."""
    of_class: dict[Any, list[int]] = {}
    for i in np.argsort(-correct, kind="stable").tolist():
        if not given.answers[i].unsure:
            of_class.setdefault(given.answers[i].label, []).append(i)
    largest = sorted(of_class.items(), key=lambda pair: -len(pair[1]))[:CLASSES_SHOWN]
    return [(printable(name), [_shown(given, i) for i in rows[:PER_CLASS]]) for name, rows in largest]


def _shown(given: AnsweredItems, i: int) -> ShownItem:
    one = given.answers[i]
    note = "" if one.none_of_these is None else f"none of these: {100 * one.none_of_these:.0f} %"
    proba = np.array(list(one.probabilities.values()))
    return shown_item(given.items[i], proba, list(one.probabilities), reads=given.reads, note=note)


def _trust(classifier: FewShotClassifier) -> dict[str, Any] | None:
    """Return how the classifier does on its own examples, where its file has kept them."""
    if classifier.task.examples is None:
        return None
    review = Review.of(classifier)
    if not len(review):
        return None
    return {
        "plot": trust_plot(review.bins()),
        "tested": len(review),
        "right": int(review.right.sum()),
        "expected": classifier.expected_accuracy(),
    }
