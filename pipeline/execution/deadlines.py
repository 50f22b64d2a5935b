"""When a wait is over: one rule for all waits of an engine, on time.monotonic's clock.

A deadline has passed from the moment that it names on. Why a wait ended follows from what it waited for,
and never from another look at the clock: a wait with a timeout may end a little before its deadline or at
it.
"""

import threading
import time
from collections.abc import Callable

from pipeline.execution.errors import CancelledError, DeadlineError

#: A disk that has not answered for this long will not: its buffers can never be reused safely.
DRAIN_SECONDS = 60.0


def seconds_left(deadline: float | None) -> float | None:
    """Return how long a wait until ``deadline`` may take, 0 once it has passed; None: without a limit."""
    if deadline is None:
        return None
    # The C library's clock has an end; a wait beyond it is as good as one without a limit.
    return min(max(deadline - time.monotonic(), 0.0), threading.TIMEOUT_MAX)


def check_deadline(deadline: float | None, meanwhile: str = "") -> float | None:
    """Return as ``seconds_left``; it is more than 0.

    Args:
        deadline: on time.monotonic's clock; None: there is none.
        meanwhile: what went on during the wait, for the message.

    Raises:
        DeadlineError: it has passed.
    """
    left = seconds_left(deadline)
    if left == 0.0:
        raise DeadlineError(f"the deadline passed {meanwhile}".rstrip())
    return left


def check_limits(deadline: float | None, cancelled: Callable[[], bool]) -> None:
    """Check that a request may go on; called before each kernel, so it makes as few calls as it can.

    Raises:
        CancelledError: ``cancelled`` says so. DeadlineError: ``deadline`` has passed.
    """
    if cancelled():
        raise CancelledError("cancelled")
    if deadline is not None and time.monotonic() >= deadline:
        raise DeadlineError("the deadline passed")
