"""Planning beside the event loop, on threads; a search that is not wanted any more ends soon.

A call that is cancelled waits for the end of its planning, so that the next one takes no memory beside it.
"""

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from typing import Any, TypeVar

from pipeline.program.stopping import PlanningStoppedError, go_on, stopping_when
from server.errors import NotServingError
from server.requests.waiting import to_its_end

#: How many plan at once; further ones wait.
_MOST = 8
#: How long a cancelled call waits for a search that does not check whether it is wanted.
_END_SECONDS = 1.0

T = TypeVar("T")


class SearchProgress:
    """The last progress of a search, in words; empty before it reports any."""

    def __init__(self) -> None:
        self.said = ""

    def __call__(self, step: str, done: int, of: int) -> None:
        """Note that ``done`` of so many parts of ``step`` are done."""
        self.said = f"{step}, {done} of {of}"


class PlanningThreads:
    """Runs functions that plan, until it is closed."""

    def __init__(self) -> None:
        self._closed = False
        # At normal priority: a thread with a lower one would wait for a core while it holds the
        # interpreter, and hold up the event loop.
        self._threads = ThreadPoolExecutor(_MOST, "planner")

    async def run(self, work: Callable[[], T]) -> T:
        """Return the result of ``work``.

        When this is cancelled, ``work`` ends as soon as its search checks whether it is wanted, and this
        ends with it; or a second later, if the search does not check.

        Raises:
            NotServingError: it is closed. Otherwise the errors of ``work``.
        """
        if self._closed:
            raise NotServingError("the server is stopping")
        unwanted = threading.Event()
        # ``work`` is taken out of this list when it runs: the thread may keep the call itself for long, and
        # would keep with it all that ``work`` refers to.
        waiting = [work]
        del work

        def stoppable() -> T:
            with stopping_when(lambda: self._closed or unwanted.is_set()):
                go_on()
                return waiting.pop()()

        planned = asyncio.get_running_loop().run_in_executor(
            self._threads, copy_context().run, stoppable
        )
        try:
            return await asyncio.shield(planned)
        except PlanningStoppedError as exc:
            raise NotServingError("the server is stopping") from exc
        except asyncio.CancelledError:
            unwanted.set()
            planned.add_done_callback(_take)
            await to_its_end(asyncio.wait({planned}, timeout=_END_SECONDS))
            raise

    def close(self) -> None:
        """End all planning; later calls fail."""
        self._closed = True
        self._threads.shutdown(wait=False)


def _take(planned: asyncio.Future[Any]) -> None:
    """Read the error of planning that is not wanted any more: asyncio logs errors that are not read."""
    if not planned.cancelled():
        planned.exception()
