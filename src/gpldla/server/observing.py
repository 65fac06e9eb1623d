"""Each request has an id, a line in the log, measurements, and headers that browsers obey."""

import logging
import re
import time
import uuid
from contextvars import ContextVar
from typing import Any

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gpldla.server.metrics import REQUESTS, SECONDS, UNDER_WAY
from gpldla.server.problems import Problem, problem_response

MOST_UNDER_WAY = 512  # requests; with more, one is answered 429
SECONDS_TO_WAIT = 2.0
HEADERS = {
    "Content-Security-Policy": "default-src 'self'; img-src 'self' blob: data:; media-src 'self' blob:;"
    " object-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(self), microphone=(), geolocation=()",
}
METHODS = ("GET", "HEAD", "POST", "PATCH", "DELETE", "OPTIONS")
GIVEN_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")

request_id: ContextVar[str] = ContextVar("request_id", default="")

log = logging.getLogger("gpldla.server")
access = logging.getLogger("gpldla.access")


class Observed:
    """The outermost ASGI middleware; whatever the others raise becomes a problem here."""

    def __init__(self, app: ASGIApp) -> None:
        self._app, self._under_way = app, 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        given = Headers(scope=scope).get("x-request-id", "")
        own_id = given if GIVEN_ID.fullmatch(given) else uuid.uuid4().hex
        request_id.set(own_id)
        started = time.perf_counter()
        status = 0

        async def observed(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                _add_headers(MutableHeaders(scope=message), own_id)
            await send(message)

        self._under_way += 1
        UNDER_WAY.inc()
        try:
            if self._under_way > MOST_UNDER_WAY:
                raise Problem.busy(SECONDS_TO_WAIT)
            await self._app(scope, receive, observed)
        except Problem as error:
            if not status:
                await problem_response(error.status_code, error.detail, error.headers)(
                    scope, receive, observed
                )
        except Exception as error:
            log.error("unexpected error", exc_info=error)
            if not status:
                detail = f"The server has made a mistake; its log says which, at {own_id}."
                await problem_response(500, detail)(scope, receive, observed)
        finally:
            self._under_way -= 1
            UNDER_WAY.dec()
            _record(scope, status, time.perf_counter() - started)


def _add_headers(headers: MutableHeaders, own_id: str) -> None:
    for name, value in HEADERS.items():
        headers[name] = value
    headers["X-Request-ID"] = own_id
    headers.setdefault("Cache-Control", "no-store")


def _record(scope: Scope, status: int, seconds: float) -> None:
    route: Any = scope.get("route")
    path = getattr(route, "path_format", None) or "other"  # the pattern: names of tasks are not measurements
    method = scope["method"] if scope["method"] in METHODS else "other"
    REQUESTS.labels(method, path, status).inc()
    SECONDS.labels(path).observe(seconds)
    facts = {
        "method": scope["method"],
        "path": _without_label(scope["path"]),
        "status": status,
        "ms": round(1000 * seconds, 1),
        "client": (scope.get("client") or ("",))[0],
    }
    access.info("%(method)s %(path)s %(status)s %(ms)s ms", facts, extra={"facts": facts})


def _without_label(path: str) -> str:
    """Return a path without the name of a class, which says what somebody teaches."""
    before, classes, label = path.partition("/classes/")
    return before + classes + ("…" if label else "")
