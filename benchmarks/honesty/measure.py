"""Tasks, the classifiers that are compared on them, and what is measured."""

import math
import time
import warnings
from dataclasses import dataclass, field
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

from benchmarks.honesty.constants import Constants
from benchmarks.honesty.domains import SEED
from benchmarks.honesty.expected import reported_and_true, summary_of
from benchmarks.honesty.old_rule import OldGPLDLA
from benchmarks.honesty.tasks import Task
from gpldla import AbstainingClassifier, GPLDLAClassifier
from gpldla.classifier.calibration import reliability

FLOOR, LEAST_NLL = 1e-12, 1e-3
MAX_ERROR = 0.05
ANSWERED_TASKS = 10
ENOUGH = 6  # tasks of a cell that a rival is measured on at least, where there are as many
OURS, CENTROID = "GPLDLA", "nearest centroid, softmax of −distance"
LOGISTIC, UNIT = "logistic regression", "logistic regression, unit rows × 30"
HELD_OUT, OLD = "GPLDLA, constants of the other domains", "GPLDLA, old prior"
CROSS_VALIDATED, LDA = "logistic regression, C by cross-validation", "LDA, Ledoit-Wolf"
# The share of the tasks that a rival is measured on; of 20 classes the slow ones are left out.
SHARE = {LOGISTIC: 0.4, UNIT: 0.4, CROSS_VALIDATED: 0.1, LDA: 0.1}
SEVERAL_SHOTS_SHARE = 0.5  # of these, where classes have several examples

Numbers = dict[str, Any]


class CentroidSoftmax(NearestCentroid):  # type: ignore[misc]
    """Softmax of minus the distances to the class means."""

    def predict_proba(self, X: np.ndarray) -> np.ndarray:
        """Return probabilities [n, C]."""
        return np.asarray(scipy.special.softmax(-cdist(X, self.centroids_), axis=1))


def _long_unit_rows(X: np.ndarray) -> np.ndarray:
    return np.asarray(30 * normalize(X))


class WithConstants(GPLDLAClassifier):
    """`GPLDLAClassifier` with other constants of its prior."""

    def __init__(self, constants: Constants | None = None) -> None:
        super().__init__()
        self.constants = constants

    def fit(self, X: Any, y: Any, *args: Any, **options: Any) -> "WithConstants":
        """Fit with the constants."""
        with (self.constants or Constants()).applied():
            super().fit(X, y, *args, **options)
        return self


def classifiers(min_shots: int, ways: int, held_out: Constants) -> dict[str, BaseEstimator]:
    """Return what is compared in tasks whose smallest class has so many examples."""
    methods: dict[str, BaseEstimator] = {
        OURS: GPLDLAClassifier(),
        HELD_OUT: WithConstants(held_out),
        OLD: OldGPLDLA(),
        LOGISTIC: LogisticRegression(max_iter=1000),
        UNIT: make_pipeline(FunctionTransformer(_long_unit_rows), LogisticRegression(max_iter=1000)),
        CENTROID: CentroidSoftmax(),
    }
    if min_shots >= 2 and ways <= 5:
        methods[CROSS_VALIDATED] = LogisticRegressionCV(
            Cs=5, cv=min(min_shots, 3), scoring="neg_log_loss", max_iter=1000
        )
        methods[LDA] = LinearDiscriminantAnalysis(solver="lsqr", shrinkage="auto")
    return methods


def measure(
    X: np.ndarray, tasks: list[Task], min_shots: int, ways: int, held_out: Constants
) -> list[Numbers]:
    """Return one row per classifier; held_out: the constants that were chosen on other domains."""
    methods = classifiers(min_shots, ways, held_out)
    runs = {name: Run() for name in methods}
    for number, task in enumerate(tasks):  # all take turns on each task, so that their times compare
        in_turn = list(methods.items())
        for name, method in in_turn if number % 2 else reversed(in_turn):  # the first finds nothing in caches
            if number < _count(len(tasks), name, min_shots):
                runs[name].take(method, X, task, checked=name == OURS)
    rows = []
    for name, run in runs.items():
        row = {"method": name, "tasks": len(run.tasks), **run.numbers(runs[OURS], runs[HELD_OUT])}
        if name in (OURS, HELD_OUT):
            row["ece_noise"] = _ece_noise(run.log_prob, [task.truth for task in run.tasks])
        if name in (OURS, OLD, UNIT):
            row |= _answered(methods[name], X, tasks[:ANSWERED_TASKS])
        rows.append(row | summary_of(run.checked))
    return rows


