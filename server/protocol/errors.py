"""Every error becomes ``{"error": "..."}`` with one status. Domain errors know nothing of HTTP."""

import logging
import math
from pathlib import Path

from loader.errors import LoaderError
from models.errors import ModelError
from pipeline.devices.base import DeviceError
from pipeline.execution.errors import CancelledError, DeadlineError, EngineError, InputError
from pipeline.planning.plan import PlanError
from server.access import UnknownKeyError
from server.errors import (
    BusyError,
    ConflictError,
    DisconnectedError,
    EncodedError,
    ForbiddenError,
    InvalidRequestError,
    LateError,
    NotFoundError,
    NotServingError,
    RefusedError,
    ServiceError,
    SpoolError,
    StalledError,
    TooLargeError,
    UnsupportedError,
)
from server.failures import reason_of
from server.metrics.requests import Outcome

_log = logging.getLogger(__name__)

CLIENT_CLOSED = 499

#: Texts of libraries may be longer; quotes of what clients wrote are cut by ``shown`` already.
LONGEST_MESSAGE = 600
# The estimate of sweeps may be wrong, and a client that is told to wait for hours does not come back.
_LONGEST_WAIT_SECONDS = 3600

# The status of an error is that of its most derived class in this list.
STATUSES: dict[type[Exception], int] = {
    InvalidRequestError: 400,
    InputError: 400,
    UnknownKeyError: 401,
    ForbiddenError: 403,
    NotFoundError: 404,
    RefusedError: 409,
    ConflictError: 409,
    StalledError: 408,
    TooLargeError: 413,
    EncodedError: 415,
    CancelledError: CLIENT_CLOSED,
    DisconnectedError: CLIENT_CLOSED,
    ServiceError: 500,
    UnsupportedError: 501,
    DeviceError: 500,
    OSError: 503,
    PlanError: 500,
    EngineError: 503,
    LoaderError: 503,
    ModelError: 503,
    NotServingError: 503,
    SpoolError: 503,
    BusyError: 503,
    DeadlineError: 504,
}

# States of the server, which the log has once, when they begin, and late answers: no faults of one request.
_STATES = (BusyError, DeadlineError, NotServingError, UnsupportedError)

_OUTCOMES = {
    400: Outcome.INVALID,
    404: Outcome.INVALID,
    408: Outcome.CANCELLED,
    413: Outcome.INVALID,
    415: Outcome.INVALID,
    CLIENT_CLOSED: Outcome.CANCELLED,
    504: Outcome.DEADLINE,
}


def status_of(exc: Exception) -> int:
    """Return the HTTP status of ``exc``; 500 for what is not listed."""
    return next((STATUSES[kind] for kind in type(exc).__mro__ if kind in STATUSES), 500)


def outcome_of(exc: BaseException | None) -> Outcome:
    """Return the outcome of a request that ended with ``exc``; None: it was answered."""
    if exc is None:
        return Outcome.OK
    if not isinstance(exc, Exception):
        return Outcome.CANCELLED
    if isinstance(exc, BusyError):
        return Outcome.LATE if isinstance(exc, LateError) else Outcome.BUSY
    return _OUTCOMES.get(status_of(exc), Outcome.FAILED)


def told(exc: Exception, root: Path) -> str:
    """Return the message of ``exc``, one of FAILURES, for a client; log it if the server is at fault.

    ``root``: as ``reason_of``.
    """
    if status_of(exc) >= 500 and not isinstance(exc, _STATES):
        _log.warning("%s: %s", type(exc).__name__, exc)
    return reason_of(exc, root)[:LONGEST_MESSAGE]


def hints_of(exc: Exception) -> dict[str, str]:
    """Return the headers of the answer to a request that ended with ``exc``."""
    if isinstance(exc, UnknownKeyError):
        return {"WWW-Authenticate": exc.challenge}
    if isinstance(exc, ServiceError) and exc.retry_seconds is not None:
        seconds = min(max(math.ceil(exc.retry_seconds), 1), _LONGEST_WAIT_SECONDS)
        return {"Retry-After": str(seconds)}
    # The rest of the body is not read, so the connection cannot be used again.
    close = {"Connection": "close"}
    if isinstance(exc, EncodedError):
        return {"Accept-Encoding": ", ".join(exc.taken), **close}
    return close if isinstance(exc, StalledError | TooLargeError) else {}
