"""Answers for items: probabilities, the most similar examples, and why, in a sentence."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from gpldla.classifier.abstention import MAX_ERROR, PREVALENCE
from gpldla.classifier.answer import Answer, answer
from gpldla.classifier.few_shot import FewShotClassifier
from gpldla.server.batching import Together
from gpldla.server.problems import Problem
from gpldla.utils.errors import UserError

NEAREST = 5


@dataclass(frozen=True)
class Explained:
    """An answer; nearest: (index of an example, cosine), the most similar first."""

    answer: Answer
    reason: str
    nearest: list[tuple[int, float]]

    @property
    def ranked(self) -> list[tuple[str, float]]:
        """The classes and their probabilities, the most probable first."""
        pairs = [(str(name), p) for name, p in self.answer.probabilities.items()]
        return sorted(pairs, key=lambda pair: -pair[1])


class Explainer:
    """Answers of one classifier, and what they need of its examples, computed once."""

    def __init__(self, classifier: FewShotClassifier) -> None:
        self._classifier = classifier
        self._classes = [str(name) for name in classifier.classes.tolist()]
        examples = classifier.task.examples
        self._labels = [] if examples is None else [str(label) for label in classifier.labels.tolist()]
        self._known = None if examples is None else self._directions(examples.rows)  # [n, d]
        self.together = Together(self.explain)  # for requests

    def explain(self, rows: np.ndarray, names: Sequence[str]) -> list[Explained]:
        """Return the answers for items with these features [n, ...]."""
        classifier = self._classifier
        represented = torch.from_numpy(rows).to(classifier.model.device)
        try:
            proba = classifier.probabilities(represented)
        except UserError:
            raise Problem(
                409, "The features of the examples are too large to compute with; make the task anew."
            ) from None
        none = classifier.novelty_of(represented, PREVALENCE) if classifier.has_novelty else None
        answers = answer(proba, none, names, self._classes, MAX_ERROR)
        return [
            Explained(one, _reason(one, [self._labels[index] for index, _ in near]), near)
            for one, near in zip(answers, self._nearest(represented))
        ]

    def _nearest(self, rows: Tensor) -> list[list[tuple[int, float]]]:
        """Return for each row the most similar examples by cosine, as the classifier represents them."""
        if self._known is None:
            return [[] for _ in rows]
        cosine, index = (self._directions(rows) @ self._known.mT).topk(min(NEAREST, len(self._known)), dim=1)
        return [list(zip(i, c)) for i, c in zip(index.tolist(), cosine.tolist())]

    def _directions(self, rows: Tensor) -> Tensor:
        """Return rows [n, ...] as the classifier represents them, at unit length, [n, d]."""
        task = self._classifier.task
        if task.posterior.has_representation:
            rows = task.in_chunks(rows, task.posterior.representation)
        return torch.nn.functional.normalize(rows.flatten(1), dim=1)


def _reason(one: Answer, near: list[str]) -> str:
    """Say in a sentence what the answer rests on, or what keeps it from being sure."""
    if one.none_of_these is not None and one.none_of_these > 0.5:
        return "It resembles none of the examples enough to be of one of these classes."
    second = max((p for name, p in one.probabilities.items() if name != one.label), default=0.0)
    rival = next((name for name, p in one.probabilities.items() if name != one.label and p == second), None)
    if one.unsure and rival is not None and second > one.probability / 2:
        return f"It lies between {one.label} and {rival}: more examples of both would tell them apart."
    if not near:
        return f"It fits {one.label} better than the other classes."
    alike = sum(label == one.label for label in near)
    which = f"{alike} of the {len(near)} most similar examples are {one.label}"
    if alike == 0:
        return f"It fits {one.label} as a whole, though the most similar examples are of other classes."
    if one.unsure:
        return f"{which}, but not alike enough to be sure."
    return f"{which}."
