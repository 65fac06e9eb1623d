"""The requests of the API and what is made of their answers, without sending anything."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, TypeVar
from urllib.parse import quote

import httpx

from gpldla.client.records import (
    Example,
    Prediction,
    Quality,
    ServerInfo,
    Suggestion,
    Task,
    record_of,
)
from gpldla.utils.errors import UserError

Answer = TypeVar("Answer")
PictureFile = str | Path | bytes
"""The path of a picture file, or its content."""

LONGEST_WAIT = 30.0  # seconds that a client waits where a server says Retry-After


class ServerError(RuntimeError):
    """A server has refused a request; the message is its sentence.

    status: of HTTP; request_id: by which the server's log can be searched
    """

    def __init__(self, status: int, detail: str, request_id: str = "") -> None:
        super().__init__(detail)
        self.status, self.detail, self.request_id = status, detail, request_id


@dataclass(frozen=True)
class Call(Generic[Answer]):
    """A request; read: makes the answer of a successful response; options: of httpx."""

    method: str
    path: str
    read: Callable[[httpx.Response], Answer]
    options: dict[str, Any] = field(default_factory=dict)

    def answer(self, response: httpx.Response) -> Answer:
        """Return the answer, or raise a `ServerError`."""
        if response.is_success:
            return self.read(response)
        try:
            detail = str(response.json()["detail"])
        except (ValueError, KeyError, TypeError):  # a proxy, or another server
            detail = f"The server answered {response.status_code} {response.reason_phrase}."
        raise ServerError(response.status_code, detail, response.headers.get("x-request-id", ""))


def seconds_to_wait(response: httpx.Response) -> float | None:
    """Return how long to wait before a request is sent again; None if it should not be."""
    if response.status_code not in (429, 503) or "retry-after" not in response.headers:
        return None
    try:
        seconds = float(response.headers["retry-after"])
    except ValueError:  # a date: of a proxy, not of this server
        return None
    return seconds if 0 <= seconds <= LONGEST_WAIT else None


def server() -> Call[ServerInfo]:
    """Ask what the server does."""
    return Call("GET", "/v1/server", lambda response: record_of(ServerInfo, response.json()))


def create_task(kind: str, name: str) -> Call[Task]:
    """Make a task."""
    return Call("POST", "/v1/tasks", _task, {"json": {"kind": kind, "name": name}})


def tasks() -> Call[list[Task]]:
    """List all tasks."""
    return Call("GET", "/v1/tasks", lambda response: [Task.of(one) for one in response.json()["tasks"]])


def task(task_id: str) -> Call[Task]:
    """Ask for a task."""
    return Call("GET", _path(task_id), _task)


def rename_task(task_id: str, name: str) -> Call[Task]:
    """Give a task another name."""
    return Call("PATCH", _path(task_id), _task, {"json": {"name": name}})


def delete_task(task_id: str) -> Call[None]:
    """Delete a task."""
    return Call("DELETE", _path(task_id), lambda response: None)


def add(
    task_id: str, label: str, pictures: Sequence[PictureFile] | None, texts: Sequence[str] | None
) -> Call[list[Example]]:
    """Add examples of a class."""

    def read(response: httpx.Response) -> list[Example]:
        return [record_of(Example, one) for one in response.json()["examples"]]

    return Call("POST", _path(task_id, "examples"), read, _body(pictures, texts, label))


def examples(task_id: str) -> Call[list[Example]]:
    """List the examples of a task."""

    def read(response: httpx.Response) -> list[Example]:
        return [record_of(Example, one) for one in response.json()["examples"]]

    return Call("GET", _path(task_id, "examples"), read)


def thumbnail(task_id: str, example_id: str) -> Call[bytes]:
    """Ask for a small copy of a picture."""
    return Call("GET", _path(task_id, "examples", example_id, "thumbnail"), lambda response: response.content)


def relabel(task_id: str, example_id: str, label: str) -> Call[Task]:
    """Give an example another label."""
    return Call("PATCH", _path(task_id, "examples", example_id), _task_in, {"json": {"label": label}})


def remove(task_id: str, example_id: str) -> Call[Task]:
    """Remove an example."""
    return Call("DELETE", _path(task_id, "examples", example_id), _task_in)


def restore(task_id: str, example_id: str) -> Call[Task]:
    """Bring a removed example back."""
    return Call("POST", _path(task_id, "examples", example_id, "restore"), _task_in)


def rename_class(task_id: str, label: str, new: str) -> Call[Task]:
    """Give a class another name, or merge it with the class of that name."""
    return Call("PATCH", _path(task_id, "classes", label), _task_in, {"json": {"name": new}})


def remove_class(task_id: str, label: str) -> Call[Task]:
    """Remove all examples of a class."""
    return Call("DELETE", _path(task_id, "classes", label), _task_in)


def predict(
    task_id: str | None, pictures: Sequence[PictureFile] | None, texts: Sequence[str] | None
) -> Call[list[Prediction]]:
    """Ask for answers; task_id: None where the server serves a file."""

    def read(response: httpx.Response) -> list[Prediction]:
        return [Prediction.of(one) for one in response.json()["predictions"]]

    path = "/predict" if task_id is None else _path(task_id, "predict")
    return Call("POST", path, read, _body(pictures, texts))


def quality(task_id: str) -> Call[Quality]:
    """Ask how good the classifier is."""
    return Call("GET", _path(task_id, "quality"), lambda response: Quality.of(response.json()))


def suggest(
    task_id: str, pictures: Sequence[PictureFile] | None, texts: Sequence[str] | None
) -> Call[list[Suggestion]]:
    """Ask what to label next."""

    def read(response: httpx.Response) -> list[Suggestion]:
        return [record_of(Suggestion, one) for one in response.json()["suggestions"]]

    return Call("POST", _path(task_id, "suggest"), read, _body(pictures, texts))


def download(task_id: str, form: str) -> Call[bytes]:
    """Ask for the classifier as a file."""
    options = {"params": {"format": form}}
    return Call("GET", _path(task_id, "classifier"), lambda response: response.content, options)


def upload(file: PictureFile, name: str | None) -> Call[Task]:
    """Make a task of a classifier's file."""
    sent = {
        "files": {"file": _file(file, "classifier.safetensors")},
        "data": {} if name is None else {"name": name},
    }
    return Call("POST", "/v1/tasks/upload", _task, sent)


