"""How plans are searched for: here on the calling thread; the service has another way (apart.py)."""

import time
from collections.abc import Callable
from typing import Any, TypeVar

from pipeline.program.stopping import PlanningStoppedError, go_on, stopping_when

#: How long a thread may compute beside the event loop, which waits for the interpreter meanwhile.
BRIEF_SECONDS = 0.2

T = TypeVar("T")

#: A way to search: calls a function with arguments; returns None where that would take long.
Searched = Callable[..., T | None]


class Search:
    """Searches on the calling thread."""

    @property
    def brief_seconds(self) -> float:
        """How long ``briefly`` may compute."""
        return BRIEF_SECONDS

    def fully(self, function: Callable[..., T], *arguments: Any) -> T:
        """Return the result of ``function``, one of pipeline.fitting; raises its errors."""
        return function(*arguments)

    def now(self, function: Callable[..., T], *arguments: Any) -> T:
        """Do as ``fully``, at full speed, since loading a model waits for it."""
        return self.fully(function, *arguments)

    def briefly(self, function: Callable[..., T], *arguments: Any) -> T | None:
        """Do as ``fully`` where that is quick, as with a plan that was found before; else return None.

        Raises:
            PlanningStoppedError: the plan is not wanted any more. Otherwise the errors of ``function``.
        """
        until = time.thread_time() + self.brief_seconds
        try:
            with stopping_when(lambda: time.thread_time() >= until):
                return function(*arguments)
        except PlanningStoppedError:
            go_on()
            return None


HERE = Search()
