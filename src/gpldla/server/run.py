"""Run the application with uvicorn, in one process or in several that share one database."""

import gc
import json
import os
import socket
import tempfile
from typing import TYPE_CHECKING, Any

import uvicorn

from gpldla.server.settings import Settings
from gpldla.utils.errors import UserError

if TYPE_CHECKING:
    from fastapi import FastAPI

SECONDS_TO_FINISH = 30  # for what is under way when the server is told to stop
SECONDS_TO_SHOW_LIFE = 60  # for a worker, which is killed else; on a busy machine some take many
VARIABLE = "GPLDLA_SERVER"  # holds the settings for the processes of the workers
SHARED_METRICS = "PROMETHEUS_MULTIPROC_DIR"  # read when `gpldla.server.metrics` is imported


def serve(settings: Settings, *, workers: int = 1, log_format: str = "json") -> None:
    """Serve until SIGINT or SIGTERM, and finish what is under way; wrong settings raise a `UserError`."""
    _check_address(settings.host, settings.port)
    options: dict[str, Any] = {
        "host": settings.host,
        "port": settings.port,
        "timeout_graceful_shutdown": SECONDS_TO_FINISH,
        "timeout_worker_healthcheck": SECONDS_TO_SHOW_LIFE,
        "server_header": False,
        "access_log": False,
        "log_config": None,
        "http": "gpldla.server.connections:Connection",  # by h11, which bounds the size of headers
        "ws": "none",
    }
    if workers == 1:
        uvicorn.run(_app(settings, log_format), **options)
        return
    facts = {"settings": settings.as_json(), "workers": workers, "log_format": log_format}
    with tempfile.TemporaryDirectory() as shared:
        os.environ |= {VARIABLE: json.dumps(facts), SHARED_METRICS: shared}
        _app(settings, log_format).state.service.close()  # what is wrong is said once, not by each worker
        uvicorn.run("gpldla.server.run:app_of_worker", factory=True, workers=workers, **options)


def app_of_worker() -> "FastAPI":
    """Return the application of one of several processes."""
    facts = json.loads(os.environ[VARIABLE])
    if "OMP_NUM_THREADS" not in os.environ:
        import torch

        torch.set_num_threads(max(1, (os.cpu_count() or 1) // facts["workers"]))
    app = _app(Settings.from_json(facts["settings"]), facts["log_format"])
    from gpldla.server.metrics import forget_dead_workers

    forget_dead_workers()  # this one may take the place of another
    return app


def _app(settings: Settings, log_format: str) -> "FastAPI":
    from gpldla.server.app import create_app
    from gpldla.server.logs import configure_logs
    from gpldla.server.service import Service

    service = Service(settings)
    # The modules are hundreds of thousands of objects that stay. Each search for garbage among them would
    # take some tenths of a second, in which nobody is answered.
    gc.collect()
    gc.freeze()
    configure_logs("json" if log_format == "json" else "text")
    app = create_app(settings, service)
    app.state.service = service
    return app


def _check_address(host: str, port: int) -> None:
    """Refuse an address that cannot be listened on, in a sentence; uvicorn would only log it."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        with socket.socket(family) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((host, port))
    except OSError as error:
        raise UserError(
            f"The server cannot listen on {host}, port {port} ({error.strerror}); choose another --port or"
            " --host."
        ) from None
