"""What a server answers, as Python objects; fields that a later server adds are left out."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, TypeVar

Record = TypeVar("Record")


def record_of(kind: type[Record], facts: Mapping[str, Any], **changed: Any) -> Record:
    """Return a record with the facts that it has fields for."""
    known = {field.name for field in fields(kind)}  # type: ignore[arg-type]
    return kind(**{name: value for name, value in {**facts, **changed}.items() if name in known})


@dataclass(frozen=True)
class Task:
    """A task; classes: how many examples each has; advice: what to add next."""

    id: str
    kind: str
    name: str
    created: str
    expires: str
    revision: int
    classes: dict[str, int]
    examples: int
    advice: str

    @classmethod
    def of(cls, facts: Mapping[str, Any]) -> "Task":
        """Return the task that a server describes."""
        counts = {one["name"]: one["examples"] for one in facts["classes"]}
        return record_of(cls, facts, classes=counts)


@dataclass(frozen=True)
class Example:
    """A labelled example; text: None for a picture; thumbnail: a path on the server, or None."""

    id: str
    label: str
    name: str
    text: str | None
    thumbnail: str | None


@dataclass(frozen=True)
class Neighbour:
    """A labelled example that resembles an item; similarity: a cosine."""

    id: str
    label: str
    name: str
    similarity: float
    thumbnail: str | None


@dataclass(frozen=True)
class Prediction:
    """The answer for one item; probabilities: of each class, the most probable first."""

    name: str
    label: str
    unsure: bool
    probabilities: dict[str, float]
    none_of_these: float | None
    reason: str
    nearest: list[Neighbour]

    @classmethod
    def of(cls, facts: Mapping[str, Any]) -> "Prediction":
        """Return the answer that a server gives."""
        probabilities = {one["label"]: one["probability"] for one in facts["probabilities"]}
        nearest = [record_of(Neighbour, one) for one in facts["nearest"]]
        return record_of(cls, facts, probabilities=probabilities, nearest=nearest)


@dataclass(frozen=True)
class Suspect:
    """An example whose label is probably wrong; suggested: what it is rather, with what probability."""

    id: str
    label: str
    name: str
    suggested: str
    probability: float


@dataclass(frozen=True)
class Quality:
    """Leave-one-out results, shares between 0 and 1.

    interval: holds the expected accuracy with a probability of 90 %; None where nothing can be said
    confusion: [true][taken for], in the order of labels; reliability: (confidence, accuracy, count) of bins
    """

    accuracy: float
    tested: int
    expected_accuracy: float | None
    interval: tuple[float, float] | None
    labels: list[str]
    confusion: list[list[int]]
    reliability: list[tuple[float, float, int]]
    suspects: list[Suspect]

    @classmethod
    def of(cls, facts: Mapping[str, Any]) -> "Quality":
        """Return the quality that a server states."""
        interval = facts["interval"]
        return record_of(
            cls,
            facts,
            interval=None if interval is None else (interval[0], interval[1]),
            labels=facts["confusion"]["labels"],
            confusion=facts["confusion"]["counts"],
            reliability=[(one["confidence"], one["accuracy"], one["count"]) for one in facts["reliability"]],
            suspects=[record_of(Suspect, one) for one in facts["suspects"]],
        )


@dataclass(frozen=True)
class Suggestion:
    """An item to label next; score: the share of the pool's uncertainty that its label would remove."""

    name: str
    index: int
    score: float
    guess: str
    probability: float


@dataclass(frozen=True)
class ServerInfo:
    """What a server does; read_only: whether it serves one classifier, of these classes."""

    version: str
    kinds: list[str]
    backbones: dict[str, str]
    limits: dict[str, int]
    token_required: bool
    read_only: bool
    classes: list[str] | None
