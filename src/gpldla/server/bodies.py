"""Bounds on the body of each request, on all bodies that are held at a time, and on how slowly one comes."""

import asyncio
import time

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gpldla.server.problems import Problem
from gpldla.server.settings import Limits

SECONDS_TO_WAIT = 2.0  # for a client that comes when too many bytes are held
SECONDS_TO_SEND = 60.0  # for a body, besides what the slowest connection needs
CLOSE = {"Connection": "close"}  # rather than read the rest
SLOWEST = 4096  # bytes per second; slower ones would hold their place for hours


class BodyLimit:
    """ASGI middleware; counts what is received, as a client may announce nothing, or lie."""

    def __init__(self, app: ASGIApp, limits: Limits) -> None:
        self._app, self._limits, self._held = app, limits, 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        most, own, ended, started = self._most(headers), 0, False, time.monotonic()

        def too_large() -> Problem:
            return Problem(413, f"This body may have {most} bytes; send fewer items at a time.", CLOSE)

        announced = headers.get("content-length", "")
        if announced and "transfer-encoding" in headers:  # a proxy may believe the one, and we the other
            raise Problem(400, "A body has one length; leave out Content-Length or Transfer-Encoding.", CLOSE)
        if announced.isdecimal() and int(announced) > most:
            raise too_large()

        async def counted() -> Message:
            nonlocal own, ended
            if ended:  # what comes next is that the client has gone, and may take its time
                return await receive()
            left = started + SECONDS_TO_SEND + own / SLOWEST - time.monotonic()
            try:
                message = await asyncio.wait_for(receive(), max(0.0, left))
            except TimeoutError:
                raise Problem(408, "The body comes too slowly; send less, or over a faster line.") from None
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

    def _most(self, headers: Headers) -> int:
        is_form = headers.get("content-type", "").lower().startswith("multipart/form-data")
        return self._limits.upload_bytes if is_form else self._limits.json_bytes
