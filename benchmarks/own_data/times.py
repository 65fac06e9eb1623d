"""The time of `GPLDLAClassifier()` beside `LogisticRegression()`, fit and predict_proba, on one thread."""

import time
from collections.abc import Callable, Mapping
from statistics import median
from typing import Any

import numpy as np
from sklearn.linear_model import LogisticRegression

from benchmarks.own_data.common import LOGISTIC, OURS, Numbers, scaled
from benchmarks.own_data.data import Data, draw_tasks
from gpldla import GPLDLAClassifier
from gpldla.utils.progress import SILENT, Reporter

TASKS, REPEATS = 30, 5  # of each task the fastest repeat counts
TIMED: Mapping[str, Callable[[], Any]] = {OURS: GPLDLAClassifier, LOGISTIC: LogisticRegression}


def measure_times(
    data: Data, ways: int, shots: int, scale: float = 1.0, reporter: Reporter = SILENT
) -> Numbers:
    """Return the milliseconds per task (median), and how often ours fits into that of the other.

    The processor's time of the thread is counted, in which no other program takes part.
    """
    labels = np.repeat(np.arange(ways), shots)
    tasks = draw_tasks(data.labels, ways, shots, scaled(TASKS, scale))
    spent: dict[str, list[float]] = {title: [] for title in TIMED}
    with reporter.bar(f"times, {ways}-way {shots}-shot", len(tasks)) as advance:
        for task in tasks:
            support, query = data.features[task.support], data.features[task.query]
            seconds: dict[str, list[float]] = {title: [] for title in TIMED}
            for _ in range(REPEATS):  # in turn
                for title, make in TIMED.items():
                    started = time.thread_time()
                    make().fit(support, labels).predict_proba(query)
                    seconds[title].append(time.thread_time() - started)
            for title, own in seconds.items():
                spent[title].append(min(own))
            advance(1)
    milliseconds = {title: 1000 * median(own) for title, own in spent.items()}
    return {
        "ways": ways,
        "shots": shots,
        "tasks": len(tasks),
        "milliseconds": {title: float(f"{value:.3g}") for title, value in milliseconds.items()},
        "ratio": float(f"{milliseconds[LOGISTIC] / milliseconds[OURS]:.3g}"),
    }
