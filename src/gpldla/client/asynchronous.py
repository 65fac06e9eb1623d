"""A client for asyncio; its methods are those of `Client`, awaited."""

import asyncio
from types import TracebackType
from typing import TypeVar

import httpx

from gpldla.client import calls
from gpldla.client.calls import Call, PictureFile, seconds_to_wait
from gpldla.client.options import FileForm, Kind, Pictures, Texts, http_options
from gpldla.client.records import Example, Prediction, Quality, ServerInfo, Suggestion, Task

Answer = TypeVar("Answer")


class AsyncClient:
    """A client for asyncio; its methods are those of `Client`, awaited.

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
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        self._retries = retries
        self._http = httpx.AsyncClient(**http_options(url, token, timeout), transport=transport)

    async def __aenter__(self) -> "AsyncClient":
        """Return itself."""
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the connections."""
        await self.close()

    async def close(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    async def server(self) -> ServerInfo:
        """Return what the server does."""
        return await self._send(calls.server())

    async def create_task(self, kind: Kind, name: str = "Untitled") -> Task:
        """Make a task without examples."""
        return await self._send(calls.create_task(kind, name))

    async def tasks(self) -> list[Task]:
        """Return all tasks."""
        return await self._send(calls.tasks())

    async def task(self, task_id: str) -> Task:
        """Return a task."""
        return await self._send(calls.task(task_id))

    async def rename_task(self, task_id: str, name: str) -> Task:
        """Give a task another name."""
        return await self._send(calls.rename_task(task_id, name))

    async def delete_task(self, task_id: str) -> None:
        """Delete a task and its examples."""
        await self._send(calls.delete_task(task_id))

    async def add(
        self, task_id: str, label: str, *, pictures: Pictures = None, texts: Texts = None
    ) -> list[Example]:
        """Add pictures (paths or bytes) or texts of one class, all or none."""
        return await self._send(calls.add(task_id, label, pictures, texts))

    async def examples(self, task_id: str) -> list[Example]:
        """Return the examples of a task."""
        return await self._send(calls.examples(task_id))

    async def thumbnail(self, task_id: str, example_id: str) -> bytes:
        """Return a small copy of a picture, WebP."""
        return await self._send(calls.thumbnail(task_id, example_id))

    async def relabel(self, task_id: str, example_id: str, label: str) -> Task:
        """Give an example another label."""
        return await self._send(calls.relabel(task_id, example_id, label))

    async def remove(self, task_id: str, example_id: str) -> Task:
        """Remove an example; it can be restored."""
        return await self._send(calls.remove(task_id, example_id))

    async def restore(self, task_id: str, example_id: str) -> Task:
        """Bring a removed example back."""
        return await self._send(calls.restore(task_id, example_id))

    async def rename_class(self, task_id: str, label: str, new: str) -> Task:
        """Give a class another name, or merge it with the class of that name."""
        return await self._send(calls.rename_class(task_id, label, new))

    async def remove_class(self, task_id: str, label: str) -> Task:
        """Remove all examples of a class."""
        return await self._send(calls.remove_class(task_id, label))

    async def predict(
        self, task_id: str | None = None, *, pictures: Pictures = None, texts: Texts = None
    ) -> list[Prediction]:
        """Return the answers for pictures (paths or bytes) or texts; without a task, of the served file."""
        return await self._send(calls.predict(task_id, pictures, texts))

    async def quality(self, task_id: str) -> Quality:
        """Judge a task's classifier by leaving each example out."""
        return await self._send(calls.quality(task_id))

    async def suggest(
        self, task_id: str, *, pictures: Pictures = None, texts: Texts = None
    ) -> list[Suggestion]:
        """Rank items without labels, the most informative first."""
        return await self._send(calls.suggest(task_id, pictures, texts))

    async def download(self, task_id: str, form: FileForm = "safetensors") -> bytes:
        """Return a task's classifier as a file."""
        return await self._send(calls.download(task_id, form))

    async def upload(self, file: PictureFile, name: str | None = None) -> Task:
        """Make a task of a classifier's file, given by its path or content."""
        return await self._send(calls.upload(file, name))

    async def _send(self, call: Call[Answer]) -> Answer:
        for _ in range(self._retries):
            response = await self._http.request(call.method, call.path, **call.options)
            wait = seconds_to_wait(response)
            if wait is None:
                return call.answer(response)
            await asyncio.sleep(wait)
        return call.answer(await self._http.request(call.method, call.path, **call.options))
