"""Where plans are searched for: on the thread that asks, or, for the service, elsewhere."""

import time
from collections.abc import Callable
from typing import Any, TypeVar

from pipeline.program.stopping import PlanningStoppedError, go_on, stopping_when

#: What a thread may compute beside the event loop, which waits for the interpreter meanwhile.
BRIEF_SECONDS = 0.2

T = TypeVar("T")

#: One of the two ways to search: a function and its arguments; None: that would take long.
Searched = Callable[..., T | None]


class Search:
    """Searches on the thread that asks."""

    def fully(self, function: Callable[..., T], *arguments: Any) -> T:
        """Return what ``function``, one of pipeline.fitting, returns for ``arguments``; raises as it."""
        return function(*arguments)

    def now(self, function: Callable[..., T], *arguments: Any) -> T:
        """Do as ``fully``, and give way to nothing else: a model waits for it."""
        return self.fully(function, *arguments)

    def briefly(self, function: Callable[..., T], *arguments: Any) -> T | None:
        """Do as ``fully`` where that takes next to nothing, as what was found before; else return None.

        Raises:
            PlanningStoppedError: the plan is not wanted any more. Otherwise what ``function`` raises.
        """
        until = time.thread_time() + BRIEF_SECONDS
        try:
            with stopping_when(lambda: time.thread_time() >= until):
                return function(*arguments)
        except PlanningStoppedError:
            go_on()
            return None


HERE = Search()
