"""A bound on the body of each request, and on all bodies that are held at a time."""

import asyncio

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gpldla.server.problems import Problem, problem_response
from gpldla.server.settings import Limits

SECONDS_TO_WAIT = 2.0  # for a client that comes when too many bytes are held
SECONDS_TO_SEND = 60.0  # the longest pause within a body


class BodyLimit:
    """ASGI middleware; counts what is received, as a client may announce nothing, or lie."""

    def __init__(self, app: ASGIApp, limits: Limits) -> None:
        self._app, self._limits, self._held = app, limits, 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        most, own, ended = self._limits.upload_bytes, 0, False

        def too_large() -> Problem:
            return Problem(413, f"The body of a request may have {most} bytes; send fewer items at a time.")

        announced = dict(scope["headers"]).get(b"content-length", b"")
        if announced.isdigit() and int(announced) > most:
            error = too_large()
            await problem_response(413, error.detail, {"Connection": "close"})(scope, receive, send)
            return

        async def counted() -> Message:
            nonlocal own, ended
            if ended:  # what comes next is that the client has gone, and may take its time
                return await receive()
            try:
                message = await asyncio.wait_for(receive(), SECONDS_TO_SEND)
            except TimeoutError:
                raise Problem(408, f"Nothing has come for {SECONDS_TO_SEND:.0f} s.") from None
            ended = not message.get("more_body", False)
            size = len(message.get("body", b""))
            own += size
            self._held += size
            if own > most:
                raise too_large()
            if self._held > self._limits.bytes_in_flight:
                raise Problem.busy(SECONDS_TO_WAIT)
            return message

        try:
            await self._app(scope, counted, send)
        finally:
            self._held -= own
