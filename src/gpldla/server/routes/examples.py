"""Examples of a task and its classes: add, list, relabel, remove, restore."""

from fastapi import APIRouter, Request
from fastapi.responses import Response

from gpldla.server.intake import Items, check_items, read_items
from gpldla.server.problems import Problem
from gpldla.server.routes.common import ClassName, ExampleId, Services, TaskId, items_body, problems
from gpldla.server.schemas import (
    Added,
    Changed,
    ClassChanged,
    Examples,
    Relabelled,
    Removed,
    Renamed,
    clean_label,
)
from gpldla.server.service import Service
from gpldla.server.shown import shown_example, shown_task
from gpldla.server.storage import NewExample

router = APIRouter(prefix="/v1/tasks/{task_id:task}", tags=["examples"], responses=problems(404))


@router.post(
    "/examples", status_code=201, responses=problems(404, 409, 415), openapi_extra=items_body(labelled=True)
)
async def add_examples(task_id: TaskId, request: Request, service: Services) -> Added:
    """Add pictures or texts of one class, all or none."""
    given = await read_items(request, service.limits, labelled=True)
    await service.run(_check, service, task_id, given)
    features = await service.features(given.kind, given.items)
    thumbnails: list[bytes | None] = [None] * len(given.items)
    if given.kind == "images":
        thumbnails = await service.run(service.thumbnails, given.items)
    new = [
        NewExample(name, row, text, thumbnail)
        for name, row, text, thumbnail in zip(given.names, features, given.texts, thumbnails)
    ]
    added, after = await service.run(service.store.add, task_id, given.label, new)
    return Added(examples=[shown_example(task_id, one) for one in added], task=shown_task(after))


def _check(service: Service, task_id: str, given: Items) -> None:
    """Refuse items that a task does not take."""
    task = service.store.task(task_id)
    service.classifiers.network_of(task)
    check_items(given, task.kind, service.limits)


@router.get("/examples")
async def list_examples(task_id: TaskId, service: Services) -> Examples:
    """List the examples of a task in the order in which they were added."""
    found = await service.run(service.store.examples, task_id)
    return Examples(examples=[shown_example(task_id, one) for one in found])


@router.get(
    "/examples/{example_id:example}/thumbnail",
    response_class=Response,
    responses={**problems(404), 200: {"content": {"image/webp": {}}, "description": "A small picture."}},
)
async def get_thumbnail(task_id: TaskId, example_id: ExampleId, service: Services) -> Response:
    """Return a small copy of a picture."""
    thumbnail = await service.run(service.store.thumbnail, task_id, example_id)
    if thumbnail is None:
        raise Problem(404, "The example has no thumbnail.")
    kept = {"Cache-Control": "private, max-age=86400, immutable"}  # an id is never given twice
    return Response(thumbnail, media_type="image/webp", headers=kept)


@router.patch("/examples/{example_id:example}", responses=problems(404, 409))
async def relabel_example(
    task_id: TaskId, example_id: ExampleId, relabelled: Relabelled, service: Services
) -> Changed:
    """Give an example another label."""
    example, task = await service.run(service.store.relabel, task_id, example_id, relabelled.label)
    return Changed(example=shown_example(task_id, example), task=shown_task(task))


@router.delete("/examples/{example_id:example}")
async def remove_example(task_id: TaskId, example_id: ExampleId, service: Services) -> Removed:
    """Remove an example; it can be restored."""
    return Removed(task=shown_task(await service.run(service.store.remove, task_id, example_id)))


@router.post("/examples/{example_id:example}/restore", responses=problems(404, 409))
async def restore_example(task_id: TaskId, example_id: ExampleId, service: Services) -> Changed:
    """Bring a removed example back."""
    example, task = await service.run(service.store.restore, task_id, example_id)
    return Changed(example=shown_example(task_id, example), task=shown_task(task))


@router.patch("/classes/{label:path}")
async def rename_class(
    task_id: TaskId, label: ClassName, renamed: Renamed, service: Services
) -> ClassChanged:
    """Give a class another name; the name of another class merges both."""
    try:
        new = clean_label(renamed.name)
    except ValueError as error:
        raise Problem(422, f"name: {error}.") from None
    ids, task = await service.run(service.store.rename_class, task_id, label, new)
    return ClassChanged(examples=ids, task=shown_task(task))


@router.delete("/classes/{label:path}")
async def remove_class(task_id: TaskId, label: ClassName, service: Services) -> ClassChanged:
    """Remove all examples of a class; each can be restored."""
    ids, task = await service.run(service.store.remove_class, task_id, label)
    return ClassChanged(examples=ids, task=shown_task(task))
