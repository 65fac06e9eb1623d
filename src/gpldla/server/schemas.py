"""What requests and answers look like; the OpenAPI document is made from these."""

import unicodedata
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict

from gpldla.classifier.answer import UNSURE

NAME_LENGTH = 100

Kind = Literal["images", "texts"]


def clean_name(name: str) -> str:
    """Return a name in Unicode's composed form, on one line, without spaces around it; "" is refused."""
    try:
        name.encode()
    except UnicodeEncodeError:
        raise ValueError("is not valid Unicode") from None
    name = unicodedata.normalize("NFC", name).strip()
    if not name:
        raise ValueError("is empty; give a name")
    if len(name) > NAME_LENGTH:
        raise ValueError(f"has {len(name)} characters; give at most {NAME_LENGTH}")
    if any(unicodedata.category(character) in ("Cc", "Cs", "Zl", "Zp") for character in name):
        raise ValueError("holds control characters; leave them out")
    return name


def clean_label(label: str) -> str:
    """Return the name of a class; the word that marks unsure answers is refused."""
    label = clean_name(label)
    if label == UNSURE:
        raise ValueError(f"{UNSURE!r} marks unsure answers; give the class another name")
    return label


Name = Annotated[str, AfterValidator(clean_name)]
Label = Annotated[str, AfterValidator(clean_label)]


class Schema(BaseModel):
    """Base class: unknown fields are refused."""

    model_config = ConfigDict(extra="forbid")


def _shown_as(example: dict[str, Any]) -> ConfigDict:
    """Return the configuration of a schema with an example in the OpenAPI document."""
    return ConfigDict(extra="forbid", json_schema_extra={"examples": [example]})


class NewTask(Schema):
    """A task to be made."""

    kind: Kind
    name: Name = "Untitled"

    model_config = _shown_as({"kind": "images", "name": "Birds"})


class Renamed(Schema):
    """The new name of a task or of a class."""

    name: Name

    model_config = _shown_as({"name": "Garden birds"})


class Relabelled(Schema):
    """The right class of an example."""

    label: Label

    model_config = _shown_as({"label": "wren"})


class LabelledTexts(Schema):
    """Texts of one class."""

    label: Label
    texts: list[str]

    model_config = _shown_as({"label": "praise", "texts": ["What a joy!"]})


class Texts(Schema):
    """Texts without a label."""

    texts: list[str]

    model_config = _shown_as({"texts": ["I loved it."]})


class ClassCount(Schema):
    """A class and how many examples it has."""

    name: str
    examples: int


class Task(Schema):
    """A task: what it is called, its classes, and what to do next.

    revision: grows with every change; expires: when it is deleted unless it changes before
    """

    id: str
    kind: Kind
    name: str
    created: str
    expires: str
    revision: int
    classes: list[ClassCount]
    examples: int
    advice: str

    model_config = _shown_as(
        {
            "id": "0f4a1c6be2d94b7f8a35d0c1e6f27b90",
            "kind": "images",
            "name": "Birds",
            "created": "2030-05-01T09:30:00Z",
            "expires": "2030-05-31T09:42:00Z",
            "revision": 2,
            "classes": [{"name": "wren", "examples": 3}, {"name": "robin", "examples": 2}],
            "examples": 5,
            "advice": "Add to robin, which has 2 examples, the fewest.",
        }
    )


class Tasks(Schema):
    """All tasks."""

    tasks: list[Task]


class Example(Schema):
    """A labelled example; text: None for pictures; thumbnail: a path of this server, or None."""

    id: str
    label: str
    name: str
    text: str | None
    thumbnail: str | None


class Examples(Schema):
    """All examples of a task."""

    examples: list[Example]


class Added(Schema):
    """Examples that were added, and the task after that."""

    examples: list[Example]
    task: Task


class Changed(Schema):
    """An example after a change, and the task after that."""

    example: Example
    task: Task


class Removed(Schema):
    """The task after an example was removed."""

    task: Task


class ClassChanged(Schema):
    """The task after a class was renamed, merged or removed, and the ids of its examples."""

    examples: list[str]
    task: Task


class ClassProbability(Schema):
    """A class and its probability."""

    label: str
    probability: float


class Neighbour(Schema):
    """A labelled example that resembles an item; similarity: a cosine."""

    id: str
    label: str
    name: str
    similarity: float
    thumbnail: str | None


class Prediction(Schema):
    """The answer for one item.

    unsure: its expected error is too large to act on; none_of_these: the probability that it is of no known
    class, or None where the method gives none; reason: one sentence; nearest: the most similar examples
    """

    name: str
    label: str
    unsure: bool
    probabilities: list[ClassProbability]
    none_of_these: float | None
    reason: str
    nearest: list[Neighbour]

    model_config = _shown_as(
        {
            "name": "new.jpg",
            "label": "robin",
            "unsure": False,
            "probabilities": [
                {"label": "robin", "probability": 0.94},
                {"label": "wren", "probability": 0.06},
            ],
            "none_of_these": 0.03,
            "reason": "2 of the 5 most similar examples are robin.",
            "nearest": [
                {
                    "id": "5d1be0a94c7f2e68",
                    "label": "robin",
                    "name": "robin-1.jpg",
                    "similarity": 0.71,
                    "thumbnail": "/v1/tasks/0f4a1c6be2d94b7f8a35d0c1e6f27b90/examples/5d1be0a94c7f2e68"
                    "/thumbnail",
                }
            ],
        }
    )


class Predictions(Schema):
    """Answers in the order of the items; revision: of the task that gave them, None of a file."""

    predictions: list[Prediction]
    revision: int | None


class Confusion(Schema):
    """How often examples of each class (row) were taken for each class (column)."""

    labels: list[str]
    counts: list[list[int]]


class ReliabilityBin(Schema):
    """Answers of about the same probability: how sure they were, how often right, and how many."""

    confidence: float
    accuracy: float
    count: int


class SuspectExample(Example):
    """An example whose label is probably wrong, judging by the others, and what it is rather."""

    suggested: str
    probability: float


class ShownQuality(Schema):
    """Leave-one-out results; shares are between 0 and 1.

    tested: examples that can be left out, as their class has others
    expected_accuracy: for new items, with an interval that holds it with `interval_probability`; or None
    """

    accuracy: float
    tested: int
    expected_accuracy: float | None
    interval: tuple[float, float] | None
    interval_probability: float
    confusion: Confusion
    reliability: list[ReliabilityBin]
    suspects: list[SuspectExample]
    revision: int


class Suggestion(Schema):
    """An item to label; score: the share of the uncertainty about all items that its label would remove."""

    name: str
    index: int
    score: float
    guess: str
    probability: float


class Suggestions(Schema):
    """Items without labels, the most informative first."""

    suggestions: list[Suggestion]
    revision: int


class ShownLimits(Schema):
    """Bounds that a client should know, see the page on serving."""

    upload_bytes: int
    json_bytes: int
    pixels: int
    items: int
    items_per_request: int
    classes: int
    tasks: int
    text_characters: int
    lifetime_s: int


class Server(Schema):
    """What this server does.

    backbones: the network of each kind; classes: of the classifier that is served read-only, else None
    """

    version: str
    kinds: list[Kind]
    backbones: dict[str, str]
    limits: ShownLimits
    token_required: bool
    read_only: bool
    classes: list[str] | None


class ProblemDetails(BaseModel):
    """An error, as RFC 9457 has it."""

    type: str
    title: str
    status: int
    detail: str
