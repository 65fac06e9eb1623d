"""Answers for new items: of a task, or of the file that is served read-only."""

from collections.abc import Callable
from functools import partial

import numpy as np
from fastapi import APIRouter, Request
from fastapi.responses import Response

from gpldla.server.answers import Explained, Explainer
from gpldla.server.classifiers import Taught
from gpldla.server.intake import Items, check_items, read_items
from gpldla.server.routes.common import Services, TaskId, items_body, problems
from gpldla.server.schemas import Neighbour, Predictions
from gpldla.server.service import Service
from gpldla.server.shown import neighbours_in, neighbours_of_file, shown_prediction

task_router = APIRouter(
    prefix="/v1/tasks/{task_id:task}", tags=["answers"], responses=problems(404, 409, 415)
)
file_router = APIRouter(tags=["answers"], responses=problems(415))


@task_router.post("/predict", openapi_extra=items_body(labelled=False), response_model=Predictions)
async def predict(task_id: TaskId, request: Request, service: Services) -> Response:
    """Return the probabilities of the classes for pictures or texts, and why."""
    given = await read_items(request, service.limits, labelled=False)
    taught = await service.run(_classifier_for, service, task_id, given)
    features = await service.features(given.kind, given.items)

    def neighbours(one: Explained) -> list[Neighbour]:
        return neighbours_in(task_id, taught.examples, one)

    finish = partial(_response, neighbours, taught.task.revision)
    return await _answered(service, taught.explainer, features, given, finish)


@file_router.post("/predict", openapi_extra=items_body(labelled=False), response_model=Predictions)
async def predict_with_file(request: Request, service: Services) -> Response:
    """Return the probabilities of the classes of the served file, and why."""
    classifier, explainer = service.file, service.explainer
    assert classifier is not None
    assert explainer is not None
    (kind,) = service.networks
    given = await read_items(request, service.limits, labelled=False)
    await service.run(check_items, given, kind, service.limits)
    features = await service.features(kind, given.items)

    def neighbours(one: Explained) -> list[Neighbour]:
        return neighbours_of_file(classifier, one)

    return await _answered(service, explainer, features, given, partial(_response, neighbours, None))


def _classifier_for(service: Service, task_id: str, given: Items) -> Taught:
    """Return the classifier of a task; refuse a task that is not ready, and items that it does not take."""
    taught = service.classifiers.of(task_id)
    check_items(given, taught.task.kind, service.limits)
    return taught


async def _answered(
    service: Service,
    explainer: Explainer,
    features: np.ndarray,
    given: Items,
    finish: Callable[[list[Explained]], Response],
) -> Response:
    """Return the response, computed together with those of other requests for the same classifier."""
    response: Response = await explainer.together.answer(service.run, features, given.names, finish)
    return response


def _response(
    neighbours: Callable[[Explained], list[Neighbour]], revision: int | None, answers: list[Explained]
) -> Response:
    shown = [shown_prediction(one, neighbours(one)) for one in answers]
    # Written here, in a thread: FastAPI would check it once more, while everybody else waits.
    body = Predictions(predictions=shown, revision=revision).model_dump_json()
    return Response(body, media_type="application/json")
