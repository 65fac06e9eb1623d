"""Tasks, the classifiers that are compared on them, and what is measured."""

import math
import time
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.special
import torch
from scipy.spatial.distance import cdist
from sklearn.base import BaseEstimator
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.linear_model import LogisticRegression, LogisticRegressionCV
from sklearn.neighbors import NearestCentroid
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, normalize

from benchmarks.honesty.domains import SEED
from gpldla import AbstainingClassifier, GPLDLAClassifier
from gpldla.classifier.calibration import reliability

QUERIES = 15  # per class, at most
FLOOR = 1e-12
MAX_ERROR = 0.05
OURS, CENTROID = "GPLDLA", "nearest centroid, softmax of −distance"
LOGISTIC, UNIT = "logistic regression", "logistic regression, unit rows × 30"
# The share of the tasks that slow methods are measured on; of 20 classes they are left out.
SLOW = {"logistic regression, C by cross-validation": 0.15, "LDA, Ledoit-Wolf": 0.15}  # share of the tasks

Numbers = dict[str, Any]


class CentroidSoftmax(NearestCentroid):  # type: ignore[misc]
    """Softmax of minus the distances to the class means."""

    def predict_proba(self, X: np.ndarray) -> np.ndarray:
        """Return probabilities [n, C]."""
        return np.asarray(scipy.special.softmax(-cdist(X, self.centroids_), axis=1))


def _long_unit_rows(X: np.ndarray) -> np.ndarray:
    return np.asarray(30 * normalize(X))


def classifiers(min_shots: int, ways: int) -> dict[str, BaseEstimator]:
    """Return what is compared in tasks whose smallest class has so many examples."""
    methods: dict[str, BaseEstimator] = {
        OURS: GPLDLAClassifier(),
        LOGISTIC: LogisticRegression(max_iter=1000),
        UNIT: make_pipeline(FunctionTransformer(_long_unit_rows), LogisticRegression(max_iter=1000)),
        CENTROID: CentroidSoftmax(),
    }
    if min_shots >= 2 and ways <= 5:
        cross_validated, lda = SLOW
        methods[cross_validated] = LogisticRegressionCV(
            Cs=5, cv=min(min_shots, 3), scoring="neg_log_loss", max_iter=1000
        )
        methods[lda] = LinearDiscriminantAnalysis(solver="lsqr", shrinkage="auto")
    return methods


@dataclass(frozen=True)
class Task:
    """Indices of rows, and their classes."""

    support: np.ndarray
    labels: np.ndarray
    query: np.ndarray
    truth: np.ndarray


def draw(y: np.ndarray, shots: tuple[int, ...], count: int, *, twice: bool = False) -> Iterator[Task]:
    """Draw tasks with so many examples of each class; `twice` repeats the first example."""
    rng = np.random.default_rng([SEED, *shots])
    of_class = [np.flatnonzero(y == c) for c in np.unique(y)]
    of_class = [rows for rows in of_class if len(rows) >= max(shots) + 5]
    for _ in range(count if len(of_class) >= len(shots) else 0):
        support, labels, query, truth = [], [], [], []
        for label, place in enumerate(rng.choice(len(of_class), len(shots), replace=False)):
            rows = rng.permutation(of_class[place])[: shots[label] + QUERIES]
            support.append(rows[: shots[label]])
            query.append(rows[shots[label] :])
            labels.append(np.full(shots[label], label))
            truth.append(np.full(len(query[-1]), label))
        if twice:
            support.append(support[0][:1])
            labels.append(labels[0][:1])
        yield Task(*(np.concatenate(part) for part in (support, labels, query, truth)))


def measure(X: np.ndarray, tasks: list[Task], min_shots: int, ways: int) -> list[Numbers]:
    """Return one row per classifier: accuracy, NLL, ECE, answers given at MAX_ERROR, and time.

    ours_nll is the NLL of GPLDLA on the same tasks.
    """
    rows: list[Numbers] = []
    ours_nll: list[float] = []
    for name, method in classifiers(min_shots, ways).items():
        own = tasks[: max(1, round(len(tasks) * SLOW.get(name, 1)))]
        log_prob, truth, seconds, nll = [], [], [], []
        for task in own:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                started = time.perf_counter()
                proba = method.fit(X[task.support], task.labels).predict_proba(X[task.query])
                seconds.append(time.perf_counter() - started)
            log_prob.append(np.log(np.maximum(proba.astype(float), FLOOR)))
            truth.append(task.truth)
            nll.append(-log_prob[-1][np.arange(len(task.truth)), task.truth].mean())
        ours_nll = ours_nll or nll
        answers, right = torch.from_numpy(np.concatenate(log_prob)), torch.from_numpy(np.concatenate(truth))
        rows.append(
            {
                "method": name,
                "tasks": len(own),
                "accuracy": round(100 * float((answers.argmax(-1) == right).double().mean()), 2),
                "nll": round(float(np.mean(nll)), 4),
                "ours_nll": round(float(np.mean(ours_nll[: len(own)])), 4),
                "nll_se": round(float(np.std(nll) / math.sqrt(len(nll))), 4),
                "ece": round(float(reliability(answers, right).error), 2),
                "ece_noise": _ece_noise(log_prob, truth),
                **({} if name in SLOW else _answered(method, X, own[:10])),
                "milliseconds": round(1000 * float(np.median(seconds)), 2),
            }
        )
    return rows


def _answered(method: BaseEstimator, X: np.ndarray, tasks: list[Task]) -> Numbers:
    """Return the share of answers given at MAX_ERROR, and how many of them are right, in percent."""
    answered, right = [], []
    for task in tasks:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            careful = AbstainingClassifier(method.fit(X[task.support], task.labels), max_error=MAX_ERROR)
            answered.append(careful.answered(X[task.query]))
        right.append(method.predict(X[task.query]) == task.truth)
    given, correct = np.concatenate(answered).astype(bool), np.concatenate(right)
    share = round(100 * float(given.mean()), 1)
    return {
        "answered": share,
        "answered_right": round(100 * float(correct[given].mean()), 1) if given.any() else None,
    }


def _ece_noise(log_prob: list[np.ndarray], truth: list[np.ndarray], repeats: int = 10) -> float:
    """Return the standard deviation of the ECE over bootstrap samples of tasks, in percent."""
    rng = np.random.default_rng(SEED)
    values = []
    for _ in range(repeats):
        chosen = rng.integers(len(truth), size=len(truth))
        answers, right = (torch.from_numpy(np.concatenate([x[i] for i in chosen])) for x in (log_prob, truth))
        values.append(float(reliability(answers, right).error))
    return round(float(np.std(values)), 2)
