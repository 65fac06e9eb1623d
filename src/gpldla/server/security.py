"""Who may ask: the right host, no other site's page, and only with the token.

DNS rebinding: a page of another site can let its own name point to this machine; the browser then believes
that both are one site, but says that name in the header Host. Cross-site requests: a page may send forms
without asking, but the browser then says where it comes from, in Origin or Sec-Fetch-Site.
"""

import hashlib
import hmac
import ipaddress
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from gpldla.server.problems import problem_response
from gpldla.server.settings import Settings

SAFE_METHODS = ("GET", "HEAD", "OPTIONS")
DEFAULT_PORTS = {"http": ":80", "https": ":443"}
WITHOUT_TOKEN = ("/", "/healthz", "/readyz")  # and the files of the page
PAGE_FILES = "/static/"


class HostCheck:
    """ASGI middleware: answer only requests that are meant for this server."""

    def __init__(self, app: ASGIApp, settings: Settings) -> None:
        self._app, self._local = app, settings.is_local
        self._names = {"localhost", settings.host.lower(), *(name.lower() for name in settings.allowed_hosts)}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request."""
        if scope["type"] == "http" and not self._is_known(Headers(scope=scope).get("host", "")):
            detail = "This server does not answer to this host name; start it with --allowed-host NAME."
            await problem_response(421, detail)(scope, receive, send)
            return
        await self._app(scope, receive, send)

    def _is_known(self, host: str) -> bool:
        name = _without_port(host)
        if name in self._names:
            return True
        try:
            address = ipaddress.ip_address(name)
        except ValueError:
            return False
        return address.is_loopback or not self._local  # an address is nobody's name


class OriginCheck:
    """ASGI middleware: refuse what a page of another site sends, unless that site is allowed."""

    def __init__(self, app: ASGIApp, settings: Settings) -> None:
        self._app, self._allowed = app, {origin.rstrip("/").lower() for origin in settings.allowed_origins}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request."""
        if scope["type"] == "http" and not self._may_ask(scope):
            detail = "Pages of other sites may not use this server; start it with --allow-origin ORIGIN."
            await problem_response(403, detail)(scope, receive, send)
            return
        await self._app(scope, receive, send)

    def _may_ask(self, scope: Scope) -> bool:
        headers = Headers(scope=scope)
        origin = headers.get("origin")
        if origin is not None and origin.lower() in self._allowed:
            return True
        if origin is not None and scope["method"] not in SAFE_METHODS:
            return _is_origin_of(origin, headers.get("host", ""))
        is_page = scope["path"] == "/" or scope["path"].startswith(PAGE_FILES)  # links may lead to the page
        return is_page or headers.get("sec-fetch-site") != "cross-site"


class TokenCheck:
    """ASGI middleware: ask for the bearer token, but for the page and for signs of life."""

    def __init__(self, app: ASGIApp, token: str) -> None:
        self._app, self._digest = app, _digest(token)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request."""
        if scope["type"] == "http" and not self._is_open(scope["path"]) and not self._knows_token(scope):
            detail = "Send the server's token in the header Authorization, as: Bearer TOKEN."
            await problem_response(401, detail, {"WWW-Authenticate": "Bearer"})(scope, receive, send)
            return
        await self._app(scope, receive, send)

    @staticmethod
    def _is_open(path: str) -> bool:
        return path in WITHOUT_TOKEN or path.startswith(PAGE_FILES)

    def _knows_token(self, scope: Scope) -> bool:
        scheme, _, given = Headers(scope=scope).get("authorization", "").partition(" ")
        # Digests have one length, so that the time of the comparison says nothing of the token.
        same = hmac.compare_digest(_digest(given.strip()), self._digest)
        return same and scheme.lower() == "bearer"


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).digest()


def _without_port(host: str) -> str:
    host = host.strip().lower()
    if host.startswith("["):  # [::1]:8000
        return host[1:].partition("]")[0]
    return host.partition(":")[0].removesuffix(".")


def _is_origin_of(origin: str, host: str) -> bool:
    """Return whether an Origin is that of this server's own page; a proxy may have ended its TLS."""
    try:
        parts = urlsplit(origin.lower())
    except ValueError:
        return False
    default = DEFAULT_PORTS.get(parts.scheme)
    if default is None:  # "null", and the pages of extensions
        return False
    return parts.netloc.removesuffix(default) == host.strip().lower().removesuffix(default)
