"""The page: files of the package, read once; no path of a request reaches the file system."""

import mimetypes
from pathlib import Path

from fastapi import APIRouter
from fastapi.responses import Response

from gpldla.server.problems import Problem

PAGE = Path(__file__).parent.parent / "page"
INDEX = "index.html"
TYPES = {".js": "text/javascript", ".mjs": "text/javascript", ".webp": "image/webp", ".svg": "image/svg+xml"}


def page_router() -> APIRouter:
    """Return the routes of the page and its files; without a page they answer 404."""
    files = {
        path.relative_to(PAGE).as_posix(): (path.read_bytes(), _type_of(path))
        for path in sorted(PAGE.rglob("*"))
        if path.is_file()
    }
    router = APIRouter(include_in_schema=False)

    def answer(name: str) -> Response:
        if name not in files:
            raise Problem(404, "There is no such file.")
        content, kind = files[name]
        return Response(content, media_type=kind, headers={"Cache-Control": "no-cache"})

    @router.head("/")
    @router.get("/")
    async def index() -> Response:
        return answer(INDEX)

    @router.head("/static/{name:path}")
    @router.get("/static/{name:path}")
    async def static(name: str) -> Response:
        return answer(name)

    return router


def _type_of(path: Path) -> str:
    return TYPES.get(path.suffix) or mimetypes.guess_type(path.name)[0] or "application/octet-stream"
