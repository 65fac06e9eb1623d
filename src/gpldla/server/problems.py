"""Errors as a client sees them: problem details (RFC 9457), never a traceback and never a path."""

import logging
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from sqlalchemy.exc import SQLAlchemyError
from starlette.exceptions import HTTPException

from gpldla.utils.errors import UserError

MEDIA_TYPE = "application/problem+json"
LISTED = 3  # faults of a request that one answer names

log = logging.getLogger("gpldla.server")


class Problem(HTTPException):
    """A request that cannot be answered: a status, and a sentence that names the thing and the remedy."""

    def __init__(self, status: int, detail: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(status, detail, headers)

    @classmethod
    def busy(cls, seconds: float) -> "Problem":
        """Return the answer to a request for which there is no room now."""
        wait = max(1, round(seconds))
        detail = f"The server is busy; send the request again in {wait} s."
        return cls(429, detail, {"Retry-After": str(wait)})


def problem_body(status: int, detail: str) -> dict[str, Any]:
    """Return the members of a problem-details object."""
    return {"type": "about:blank", "title": _title(status), "status": status, "detail": detail}


def problem_response(status: int, detail: str, headers: Mapping[str, str] | None = None) -> JSONResponse:
    """Return a problem as a response."""
    body = problem_body(status, detail)
    return JSONResponse(body, status, headers=dict(headers or {}), media_type=MEDIA_TYPE)


def add_problem_handlers(app: FastAPI) -> None:
    """Turn what concerns the request into a problem; `Observed` does so with all other exceptions."""

    async def of_user_error(request: Request, error: Exception) -> JSONResponse:
        return problem_response(422, str(error))

    async def of_validation(request: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, RequestValidationError)
        return problem_response(422, _sentence(error))

    async def of_http(request: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, HTTPException)
        # Other details than those of a problem may quote what was sent; but those on bodies are needed.
        told = isinstance(error, Problem) or error.status_code == 400
        detail = error.detail if told else f"{_title(error.status_code)}."
        return problem_response(error.status_code, detail, error.headers)

    async def of_database(request: Request, error: Exception) -> JSONResponse:
        log.error("the database failed", exc_info=error)
        return problem_response(503, "The database cannot be used now; the server's log says why.")

    app.add_exception_handler(SQLAlchemyError, of_database)
    app.add_exception_handler(UserError, of_user_error)
    app.add_exception_handler(RequestValidationError, of_validation)
    app.add_exception_handler(HTTPException, of_http)


def _title(status: int) -> str:
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return "Error"


def _sentence(error: RequestValidationError) -> str:
    """Name the wrong fields and what is wrong with each, without the values."""
    faults = []
    for fault in error.errors()[:LISTED]:
        where = ".".join(str(part) for part in fault["loc"] if part != "body") or "the body"
        faults.append(f"{where}: {fault['msg']}".replace("Value error, ", ""))
    return "; ".join(faults) + "."
