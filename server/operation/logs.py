"""Structured logs: one JSON object a line, or text, each with the id of the request it belongs to."""

import contextvars
import json
import logging
import re
import sys
from collections.abc import Iterable
from datetime import UTC, datetime
from random import getrandbits

from models.errors import printable

request_id: contextvars.ContextVar[str] = contextvars.ContextVar("request_id", default="")

_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")

# Attributes that a log call may add with ``extra`` and that become fields of their own.
FIELDS = ("method", "path", "status", "seconds", "model", "client", "key")


def _fields(record: logging.LogRecord) -> dict[str, object]:
    found = {name: getattr(record, name) for name in FIELDS if hasattr(record, name)}
    current = request_id.get()
    return {**found, "request_id": current} if current else found


def identity(headers: Iterable[tuple[bytes, bytes]]) -> str:
    """Return the client's name of its request (X-Request-ID), where that is sane, or a new one."""
    for name, value in headers:
        if name == b"x-request-id" and _ID.fullmatch(offered := value.decode("latin-1")):
            return offered
    return f"{getrandbits(128):032x}"


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
    """Formats a record for people: time of day, level where it is not INFO, message, fields."""

    def format(self, record: logging.LogRecord) -> str:
        """Return one line; behind it, where the record has one, a traceback."""
        time = datetime.fromtimestamp(record.created).strftime("%H:%M:%S")
        level = "" if record.levelname == "INFO" else f"{record.levelname.lower()}: "
        fields = "".join(f" {name}={value}" for name, value in _fields(record).items())
        line = printable(f"{time} {level}{record.getMessage()}{fields}")
        traceback = self.formatException(record.exc_info).split("\n") if record.exc_info else ()
        return "\n".join((line, *map(printable, traceback)))


def configure(log_format: str) -> None:
    """Send all logs to stderr: as "json", as "text", or "auto", which is text on a terminal."""
    # Where a record was made and by which thread is in no line: looking it up is half of what a line costs.
    logging._srcfile = None
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False
    handler = logging.StreamHandler(sys.stderr)
    is_text = log_format == "text" or (log_format == "auto" and sys.stderr.isatty())
    handler.setFormatter(TextFormatter() if is_text else JsonFormatter())
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)
    # Requests are logged by our middleware, with their id and their delay; start and end by serve.py.
    logging.getLogger("uvicorn.access").disabled = True
    logging.getLogger("uvicorn.error").setLevel(logging.WARNING)
