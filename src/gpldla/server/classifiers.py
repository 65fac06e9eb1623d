"""The classifier of a task: adapted when it is first needed after a change, then kept."""

import threading
from collections import OrderedDict
from dataclasses import dataclass

import torch

from gpldla.classifier.few_shot import FewShotClassifier
from gpldla.server.answers import Explainer
from gpldla.server.networks import Network
from gpldla.server.problems import Problem
from gpldla.server.storage import ExampleRecord, Store, TaskRecord

KEPT = 32  # classifiers in memory


@dataclass(frozen=True)
class Taught:
    """The classifier of one revision of a task, and its examples in the same order."""

    task: TaskRecord
    classifier: FewShotClassifier
    explainer: Explainer
    examples: list[ExampleRecord]


class Classifiers:
    """The classifiers of tasks; many threads may ask, and other processes may change the database."""

    def __init__(self, store: Store, networks: dict[str, Network]) -> None:
        self._store, self._networks = store, networks
        self._kept: OrderedDict[str, Taught] = OrderedDict()
        self._lock = threading.Lock()
        self._adapting: dict[str, threading.Lock] = {}

    def of(self, task_id: str) -> Taught:
        """Return the classifier of a task as it is now; 409 if two classes have no examples yet."""
        revision = self._store.revision(task_id)
        if (kept := self._kept_from(task_id, revision)) is not None:
            return kept
        with self._lock:
            one_at_a_time = self._adapting.setdefault(task_id, threading.Lock())
        with one_at_a_time:  # who comes second finds what the first has made
            try:
                return self._kept_from(task_id, revision) or self._adapt(task_id)
            finally:
                with self._lock:
                    if self._adapting.get(task_id) is one_at_a_time:
                        del self._adapting[task_id]

    def network_of(self, task: TaskRecord) -> Network:
        """Return the network of a task; 409 if this server has another one than the task was made with."""
        network = self._networks.get(task.kind)
        if network is None:
            raise Problem(409, f"This server has no network for {task.kind}.")
        if network.fingerprint != task.network:
            raise Problem(
                409,
                f"The task was made with another network than {network.model.backbone_name!r}, which this"
                " server has; serve that one, or teach the task anew.",
            )
        return network

    def _kept_from(self, task_id: str, revision: int) -> Taught | None:
        """Return the classifier in memory, if it is of this revision or of a later one."""
        with self._lock:
            kept = self._kept.get(task_id)
            if kept is None or kept.task.revision < revision:
                return None
            self._kept.move_to_end(task_id)
            return kept

    def _adapt(self, task_id: str) -> Taught:
        task, examples, features, unlabelled = self._store.rows(task_id)
        network = self.network_of(task)
        if len(task.counts) < 2:
            raise Problem(409, advice(task.kind, dict(task.counts)))
        device = network.model.device
        classifier = FewShotClassifier.from_rows(
            network.model,
            torch.from_numpy(features).to(device),
            [one.label for one in examples],
            names=tuple(one.name if one.text is None else one.text for one in examples),
            unlabelled=None if unlabelled is None else torch.from_numpy(unlabelled).to(device),
        )
        if classifier.has_novelty:
            classifier.calibrate_novelty()
        taught = Taught(task, classifier, Explainer(classifier), examples)
        with self._lock:
            self._kept[task_id] = taught
            while len(self._kept) > KEPT:
                self._kept.popitem(last=False)
        return taught


ENOUGH = 5  # examples of a class after which another one adds little


def advice(kind: str, counts: dict[str, int]) -> str:
    """Return a sentence on what to add next to a task with so many examples of each class."""
    what = "pictures" if kind == "images" else "texts"
    if not counts:
        return f"Add {what} of at least two classes."
    if len(counts) == 1:
        return f"Add {what} of a second class, besides {next(iter(counts))}."
    fewest = min(counts, key=lambda label: counts[label])
    if counts[fewest] == 1:
        return f"Add a second example of {fewest}: with one, how certain the answers are is a guess."
    if counts[fewest] < ENOUGH:
        if counts[fewest] == max(counts.values()):
            return f"Add to each class: {ENOUGH} {what} of each tell more than {counts[fewest]}."
        return f"Add to {fewest}, which has {counts[fewest]} examples, the fewest."
    return f"Try new {what}; add those that are answered wrong or unsure, with their right class."
