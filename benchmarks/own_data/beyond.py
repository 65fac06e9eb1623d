"""Unknown classes, abstaining, and the full covariance beside the diagonal one."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score

from benchmarks.own_data.common import (
    FLOOR,
    LOGISTIC,
    META,
    OURS,
    QUERIES,
    Numbers,
    percent,
    with_interval,
)
from benchmarks.own_data.data import Data, draw_tasks
from benchmarks.own_data.methods import meta_fitted
from gpldla import AbstainingClassifier, GPLDLAClassifier
from gpldla.classifier.calibration import reliability
from gpldla.utils.progress import SILENT, Reporter

MAX_ERROR = 0.05  # of an answer, for AbstainingClassifier


@dataclass(frozen=True)
class OpenTasks:
    """Tasks that also have queries of as many other classes, which are not in the support."""

    data: Data
    ways: int
    shots: int
    tasks: int

    def draw(self) -> Iterable[tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]]:
        """Yield support [n, d], its labels [n], queries [q, d] and queries of other classes [u, d]."""
        labels = np.repeat(np.arange(self.ways), self.shots)
        for task in draw_tasks(self.data.labels, self.ways, self.shots, self.tasks, outside=self.ways):
            support, query, outside = (
                self.data.features[rows] for rows in (task.support, task.query, task.outside)
            )
            yield support, labels, query, outside

    @property
    def facts(self) -> Numbers:
        """What the rows store about it."""
        return {"ways": self.ways, "shots": self.shots, "tasks": self.tasks}

    @property
    def truth(self) -> np.ndarray:
        """The classes of the queries [q]."""
        return np.repeat(np.arange(self.ways), QUERIES)


def measure_unknown(
    cell: OpenTasks, scale: float, reporter: Reporter = SILENT
) -> tuple[list[Numbers], list[Numbers]]:
    """Return rows of how well each score detects unknown classes, and of what abstaining gives."""
    prior = meta_fitted(cell.data, cell.ways, cell.shots, scale)
    classifiers = {OURS: GPLDLAClassifier(), META: prior, LOGISTIC: LogisticRegression(max_iter=1000)}
    scores: dict[tuple[str, str], list[np.ndarray]] = {}  # known queries, then unknown ones
    kept: dict[str, list[np.ndarray]] = {title: [] for title in classifiers}  # [answered, right, sure] × q
    with reporter.bar(f"none of these, {cell.ways}-way {cell.shots}-shot", cell.tasks) as advance:
        for support, labels, query, outside in cell.draw():
            both = np.concatenate([query, outside])
            for title, classifier in classifiers.items():
                if classifier is None:
                    continue
                classifier.fit(support, labels)
                if isinstance(classifier, GPLDLAClassifier):
                    scores.setdefault((title, "none_of_these"), []).append(classifier.none_of_these(both))
                error = 1 - classifier.predict_proba(both).max(1)
                scores.setdefault((title, "1 − largest probability"), []).append(error)
                abstaining = AbstainingClassifier(classifier, max_error=MAX_ERROR, prevalence=0)
                proba = classifier.predict_proba(query)
                right = proba.argmax(1) == cell.truth
                kept[title].append(np.stack([abstaining.answered(query), right, proba.max(1)]))
            advance(1)
    return _unknown_rows(cell, scores), _abstaining_rows(cell, kept)


def _unknown_rows(cell: OpenTasks, scores: Mapping[tuple[str, str], list[np.ndarray]]) -> list[Numbers]:
    rows = []
    is_unknown = np.repeat([0, 1], len(cell.truth))
    for (title, score), values in scores.items():
        area = np.array([100 * roc_auc_score(is_unknown, own) for own in values])
        row = {**cell.facts, "method": title, "score": score, **with_interval("auroc", area, 2)}
        if score == "none_of_these":
            p = torch.from_numpy(np.concatenate(values).astype(np.float64)).clamp(FLOOR, 1 - FLOOR)
            truth = torch.from_numpy(np.tile(is_unknown, len(values)))
            row["ece"] = round(reliability(torch.stack([1 - p, p], -1).log(), truth).error, 2)
        rows.append(row)
    return rows


def _abstaining_rows(cell: OpenTasks, kept: Mapping[str, list[np.ndarray]]) -> list[Numbers]:
    rows = []
    for title, parts in kept.items():
        if parts:
            answered, right, sure = np.concatenate(parts, axis=1)
            of_answered = answered > 0
            rows.append(
                {
                    **cell.facts,
                    "method": title,
                    "max_error": MAX_ERROR,
                    "answered": round(100 * float(answered.mean()), 2),
                    "accuracy": percent(right[of_answered]),
                    "expected_accuracy": percent(sure[of_answered]),
                    "accuracy_of_all": percent(right),
                }
            )
    return rows


def measure_covariance(
    name: str, cell: OpenTasks, settings: Mapping[str, Any], reporter: Reporter = SILENT
) -> list[Numbers]:
    """Return a row for the diagonal covariance and one for the full one, with the differences."""
    measured: dict[str, dict[str, list[float]]] = {"diag": {}, "full": {}}
    with reporter.bar(f"covariances, {name}", cell.tasks) as advance:
        for support, labels, query, outside in cell.draw():
            for covariance, numbers in measured.items():
                classifier = GPLDLAClassifier(covariance=covariance, **settings).fit(support, labels)  # type: ignore[arg-type]
                for key, value in _uncertainty_numbers(classifier, query, outside, cell.truth).items():
                    numbers.setdefault(key, []).append(value)
            advance(1)
    rows = []
    for covariance, numbers in measured.items():
        row = {"data": name, **cell.facts, "settings": dict(settings), "covariance": covariance}
        for key, values in numbers.items():
            digits = 4 if key == "nll" else 2
            row |= with_interval(key, np.array(values), digits)
            if covariance == "full":
                difference = np.array(values) - np.array(measured["diag"][key])
                row |= with_interval(f"{key}_difference", difference, digits)
        rows.append(row)
    return rows


def _uncertainty_numbers(
    classifier: GPLDLAClassifier, query: np.ndarray, outside: np.ndarray, truth: np.ndarray
) -> dict[str, float]:
    proba = classifier.predict_proba(query)
    right = proba.argmax(1) == truth
    known, unknown = classifier.uncertainty(query), classifier.uncertainty(outside)
    is_unknown = np.repeat([0, 1], [len(query), len(outside)])
    numbers = {
        "accuracy": 100 * float(right.mean()),
        "nll": -float(np.log(np.maximum(proba[np.arange(len(truth)), truth], FLOOR)).mean()),
    }
    for kind in ("total", "epistemic"):
        inside, beyond = getattr(known, kind), getattr(unknown, kind)
        numbers[f"auroc_{kind}"] = 100 * float(roc_auc_score(is_unknown, np.concatenate([inside, beyond])))
        numbers[f"rejection_{kind}"] = rejection_area(right, inside)
    return numbers


def rejection_area(right: np.ndarray, uncertainty: np.ndarray) -> float:
    """Return the accuracy (%) of the k least uncertain queries, averaged over k."""
    kept = right[np.argsort(uncertainty, kind="stable")]
    return 100 * float((np.cumsum(kept) / np.arange(1, len(kept) + 1)).mean())