def time_again(X: np.ndarray, tasks: list[Task], min_shots: int, ways: int) -> dict[str, float]:
    """Return the milliseconds that GPLDLA takes for a task, with the present and with the old prior."""
    methods = classifiers(min_shots, ways, Constants())
    runs = {name: Run() for name in (OURS, OLD)}
    for number, task in enumerate(tasks):
        for name in (OURS, OLD) if number % 2 else (OLD, OURS):
            runs[name].take(methods[name], X, task, checked=False)
    return {name: run.milliseconds() for name, run in runs.items()}


def _count(tasks: int, name: str, min_shots: int) -> int:
    share = SHARE.get(name, 1.0) * (SEVERAL_SHOTS_SHARE if name in SHARE and min_shots > 1 else 1.0)
    return max(ENOUGH, round(tasks * share))


@dataclass
class Run:
    """The answers of one classifier to its tasks, and the time that each took."""

    tasks: list[Task] = field(default_factory=list)
    log_prob: list[np.ndarray] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    checked: list[Numbers] = field(default_factory=list)

    def take(self, method: BaseEstimator, X: np.ndarray, task: Task, *, checked: bool) -> None:
        """Answer a task; `checked`: compare the accuracy that is expected with the true one."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            support, query = X[task.support], X[task.query]
            started = time.process_time()  # which other programs do not lengthen
            proba = method.fit(support, task.labels).predict_proba(query)
            self.seconds.append(time.process_time() - started)
        self.tasks.append(task)
        self.log_prob.append(np.log(np.maximum(proba.astype(float), FLOOR)))
        if checked:
            self.checked += reported_and_true(method, task, self.log_prob[-1])

    def nll(self) -> np.ndarray:
        """Return the NLL of each task."""
        pairs = zip(self.log_prob, self.tasks)
        return np.array([-log_prob[np.arange(len(t.truth)), t.truth].mean() for log_prob, t in pairs])

    def accuracy(self) -> np.ndarray:
        """Return the accuracy of each task, in percent."""
        pairs = zip(self.log_prob, self.tasks)
        return np.array([100 * (log_prob.argmax(1) == t.truth).mean() for log_prob, t in pairs])

    def numbers(self, ours: "Run", held_out: "Run") -> Numbers:
        """Return accuracy, NLL, ECE and time, and those of GPLDLA on the same tasks.

        gain, gain_se: by how many points GPLDLA with held-out constants is more often right, and its error
        """
        count = len(self.tasks)
        gain = held_out.accuracy()[:count] - self.accuracy()
        answers = torch.from_numpy(np.concatenate(self.log_prob))
        truth = torch.from_numpy(np.concatenate([task.truth for task in self.tasks]))
        return {
            "accuracy": round(float(self.accuracy().mean()), 2),
            "gain": round(float(gain.mean()), 2),
            "gain_se": round(float(gain.std() / math.sqrt(count)), 3),
            "nll": round(float(self.nll().mean()), 4),
            "ours_nll": round(float(ours.nll()[:count].mean()), 4),
            "held_out_nll": round(float(held_out.nll()[:count].mean()), 4),
            "ece": round(float(reliability(answers, truth).error), 2),
            "milliseconds": self.milliseconds(),
        }

    def milliseconds(self) -> float:
        """Return the median time of a task."""
        return round(1000 * float(np.median(self.seconds)), 2)


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


def relative(nll: float, other: float) -> float:
    """Return an NLL divided by another, both at least LEAST_NLL: below it a ratio says nothing."""
    return max(nll, LEAST_NLL) / max(other, LEAST_NLL)
