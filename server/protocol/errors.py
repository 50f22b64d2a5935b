"""What clients and the log learn of a fault; its code (server/faults.py) decides which status that is."""

import logging
import math
from collections.abc import Mapping
from pathlib import Path

from server.errors import EncodedError, StalledError, TooLargeError, UnknownKeyError, system_hint
from server.faults import Fault, traceable

_log = logging.getLogger(__name__)

# The estimate of sweeps may be wrong, and a client that should wait for hours does not come back.
_LONGEST_WAIT_SECONDS = 3600


def reported(exc: Exception, root: Path) -> Fault:
    """Return the fault that ``exc`` is, for a client; log it if its code has a level.

    ``root``: the path of the repository, which clients do not need to know.
    """
    fault = Fault.of(exc, root)
    if fault.code.level is not None:
        text = f"{exc}{system_hint(exc)}"
        _log.log(fault.code.level, "%s: %s", type(exc).__name__, text, exc_info=traceable(exc))
    return fault


def hints_of(fault: Fault) -> Mapping[str, str]:
    """Return the headers of the answer to a request that ended with ``fault``."""
    exc = fault.cause
    if isinstance(exc, UnknownKeyError):
        return {"WWW-Authenticate": exc.challenge}
    if fault.retry_seconds is not None:
        seconds = min(max(math.ceil(fault.retry_seconds), 1), _LONGEST_WAIT_SECONDS)
        return {"Retry-After": str(seconds)}
    # The rest of the body is not read, so the connection cannot be used again.
    close = {"Connection": "close"}
    if isinstance(exc, EncodedError):
        return {"Accept-Encoding": ", ".join(exc.taken), **close}
    return close if isinstance(exc, StalledError | TooLargeError) else {}
