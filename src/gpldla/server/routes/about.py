"""What this server is, and whether it is well."""

from dataclasses import asdict

from fastapi import APIRouter
from fastapi.responses import Response

from gpldla import __version__
from gpldla.server.metrics import MEDIA_TYPE, exposition
from gpldla.server.routes.common import Services, problems
from gpldla.server.schemas import Server, ShownLimits

router = APIRouter(responses=problems())


@router.get("/v1/server", tags=["server"])
async def get_server(service: Services) -> Server:
    """Say what this server does, and its limits."""
    settings, limits = service.settings, asdict(service.limits)
    return Server(
        version=__version__,
        kinds=[kind for kind in ("images", "texts") if kind in service.networks],
        backbones={kind: network.model.backbone_name for kind, network in service.networks.items()},
        limits=ShownLimits(**{name: limits[name] for name in ShownLimits.model_fields}),
        token_required=settings.token is not None,
        read_only=service.file is not None,
        classes=None if service.file is None else [str(name) for name in service.file.classes.tolist()],
    )


@router.get("/metrics", tags=["server"], response_class=Response)
async def metrics(service: Services) -> Response:
    """Return measurements for Prometheus."""
    return Response(await service.run(exposition), media_type=MEDIA_TYPE)


@router.head("/healthz", include_in_schema=False)
@router.get("/healthz", tags=["server"])
async def healthz() -> dict[str, str]:
    """Answer as long as the process lives."""
    return {"status": "ok"}


@router.head("/readyz", include_in_schema=False)
@router.get("/readyz", tags=["server"])
async def readyz(service: Services) -> dict[str, str]:
    """Answer if the database does: requests can be sent."""
    if service.file is None:
        await service.run(service.store.check)
    return {"status": "ready"}