def _path(task_id: str, *parts: str) -> str:
    return "/".join(["/v1/tasks", *(quote(part, safe="") for part in (task_id, *parts))])


def _task(response: httpx.Response) -> Task:
    return Task.of(response.json())


def _task_in(response: httpx.Response) -> Task:
    return Task.of(response.json()["task"])


def _body(
    pictures: Sequence[PictureFile] | None, texts: Sequence[str] | None, label: str | None = None
) -> dict[str, Any]:
    """Return the options of httpx for pictures or for texts."""
    if (pictures is None) == (texts is None):
        raise UserError("Give pictures or texts, one of both.")
    labelled = {} if label is None else {"label": label}
    if texts is not None:
        if isinstance(texts, str):
            raise UserError("Give a list of texts, not a single one.")
        return {"json": {**labelled, "texts": list(texts)}}
    if isinstance(pictures, (str, bytes, Path)):
        raise UserError("Give a list of pictures, not a single one.")
    files = [("files", _file(one, f"picture {i + 1}")) for i, one in enumerate(pictures or ())]
    if not files:
        raise UserError("There are no pictures; give at least one.")
    return {"files": files, "data": labelled}


def _file(given: PictureFile, name: str) -> tuple[str, bytes]:
    """Return the name and the content of a file."""
    if isinstance(given, bytes):
        return name, given
    path = Path(given)
    try:
        return path.name, path.read_bytes()
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror}).") from None
