"""What helps to teach a task: how good it is, and what to label next."""

from fastapi import APIRouter, Request

from gpldla.classifier.expected_accuracy import CONFIDENCE
from gpldla.server.classifiers import Taught
from gpldla.server.intake import check_items, read_items
from gpldla.server.quality import Quality, quality_of
from gpldla.server.routes.common import Services, TaskId, items_body, problems
from gpldla.server.schemas import (
    Confusion,
    ReliabilityBin,
    ShownQuality,
    Suggestion,
    Suggestions,
    SuspectExample,
)
from gpldla.server.shown import shown_example
from gpldla.server.suggestions import rank

router = APIRouter(prefix="/v1/tasks/{task_id:task}", tags=["teaching"], responses=problems(404, 409))


@router.get("/quality")
async def get_quality(task_id: TaskId, service: Services) -> ShownQuality:
    """Judge a task's classifier by leaving each example out; shares are between 0 and 1."""
    taught = await service.run(service.classifiers.of, task_id)
    return _shown(task_id, taught, await service.run(quality_of, taught))


@router.post("/suggest", responses=problems(404, 409, 415), openapi_extra=items_body(labelled=False))
async def suggest(task_id: TaskId, request: Request, service: Services) -> Suggestions:
    """Rank items without labels by what their labels would teach about all the others."""
    pool = await read_items(request, service.limits, labelled=False)
    taught = await service.run(service.classifiers.of, task_id)
    await service.run(check_items, pool, taught.task.kind, service.limits)
    features = await service.features(pool.kind, pool.items)
    ranked = await service.run(rank, taught.classifier, features)
    shown = [
        Suggestion(
            name=pool.names[one.index],
            index=one.index,
            score=one.gain,
            guess=one.guess,
            probability=one.probability,
        )
        for one in ranked
    ]
    return Suggestions(suggestions=shown, revision=taught.task.revision)


def _shown(task_id: str, taught: Taught, quality: Quality) -> ShownQuality:
    summary, expected = quality.summary, quality.summary.expected
    assert summary.accuracy is not None
    by_id = {one.id: one for one in taught.examples}
    suspects = [
        SuspectExample(
            **shown_example(task_id, by_id[one.item]).model_dump(),
            suggested=str(one.rather),
            probability=one.probability,
        )
        for one in summary.suspects
    ]
    bins = [
        ReliabilityBin(confidence=confidence, accuracy=accuracy, count=count)
        for confidence, accuracy, count in quality.reliability
    ]
    return ShownQuality(
        accuracy=summary.accuracy / 100,
        tested=summary.tested,
        expected_accuracy=None if expected is None else expected.accuracy,
        interval=None if expected is None else (expected.low, expected.high),
        interval_probability=CONFIDENCE,
        confusion=Confusion(labels=quality.labels, counts=quality.counts),
        reliability=bins,
        suspects=suspects,
        revision=taught.task.revision,
    )
