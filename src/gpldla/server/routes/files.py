"""Classifiers as files: download and upload."""

import re
from typing import Annotated, Literal
from urllib.parse import quote

from fastapi import APIRouter, Query, Request
from fastapi.responses import Response
from starlette.datastructures import UploadFile

from gpldla.server.classifier_files import MEDIA_TYPES, Brought, file_of
from gpldla.server.problems import Problem
from gpldla.server.routes.common import Services, TaskId, problems
from gpldla.server.schemas import NAME_LENGTH, Task, clean_name
from gpldla.server.shown import shown_task

router = APIRouter(prefix="/v1/tasks", tags=["files"], responses=problems())

Form = Literal["safetensors", "onnx"]
_UPLOAD = {
    "type": "object",
    "properties": {
        "file": {"type": "string", "contentMediaType": "application/octet-stream", "format": "binary"},
        "name": {"type": "string", "examples": ["Birds"]},
    },
    "required": ["file"],
}


@router.get(
    "/{task_id:task}/classifier",
    response_class=Response,
    responses={
        **problems(404, 409),
        200: {"content": {"application/octet-stream": {}}, "description": "The classifier as one file."},
    },
)
async def download(
    task_id: TaskId,
    service: Services,
    form: Annotated[Form, Query(alias="format", description="A file of gpldla, or ONNX.")] = "safetensors",
) -> Response:
    """Return a task's classifier as a file, for `gpldla predict` or for any ONNX runtime."""
    taught = await service.run(service.classifiers.of, task_id)
    threads = service.graphs if form == "onnx" else service.files
    content = await threads.run(file_of, taught, form)
    return Response(content, media_type=MEDIA_TYPES[form], headers=_disposition(taught.task.name, form))


@router.post(
    "/upload",
    status_code=201,
    responses=problems(409, 415),
    openapi_extra={
        "requestBody": {"required": True, "content": {"multipart/form-data": {"schema": _UPLOAD}}}
    },
)
async def upload(request: Request, service: Services) -> Task:
    """Make a task of a classifier that was downloaded, or written by `gpldla fit`."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "multipart/form-data":
        raise Problem(415, "A classifier is sent as the file of a form, multipart/form-data.")
    async with request.form(max_files=1, max_fields=1) as form:
        sent = form.get("file")
        if not isinstance(sent, UploadFile):
            raise Problem(422, "The form has no file 'file'; send a classifier as it.")
        content, name = await sent.read(), _name(form.get("name"), sent.filename)
    brought = await service.files.run(Brought, content, service.networks, service.limits)
    network = brought.network
    made = await service.run(
        service.store.create_task,
        network.kind,
        name,
        network.fingerprint,
        brought.labelled,
        brought.unlabelled,
    )
    return shown_task(made)


def _name(given: object, filename: str | None) -> str:
    """Return the name of a new task: as it is given, else that of the file."""
    if isinstance(given, str):
        try:
            return clean_name(given)
        except ValueError as error:
            raise Problem(422, f"name: {error}.") from None
    stem = re.sub(r"[^\w .()-]", "", (filename or "").removesuffix(".safetensors")).strip()
    return stem[:NAME_LENGTH].strip() or "Uploaded"


def _disposition(name: str, form: str) -> dict[str, str]:
    """Return the header that names a downloaded file, in ASCII and in full (RFC 6266)."""
    plain = re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-.") or "classifier"
    full = quote(f"{name}.{form}", safe="")
    return {"Content-Disposition": f"attachment; filename=\"{plain}.{form}\"; filename*=UTF-8''{full}"}
