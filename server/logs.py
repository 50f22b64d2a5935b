"""Structured logs: one JSON object a line (or text), each with the id of the request it belongs to."""

import contextvars
import json
import logging
import sys
from datetime import UTC, datetime

request_id: contextvars.ContextVar[str] = contextvars.ContextVar("request_id", default="")

# Attributes that a log call may add with ``extra`` and that become fields of their own.
FIELDS = ("method", "path", "status", "seconds", "model", "client")


def _fields(record: logging.LogRecord) -> dict[str, object]:
    found = {name: getattr(record, name) for name in FIELDS if hasattr(record, name)}
    current = request_id.get()
    return {"request_id": current, **found} if current else found


class JsonFormatter(logging.Formatter):
    """Formats a record as one JSON object."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        line: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **_fields(record),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)  # ASCII: no character in it ends a line


class TextFormatter(logging.Formatter):
    """Formats a record for people."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s")

    def format(self, record: logging.LogRecord) -> str:
        """Return the line, fields behind the message."""
        fields = " ".join(f"{name}={value}" for name, value in _fields(record).items())
        return f"{super().format(record)} {fields}".rstrip()


def configure(log_format: str) -> None:
    """Send all logs to stderr in ``log_format`` ("json" or "text")."""
    # Where a record was made and by which thread is in no line: looking it up is half of what a line costs.
    logging._srcfile = None
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if log_format == "json" else TextFormatter())
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)
    # Requests are logged by our middleware, with their id and their delay.
    logging.getLogger("uvicorn.access").disabled = True
