"""The log: one line per event, as JSON or as text, with the id of the request that it belongs to."""

import json
import logging
import sys
from datetime import UTC, datetime
from typing import Any, Literal

from gpldla.server.observing import request_id

LogFormat = Literal["json", "text"]


class JsonLines(logging.Formatter):
    """One JSON object per line."""

    def format(self, record: logging.LogRecord) -> str:
        """Return a line."""
        facts: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if own_id := request_id.get():
            facts["request_id"] = own_id
        facts |= getattr(record, "facts", {})
        if record.exc_info:
            facts["error"] = self.formatException(record.exc_info)
        return json.dumps(facts)


class TextLines(logging.Formatter):
    """A line for people; what a client has sent cannot begin a line of its own."""

    def format(self, record: logging.LogRecord) -> str:
        """Return a line, and a traceback below it if there is one."""
        time = datetime.fromtimestamp(record.created).strftime("%H:%M:%S")
        message = (
            record.getMessage().encode("unicode_escape").decode() if record.args else record.getMessage()
        )
        line = f"{time} {record.levelname.lower()} {message}"
        if own_id := request_id.get():
            line += f" [{own_id}]"
        return line + (f"\n{self.formatException(record.exc_info)}" if record.exc_info else "")


def configure_logs(form: LogFormat) -> None:
    """Write the log of this package and of uvicorn to stderr."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines() if form == "json" else TextLines())
    for name in ("gpldla", "uvicorn"):
        logger = logging.getLogger(name)
        logger.handlers, logger.propagate = [handler], False
        logger.setLevel(logging.INFO)
    logging.getLogger("uvicorn.access").disabled = True  # the lines of gpldla.access say more
