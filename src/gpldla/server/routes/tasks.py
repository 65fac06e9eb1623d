"""Tasks: make, list, rename, delete."""

from fastapi import APIRouter

from gpldla.server.problems import Problem
from gpldla.server.routes.common import Services, TaskId, problems
from gpldla.server.schemas import NewTask, Renamed, Task, Tasks
from gpldla.server.shown import shown_task

router = APIRouter(prefix="/v1/tasks", tags=["tasks"], responses=problems())


@router.post("", status_code=201, responses=problems(409))
async def create_task(new: NewTask, service: Services) -> Task:
    """Make a task without examples."""
    network = service.networks.get(new.kind)
    if network is None:
        raise Problem(409, f"This server has no network for {new.kind}.")
    made = await service.run(service.store.create_task, new.kind, new.name, network.fingerprint)
    return shown_task(made)


@router.get("")
async def list_tasks(service: Services) -> Tasks:
    """List all tasks."""
    return Tasks(tasks=[shown_task(task) for task in await service.run(service.store.tasks)])


@router.get("/{task_id:task}", responses=problems(404))
async def get_task(task_id: TaskId, service: Services) -> Task:
    """Return a task."""
    return shown_task(await service.run(service.store.task, task_id))


@router.patch("/{task_id:task}", responses=problems(404))
async def rename_task(task_id: TaskId, renamed: Renamed, service: Services) -> Task:
    """Give a task another name."""
    return shown_task(await service.run(service.store.rename_task, task_id, renamed.name))


@router.delete("/{task_id:task}", status_code=204, responses=problems(404))
async def delete_task(task_id: TaskId, service: Services) -> None:
    """Delete a task and its examples."""
    await service.run(service.store.delete_task, task_id)
