"""What several routes share: parameters, documented errors, and bodies that are read by hand."""

from typing import Annotated, Any

from fastapi import Depends, Path, Request
from pydantic import AfterValidator, BaseModel
from starlette.convertors import Convertor, register_url_convertor

from gpldla.server.problems import MEDIA_TYPE
from gpldla.server.schemas import LabelledTexts, ProblemDetails, Texts, clean_name
from gpldla.server.service import Service


async def _service(request: Request) -> Service:  # else a thread would be asked for it
    service: Service = request.app.state.service
    return service


Services = Annotated[Service, Depends(_service)]


class _TaskIds(Convertor[str]):
    """An id of a task in a path; what cannot be one leads nowhere."""

    regex = "[0-9a-f]{32}"

    def convert(self, value: str) -> str:
        """Return the id."""
        return value

    def to_string(self, value: str) -> str:
        """Return the id."""
        return value


class _ExampleIds(_TaskIds):
    """An id of an example."""

    regex = "[0-9a-f]{16}"


register_url_convertor("task", _TaskIds())
register_url_convertor("example", _ExampleIds())

TaskId = Annotated[str, Path(pattern="^[0-9a-f]{32}$", description="The id of a task.")]
ExampleId = Annotated[str, Path(pattern="^[0-9a-f]{16}$", description="The id of an example.")]
ClassName = Annotated[str, AfterValidator(clean_name), Path(description="The name of a class.")]

_TOLD = {
    400: "The body cannot be read.",
    401: "The bearer token is missing or wrong.",
    403: "The request comes from another site.",
    404: "There is no such thing.",
    408: "The body comes too slowly.",
    409: "The task is not ready for this, or full.",
    413: "The body, a picture, a text or their number is too large.",
    415: "The body is of another type than this task takes.",
    421: "The request is meant for another host.",
    422: "Something in the request is wrong; the detail names it.",
    429: "The server is busy; Retry-After says how many seconds to wait.",
    500: "The server has made a mistake.",
    503: "The server is shutting down, or its database cannot be used.",
}


def problems(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Return the documentation of errors, besides those that any request may meet."""
    every = {400, 401, 403, 408, 413, 421, 422, 429, 500, 503, *statuses}
    schema = {"schema": ProblemDetails.model_json_schema()}
    return {
        status: {"description": _TOLD[status], "content": {MEDIA_TYPE: schema}} for status in sorted(every)
    }


def items_body(*, labelled: bool) -> dict[str, Any]:
    """Return the documentation of a body with pictures or texts."""
    texts: type[BaseModel] = LabelledTexts if labelled else Texts
    files: dict[str, Any] = {
        "type": "array",
        "items": {"type": "string", "contentMediaType": "application/octet-stream", "format": "binary"},
    }
    fields: dict[str, Any] = {"files": files}
    if labelled:
        fields["label"] = {"type": "string", "examples": ["wren"]}
    form = {"type": "object", "properties": fields, "required": sorted(fields)}
    content = {
        "multipart/form-data": {"schema": form},
        "application/json": {"schema": texts.model_json_schema()},
    }
    return {"requestBody": {"required": True, "content": content}}
