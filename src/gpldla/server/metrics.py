"""Measurements for Prometheus; several workers of one server add theirs up."""

import os
from pathlib import Path
from typing import Any

from prometheus_client import (
    CONTENT_TYPE_LATEST,
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    generate_latest,
)
from prometheus_client.multiprocess import MultiProcessCollector, mark_process_dead

SHARED = "PROMETHEUS_MULTIPROC_DIR"  # a folder that the workers share; set before this module is imported
MEDIA_TYPE = CONTENT_TYPE_LATEST

_own = CollectorRegistry()

REQUESTS = Counter(
    "gpldla_requests", "Requests that were answered", ["method", "route", "status"], registry=_own
)
SECONDS = Histogram(
    "gpldla_request_seconds",
    "From the first byte of a request to the last of its answer",
    ["route"],
    buckets=(0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30),
    registry=_own,
)
UNDER_WAY = Gauge("gpldla_requests_under_way", "Requests", multiprocess_mode="livesum", registry=_own)
BATCHES = Histogram(
    "gpldla_batch_items",
    "Items that went through a network together",
    ["kind"],
    buckets=(1, 2, 4, 8, 16, 32, 64),
    registry=_own,
)
WAITING = Gauge(
    "gpldla_waiting_items", "Items that wait", ["kind"], multiprocess_mode="livesum", registry=_own
)


def exposition() -> bytes:
    """Return all measurements as text."""
    registry = _own
    if SHARED in os.environ:
        registry = CollectorRegistry()
        collect: Any = MultiProcessCollector  # has no annotations
        collect(registry)
    return generate_latest(registry)


def forget_dead_workers() -> None:
    """Leave out what waited in workers that have died; what they had counted stays."""
    for file in Path(os.environ[SHARED]).glob("gauge_live*_*.db"):
        pid = int(file.stem.rpartition("_")[2])
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            forget: Any = mark_process_dead  # has no annotations
            forget(pid)
