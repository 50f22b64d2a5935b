"""How planning ends early, and reports how far it is: its caller may have gone before a plan is found.

A search takes seconds of a core, and a thread cannot be stopped from outside. So it looks now and then
whether to stop. What it finds does not depend on that: it is found, or the search ends with an error.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar


class PlanningStoppedError(Exception):
    """The plan is not needed any more."""


#: Called with a step, how much of it is done, and of how much.
Tell = Callable[[str, int, int], None]

_is_unwanted: ContextVar[Callable[[], bool] | None] = ContextVar("is_unwanted", default=None)
_tell: ContextVar[Tell | None] = ContextVar("tell", default=None)


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


@contextmanager
def telling(heard: Tell) -> Iterator[None]:
    """Have planning inside the block, on this thread, call ``heard`` with how far it is."""
    before = _tell.set(heard)
    try:
        yield
    finally:
        _tell.reset(before)


def tell(step: str, done: int, of: int) -> None:
    """Say that ``done`` of so many parts of ``step`` are done, where that is reported."""
    heard = _tell.get()
    if heard is not None:
        heard(step, done, of)
