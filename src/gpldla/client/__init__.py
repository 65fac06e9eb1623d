"""A client of `gpldla serve`, for programs that wait (`Client`) and for those that do not (`AsyncClient`)."""

from gpldla.client.asynchronous import AsyncClient
from gpldla.client.calls import ServerError
from gpldla.client.records import (
    Example,
    Neighbour,
    Prediction,
    Quality,
    ServerInfo,
    Suggestion,
    Suspect,
    Task,
)
from gpldla.client.synchronous import Client

__all__ = [
    "AsyncClient",
    "Client",
    "Example",
    "Neighbour",
    "Prediction",
    "Quality",
    "ServerError",
    "ServerInfo",
    "Suggestion",
    "Suspect",
    "Task",
]
