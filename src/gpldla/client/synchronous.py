"""A client that waits for each answer."""

import time
from types import TracebackType
from typing import TypeVar

import httpx

from gpldla.client import calls
from gpldla.client.calls import Call, PictureFile, seconds_to_wait
from gpldla.client.options import FileForm, Kind, Pictures, Texts, http_options
from gpldla.client.records import Example, Prediction, Quality, ServerInfo, Suggestion, Task

Answer = TypeVar("Answer")


class Client:
    """A client that waits for each answer.

    Refusals of the server raise `ServerError`. Where it is busy and says when to ask again, the request is
    sent again, up to `retries` times. Use it as a context, or call `close`.
    """

    def __init__(
        self,
        url: str = "http://127.0.0.1:8000",
        *,
        token: str | None = None,
        timeout: float = 60.0,
        retries: int = 3,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        self._retries = retries
        self._http = httpx.Client(**http_options(url, token, timeout), transport=transport)

    def __enter__(self) -> "Client":
        """Return itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the connections."""
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def server(self) -> ServerInfo:
        """Return what the server does."""
        return self._send(calls.server())

    def create_task(self, kind: Kind, name: str = "Untitled") -> Task:
        """Make a task without examples."""
        return self._send(calls.create_task(kind, name))

    def tasks(self) -> list[Task]:
        """Return all tasks."""
        return self._send(calls.tasks())

    def task(self, task_id: str) -> Task:
        """Return a task."""
        return self._send(calls.task(task_id))

    def rename_task(self, task_id: str, name: str) -> Task:
        """Give a task another name."""
        return self._send(calls.rename_task(task_id, name))

    def delete_task(self, task_id: str) -> None:
        """Delete a task and its examples."""
        self._send(calls.delete_task(task_id))

    def add(
        self, task_id: str, label: str, *, pictures: Pictures = None, texts: Texts = None
    ) -> list[Example]:
        """Add pictures (paths or bytes) or texts of one class, all or none."""
        return self._send(calls.add(task_id, label, pictures, texts))

    def examples(self, task_id: str) -> list[Example]:
        """Return the examples of a task."""
        return self._send(calls.examples(task_id))

    def thumbnail(self, task_id: str, example_id: str) -> bytes:
        """Return a small copy of a picture, WebP."""
        return self._send(calls.thumbnail(task_id, example_id))

    def relabel(self, task_id: str, example_id: str, label: str) -> Task:
        """Give an example another label."""
        return self._send(calls.relabel(task_id, example_id, label))

    def remove(self, task_id: str, example_id: str) -> Task:
        """Remove an example; it can be restored."""
        return self._send(calls.remove(task_id, example_id))

    def restore(self, task_id: str, example_id: str) -> Task:
        """Bring a removed example back."""
        return self._send(calls.restore(task_id, example_id))

    def rename_class(self, task_id: str, label: str, new: str) -> Task:
        """Give a class another name, or merge it with the class of that name."""
        return self._send(calls.rename_class(task_id, label, new))

    def remove_class(self, task_id: str, label: str) -> Task:
        """Remove all examples of a class."""
        return self._send(calls.remove_class(task_id, label))

    def predict(
        self, task_id: str | None = None, *, pictures: Pictures = None, texts: Texts = None
    ) -> list[Prediction]:
        """Return the answers for pictures (paths or bytes) or texts; without a task, of the served file."""
        return self._send(calls.predict(task_id, pictures, texts))

    def quality(self, task_id: str) -> Quality:
        """Judge a task's classifier by leaving each example out."""
        return self._send(calls.quality(task_id))

    def suggest(self, task_id: str, *, pictures: Pictures = None, texts: Texts = None) -> list[Suggestion]:
        """Rank items without labels, the most informative first."""
        return self._send(calls.suggest(task_id, pictures, texts))

    def download(self, task_id: str, form: FileForm = "safetensors") -> bytes:
        """Return a task's classifier as a file."""
        return self._send(calls.download(task_id, form))

    def upload(self, file: PictureFile, name: str | None = None) -> Task:
        """Make a task of a classifier's file, given by its path or content."""
        return self._send(calls.upload(file, name))

    def _send(self, call: Call[Answer]) -> Answer:
        for _ in range(self._retries):
            response = self._http.request(call.method, call.path, **call.options)
            wait = seconds_to_wait(response)
            if wait is None:
                return call.answer(response)
            time.sleep(wait)
        return call.answer(self._http.request(call.method, call.path, **call.options))
