"""Accuracy, NLL, ECE and time on tasks of known classes."""

import time
import warnings
from dataclasses import dataclass

import numpy as np
import torch
from sklearn.exceptions import ConvergenceWarning
from torch import Tensor

from benchmarks.own_data.common import FLOOR, META, OURS, QUERIES, Numbers, scaled, with_interval
from benchmarks.own_data.data import Data, Task, draw_tasks
from benchmarks.own_data.methods import Method, meta_fitted, rivals
from gpldla import GPLDLAClassifier
from gpldla.classifier.calibration import reliability
from gpldla.utils.progress import SILENT, Reporter


@dataclass
class Predictions:
    """A method's predictions, log p [q, C] per task, and their times."""

    log_prob: list[Tensor]
    seconds: list[float]
    unconverged: int = 0

    def numbers(self, truth: Tensor, tasks: int | None = None) -> dict[str, np.ndarray | float]:
        """Return accuracy (%) and NLL per task, and the ECE (%), of the first `tasks` tasks."""
        log_prob = torch.stack(self.log_prob[:tasks])  # [E, q, C]
        labels = truth.expand(log_prob.shape[:-1])
        correct = log_prob.gather(-1, labels.unsqueeze(-1)).squeeze(-1)
        return {
            "accuracy": 100 * (log_prob.argmax(-1) == labels).double().mean(-1).numpy(),
            "nll": -correct.mean(-1).numpy(),
            "ece": reliability(log_prob.flatten(0, 1), labels.flatten()).error,
        }


def measure_cell(
    data: Data, ways: int, shots: int, tasks: int, scale: float, *, many: bool, reporter: Reporter = SILENT
) -> tuple[list[Numbers], list[Numbers]]:
    """Return one row per method, and which were left out and why; the methods take turns in each task."""
    tasks = scaled(tasks, scale)
    started = time.perf_counter()
    prior = meta_fitted(data, ways, shots, scale)
    meta_seconds = time.perf_counter() - started
    methods = [Method(OURS, lambda _, __: GPLDLAClassifier())]
    if prior is not None:
        methods.append(Method(META, lambda _, __: prior))
    left_out = []
    for method in rivals():
        if shots < method.min_shots:
            left_out.append({"method": method.title, "reason": f"needs {method.min_shots} shots"})
        elif not method.shares[many]:
            left_out.append({"method": method.title, "reason": method.why_less})
        else:
            methods.append(method)

    counts = {method.title: scaled(tasks, method.shares[many]) for method in methods}
    predictions = {method.title: Predictions([], []) for method in methods}
    truth = np.repeat(np.arange(ways), QUERIES)
    with reporter.bar(f"{ways}-way {shots}-shot", tasks) as advance:
        for number, task in enumerate(draw_tasks(data.labels, ways, shots, tasks)):
            for method in methods:
                if number < counts[method.title]:
                    predict_task(method, data.features, task, ways, shots, predictions[method.title])
            advance(1)

    rows = []
    for method in methods:
        row = {"ways": ways, "shots": shots, "method": method.title}
        row |= compared(predictions[method.title], predictions[OURS], torch.from_numpy(truth))
        if method.title == META:
            row["meta_fit_seconds"] = round(meta_seconds, 1)
        rows.append(row)
    where = {"ways": ways, "shots": shots}
    return rows, [{**where, **facts} for facts in left_out]


def predict_task(
    method: Method, features: np.ndarray, task: Task, ways: int, shots: int, predictions: Predictions
) -> None:
    """Fit a method to the task, predict the queries, and append the probabilities and the total time."""
    support, query = features[task.support], features[task.query]
    labels = np.repeat(np.arange(ways), shots)
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        started = time.perf_counter()
        proba = method.make(support, shots).fit(support, labels).predict_proba(query)
        predictions.seconds.append(time.perf_counter() - started)
    predictions.unconverged += any(issubclass(warning.category, ConvergenceWarning) for warning in warned)
    predictions.log_prob.append(torch.from_numpy(np.log(np.maximum(proba.astype(np.float64), FLOOR))))


def compared(own: Predictions, ours: Predictions, truth: Tensor) -> Numbers:
    """Return a method's results, and their differences to GPLDLA's on the same tasks."""
    tasks = len(own.log_prob)
    numbers, reference = own.numbers(truth), ours.numbers(truth, tasks)
    row: Numbers = {"tasks": tasks}
    for key, digits in (("accuracy", 2), ("nll", 4)):
        row |= with_interval(key, np.asarray(numbers[key]), digits)
        row |= with_interval(f"{key}_difference", np.asarray(numbers[key]) - reference[key], digits)
    row["ece"], row["ece_difference"] = (
        round(float(value), 2) for value in (numbers["ece"], float(numbers["ece"]) - float(reference["ece"]))
    )
    seconds = [float(np.median(times)) for times in (own.seconds, ours.seconds[:tasks])]
    row["milliseconds"] = float(f"{1000 * seconds[0]:.3g}")
    row["time_ratio"] = float(f"{seconds[0] / seconds[1]:.3g}")
    row["unconverged_tasks"] = own.unconverged
    return row
