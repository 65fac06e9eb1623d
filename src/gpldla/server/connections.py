"""A bound on the time that the headers of a request may take, which uvicorn does not have."""

import asyncio
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

SECONDS_FOR_HEADERS = 20.0


class Connection(H11Protocol):
    """Is closed if its next request does not begin in time: many that wait would leave no room for others."""

    _deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        """Begin to wait for the first request."""
        super().connection_made(transport)
        self._wait()

    def connection_lost(self, exc: Exception | None) -> None:
        """Wait no longer."""
        self._wait_no_longer()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Take a piece of a request; for the rest of the headers uvicorn itself would wait for ever."""
        super().data_received(data)
        if self.cycle is not None and not self.cycle.response_complete:
            self._wait_no_longer()  # it is being answered, and `BodyLimit` waits for its body
        elif self._deadline is None:
            self._wait()

    def _wait(self) -> None:
        self._deadline = self.loop.call_later(SECONDS_FOR_HEADERS, self.timeout_keep_alive_handler)

    def _wait_no_longer(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
