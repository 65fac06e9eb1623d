"""The accuracy that a classifier reports for itself, against that on other rows of its classes."""

import math
from typing import Any

import numpy as np
from scipy.stats import norm

from benchmarks.honesty.tasks import Task
from gpldla import GPLDLAClassifier
from gpldla.classifier.expected_accuracy import CONFIDENCE

Numbers = dict[str, Any]
WIDTH = float(norm.ppf((1 + CONFIDENCE) / 2))


def reported_and_true(clf: GPLDLAClassifier, task: Task, log_prob: np.ndarray) -> list[Numbers]:
    """Return what a fitted classifier expects and what is true, of one task; empty if it expects nothing."""
    expected = clf.expected_accuracy()
    if expected is None:
        return []
    shots = np.bincount(task.labels)
    share = np.where(shots > 1, shots, 0) / shots[shots > 1].sum()
    right = log_prob.argmax(1) == task.truth
    of_class = np.array([right[task.truth == c].mean() for c in range(len(shots))])
    true = float(share @ of_class)
    # The truth is measured on few rows itself: by so much its interval is wider.
    noise = WIDTH * math.sqrt(
        float((share**2 / np.bincount(task.truth)).sum()) * max(true * (1 - true), 0.01)
    )
    low = expected.accuracy - math.hypot(expected.accuracy - expected.low, noise)
    high = expected.accuracy + math.hypot(expected.high - expected.accuracy, noise)
    loo = clf.leave_one_out().argmax(1) == task.labels
    return [
        {
            "expected": expected.accuracy,
            "left_out": float(loo[shots[task.labels] > 1].mean()),
            "true": true,
            "inside": low <= true <= high,
            "width": expected.high - expected.low,
        }
    ]


def summary_of(checked: list[Numbers]) -> Numbers:
    """Return the means over tasks, in percent; empty if there are none."""
    if not checked:
        return {}
    means = {name: round(100 * float(np.mean([one[name] for one in checked])), 2) for name in checked[0]}
    return {"expected_accuracy": means}
