"""Logs: text for people or one JSON object a line, each with the id of the request it belongs to."""

import contextvars
import json
import logging
import os
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import partial
from typing import TextIO

from models.errors import printable
from server.operation.line_queue import LineStream

request_id: contextvars.ContextVar[str] = contextvars.ContextVar("request_id", default="")

# Attributes that a log call may add with ``extra`` and that become fields of their own.
FIELDS = ("method", "path", "status", "seconds", "key", "error", "by", "reason")

# Of syslog(3), which journalctl --priority takes: the first whose level a record reaches.
_PRIORITIES = (
    (logging.CRITICAL, 2),
    (logging.ERROR, 3),
    (logging.WARNING, 4),
    (logging.INFO, 6),
    (logging.NOTSET, 7),
)


def _fields(record: logging.LogRecord) -> dict[str, object]:
    fields = {name: getattr(record, name) for name in FIELDS if hasattr(record, name)}
    current = request_id.get()
    return {**fields, "request_id": current} if current else fields


def _value(value: object) -> str:
    """Return ``value`` as one word, in quotes where it has spaces."""
    text = str(value)
    return json.dumps(text) if " " in text else text


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
    """Formats a record for people: time, level where it is not INFO, message, fields.

    ``time_format``: of the time, as strftime has it; empty: a line has none.
    """

    def __init__(self, time_format: str = "%H:%M:%S ") -> None:
        super().__init__()
        self._time_format = time_format

    def format(self, record: logging.LogRecord) -> str:
        """Return one line; behind it, where the record has one, a traceback."""
        time = datetime.fromtimestamp(record.created).astimezone().strftime(self._time_format)
        level = "" if record.levelname == "INFO" else f"{record.levelname.lower()}: "
        fields = "".join(f" {name}={_value(value)}" for name, value in _fields(record).items())
        line = printable(f"{time}{level}{record.getMessage()}{fields}")
        traceback = self.formatException(record.exc_info).split("\n") if record.exc_info else ()
        return "\n".join((line, *map(printable, traceback)))


class JournalFormatter(logging.Formatter):
    """Puts its priority before each line that ``lines`` makes of a record."""

    def __init__(self, lines: logging.Formatter) -> None:
        super().__init__()
        self._lines = lines

    def format(self, record: logging.LogRecord) -> str:
        """Return the lines; journald takes the priorities off."""
        text = self._lines.format(record)
        return "\n".join(f"{priority(record.levelno)}{line}" for line in text.split("\n"))


def priority(level: int) -> str:
    """Return what a line of ``level`` begins with where journald reads it, as sd-daemon(3) has it."""
    return f"<{next(value for least, value in _PRIORITIES if level >= least)}>"


def configure(log_format: str, environ: Mapping[str, str] = os.environ) -> None:
    """Send all logs to stderr, as "text" or as "json"; with priorities where journald reads them."""
    # Where a record was made and by which thread is in no line: looking it up is half of what a line costs.
    logging._srcfile = None
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False
    handler = logging.StreamHandler(sys.stderr)
    journalled = is_journal(sys.stderr, environ)
    # journald has a time for each line.
    in_file = "%Y-%m-%d %H:%M:%S%z "  # also who reads it elsewhere, or after a change of the clock
    time_format = "" if journalled else "%H:%M:%S " if sys.stderr.isatty() else in_file
    lines = JsonFormatter() if log_format == "json" else TextFormatter(time_format)
    handler.setFormatter(JournalFormatter(lines) if journalled else lines)
    if isinstance(sys.stderr, LineStream):
        sys.stderr.queue.notice = partial(_notice, handler)
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)
    # Requests are logged by our middleware, with their id and their delay; start and end by serve.py.
    logging.getLogger("uvicorn.access").disabled = True
    logging.getLogger("uvicorn.error").setLevel(logging.WARNING)


def _notice(handler: logging.Handler, lines: int) -> str:
    """Return the line that says how many ``lines`` were dropped, as ``handler`` writes lines."""
    message = "1 log line was dropped" if lines == 1 else f"{lines} log lines were dropped"
    record = logging.LogRecord(__name__, logging.WARNING, "", 0, message, None, None)
    # It belongs to no request, whichever is answered meanwhile.
    return contextvars.Context().run(handler.format, record) + "\n"


def is_journal(stream: TextIO, environ: Mapping[str, str] = os.environ) -> bool:
    """Return whether ``stream`` is the one that systemd has connected to its journal."""
    try:
        status = os.fstat(stream.fileno())
    except (OSError, ValueError):
        return False
    return environ.get("JOURNAL_STREAM") == f"{status.st_dev}:{status.st_ino}"
