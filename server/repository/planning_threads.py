"""Planning beside the event loop, on threads that wait for searches; what is unwanted ends soon.

A call that is cancelled ends when its planning has: the next one does not take memory beside it.
"""

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from typing import Any, TypeVar

from pipeline.program.stopping import PlanningStoppedError, go_on, stopping_when
from server.errors import NotServingError
from server.requests.uninterrupted import to_its_end

#: At once; one more waits.
_MOST = 8
#: How long a cancelled call waits for a search that does not ask whether it is wanted.
_END_SECONDS = 1.0

T = TypeVar("T")


class SearchProgress:
    """What a search has told last, in words; empty before it tells anything."""

    def __init__(self) -> None:
        self.said = ""

    def __call__(self, step: str, done: int, of: int) -> None:
        """Hear that ``done`` of so many parts of ``step`` are done."""
        self.said = f"{step}, {done} of {of}"


class PlanningThreads:
    """Runs what plans, until it is closed."""

    def __init__(self) -> None:
        self._closed = False
        # A thread that gave way to others, and held the interpreter, would hold up the event loop.
        self._threads = ThreadPoolExecutor(_MOST, "planner")

    async def run(self, work: Callable[[], T]) -> T:
        """Return what ``work`` returns.

        When this is cancelled, ``work`` ends as soon as its search asks, and this ends then; or a second
        later, where the search does not ask.

        Raises:
            NotServingError: closed. Otherwise what ``work`` raises.
        """
        if self._closed:
            raise NotServingError("the server is stopping")
        left = threading.Event()
        # Taken out: its thread may keep a call for long after its result.
        waiting = [work]
        del work

        def stoppable() -> T:
            with stopping_when(lambda: self._closed or left.is_set()):
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
            left.set()
            planned.add_done_callback(_take)
            await to_its_end(asyncio.wait({planned}, timeout=_END_SECONDS))
            raise

    def close(self) -> None:
        """End what is being planned; nothing will be any more."""
        self._closed = True
        self._threads.shutdown(wait=False)


def _take(planned: asyncio.Future[Any]) -> None:
    """Take what became of a plan that nobody wants: the loop logs an error that nobody takes."""
    if not planned.cancelled():
        planned.exception()
