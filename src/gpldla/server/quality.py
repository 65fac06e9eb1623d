"""How good a task's classifier is, judged by leaving each example out."""

from dataclasses import dataclass

import numpy as np
import torch

from gpldla.classifier.answers import FitSummary, summarise
from gpldla.classifier.calibration import reliability
from gpldla.server.classifiers import Taught
from gpldla.server.problems import Problem

BINS = 10


@dataclass(frozen=True)
class Quality:
    """Leave-one-out results.

    tested:      examples that could be left out, as their class has others
    counts:      how often an example of each class (row) was taken for each class (column) [C, C]
    reliability: (confidence, accuracy, examples) of each bin of the top probability that is not empty
    """

    summary: FitSummary
    labels: list[str]
    counts: list[list[int]]
    reliability: list[tuple[float, float, int]]


def quality_of(taught: Taught) -> Quality:
    """Leave out each example of a task; 409 if every class has a single one."""
    classifier = taught.classifier
    proba = classifier.leave_one_out()
    tested = np.flatnonzero(~np.isnan(proba).any(1))
    if not len(tested):
        raise Problem(409, "Every class has a single example; add a second one to a class.")
    labels = [str(name) for name in classifier.classes.tolist()]
    truth = classifier.task.require_examples().labels.cpu().numpy()[tested]
    left_out = proba[tested]
    counts = np.zeros((len(labels), len(labels)), int)
    np.add.at(counts, (truth, left_out.argmax(1)), 1)
    log_prob = torch.from_numpy(left_out.clip(1e-30, 1)).log()
    bins = reliability(log_prob, torch.from_numpy(truth), bins=BINS)
    filled = [
        (float(confidence), float(accuracy), int(count))
        for confidence, accuracy, count in zip(bins.confidence, bins.accuracy, bins.counts)
        if count
    ]
    summary = summarise(classifier, [one.id for one in taught.examples])
    return Quality(summary, labels, counts.tolist(), filled)
