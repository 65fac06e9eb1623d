"""Stored records and answers as the API shows them."""

from collections.abc import Sequence
from datetime import UTC, datetime

from gpldla.classifier.few_shot import FewShotClassifier
from gpldla.server.answers import Explained
from gpldla.server.classifiers import advice
from gpldla.server.schemas import ClassCount, ClassProbability, Example, Neighbour, Prediction, Task
from gpldla.server.storage import ExampleRecord, TaskRecord


def shown_task(task: TaskRecord) -> Task:
    """Return a task as the API shows it."""
    return Task(
        id=task.id,
        kind="images" if task.kind == "images" else "texts",
        name=task.name,
        created=_time(task.created),
        expires=_time(task.expires),
        revision=task.revision,
        classes=[ClassCount(name=label, examples=count) for label, count in task.counts.items()],
        examples=task.counts.total(),
        advice=advice(task.kind, dict(task.counts)),
    )


def shown_example(task_id: str, one: ExampleRecord) -> Example:
    """Return an example as the API shows it."""
    return Example(
        id=one.id, label=one.label, name=one.name, text=one.text, thumbnail=_thumbnail(task_id, one)
    )


def shown_prediction(one: Explained, neighbours: Sequence[Neighbour]) -> Prediction:
    """Return an answer as the API shows it."""
    return Prediction(
        name=one.answer.item,
        label=str(one.answer.label),
        unsure=one.answer.unsure,
        probabilities=[ClassProbability(label=label, probability=p) for label, p in one.ranked],
        none_of_these=one.answer.none_of_these,
        reason=one.reason,
        nearest=list(neighbours),
    )


def neighbours_in(task_id: str, examples: Sequence[ExampleRecord], one: Explained) -> list[Neighbour]:
    """Return the most similar examples of a task."""
    found = []
    for index, cosine in one.nearest:
        near = examples[index]
        thumbnail = _thumbnail(task_id, near)
        found.append(
            Neighbour(id=near.id, label=near.label, name=near.name, similarity=cosine, thumbnail=thumbnail)
        )
    return found


def neighbours_of_file(classifier: FewShotClassifier, one: Explained) -> list[Neighbour]:
    """Return the most similar examples of a classifier; its file holds no thumbnails."""
    if not one.nearest:
        return []
    names, labels = classifier.item_names(), classifier.labels.tolist()
    return [
        Neighbour(id=str(i), label=str(labels[i]), name=names[i], similarity=cosine, thumbnail=None)
        for i, cosine in one.nearest
    ]


def _thumbnail(task_id: str, one: ExampleRecord) -> str | None:
    return f"/v1/tasks/{task_id}/examples/{one.id}/thumbnail" if one.has_thumbnail else None


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
