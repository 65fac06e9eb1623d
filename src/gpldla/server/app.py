"""The application: its routes, its middleware, and its life from start to end."""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from fastapi import FastAPI
from fastapi.middleware.cors import CORSMiddleware

from gpldla import __version__
from gpldla.server.bodies import BodyLimit
from gpldla.server.observing import Observed
from gpldla.server.problems import add_problem_handlers
from gpldla.server.routes import about, examples, files, predict, tasks, teaching
from gpldla.server.routes.page import page_router
from gpldla.server.security import HostCheck, OriginCheck, TokenCheck
from gpldla.server.service import Service
from gpldla.server.settings import Settings

SECONDS_BETWEEN_SWEEPS = 600.0

log = logging.getLogger("gpldla.server")


def create_app(settings: Settings, given: Service | None = None) -> FastAPI:
    """Return the application, with a service that is made when it starts unless it is given."""

    @asynccontextmanager
    async def life(app: FastAPI) -> AsyncIterator[None]:
        service = await asyncio.to_thread(Service, settings) if given is None else given
        app.state.service = service
        sweeper = asyncio.create_task(_sweep(service))
        try:
            yield
        finally:
            sweeper.cancel()
            with suppress(asyncio.CancelledError):
                await sweeper
            await asyncio.to_thread(service.close)

    app = FastAPI(
        title="gpldla",
        version=__version__,
        summary="Few-shot classification with calibrated probabilities, taught live.",
        openapi_url="/v1/openapi.json",
        docs_url=None,  # they would load scripts from another site
        redoc_url=None,
        lifespan=life,
        redirect_slashes=False,
    )
    add_problem_handlers(app)
    app.include_router(about.router)
    if settings.file is None:
        app.include_router(tasks.router)
        app.include_router(examples.router)
        app.include_router(predict.task_router)
        app.include_router(teaching.router)
        app.include_router(files.router)
    else:
        app.include_router(predict.file_router)
    app.include_router(page_router())
    _add_middleware(app, settings)
    return app


def _add_middleware(app: FastAPI, settings: Settings) -> None:
    """Add what every request passes; the last one added is the outermost."""
    app.add_middleware(BodyLimit, limits=settings.limits)
    if settings.token is not None:
        app.add_middleware(TokenCheck, token=settings.token)
    if settings.allowed_origins:  # outside of the token, as a browser asks first without it
        app.add_middleware(
            CORSMiddleware,
            allow_origins=list(settings.allowed_origins),
            allow_methods=["GET", "POST", "PATCH", "DELETE"],
            allow_headers=["Authorization", "Content-Type", "X-Request-ID"],
            expose_headers=["Content-Disposition", "Retry-After", "X-Request-ID"],
        )
    app.add_middleware(OriginCheck, settings=settings)
    app.add_middleware(HostCheck, settings=settings)
    app.add_middleware(Observed)


async def _sweep(service: Service) -> None:
    """Delete tasks whose time is over, now and then."""
    while service.file is None:
        await asyncio.sleep(SECONDS_BETWEEN_SWEEPS)
        with suppress(Exception):  # a database that is away for a while; requests will say so
            if count := await service.run(service.store.delete_expired):
                log.info("deleted %d tasks whose time was over", count)
