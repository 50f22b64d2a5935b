"""How planning ends early: whoever began it may have gone by the time it is found.

A search takes seconds of a core, and nobody can take a thread back. So it asks now and then. What it finds
does not depend on that: it is found, or the search ends with an error.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar


class PlanningStoppedError(Exception):
    """Nobody wants the plan any more."""


_is_unwanted: ContextVar[Callable[[], bool] | None] = ContextVar("is_unwanted", default=None)


@contextmanager
def stopping_when(is_unwanted: Callable[[], bool]) -> Iterator[None]:
    """Have whatever is planned inside, on this thread, ask ``is_unwanted``: often, so it must be quick."""
    before = _is_unwanted.set(is_unwanted)
    try:
        yield
    finally:
        _is_unwanted.reset(before)


def go_on() -> None:
    """Return, as long as the plan is wanted.

    Raises:
        PlanningStoppedError: it is not.
    """
    is_unwanted = _is_unwanted.get()
    if is_unwanted is not None and is_unwanted():
        raise PlanningStoppedError("planning was stopped")
