"""Planning beside the event loop, on threads; a search that is not wanted any more ends soon.

A call that is cancelled waits a moment for the end of its planning. What goes on after that counts as
abandoned, and a lock under which it was started is released only when it has finished: the next call takes
no memory in addition to it, and its state is never partial.
"""

import asyncio
import threading
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from functools import cached_property
from typing import Any, TypeVar

from pipeline.execution.shielded import run_to_completion
from pipeline.program.stopping import PlanningStoppedError, go_on, stopping_when
from server.errors import NotServingError

#: How many plan at once; further ones wait.
_MOST = 8
#: How long a cancelled call waits for a search that does not check whether it is wanted; and how long, once
#: all is closed, a lock waits for it.
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
        #: Whether nothing is planned any more.
        self.is_closed = False
        #: What goes on although its caller was cancelled.
        self._abandoned: set[asyncio.Future[Any]] = set()
        # At normal priority: a thread with a lower one would wait for a core while it holds the
        # interpreter, and hold up the event loop.
        self._threads = ThreadPoolExecutor(_MOST, "planner")

    @cached_property
    def _closing(self) -> asyncio.Future[None]:
        """Done when it is closed; made where a loop runs."""
        return asyncio.get_running_loop().create_future()

    async def run(self, work: Callable[[], T]) -> T:
        """Return the result of ``work``.

        When this is cancelled, ``work`` ends as soon as its search checks whether it is wanted, and this
        ends with it; or a second later, if the search does not check: then ``over`` waits for it.

        Raises:
            NotServingError: it is closed, and ``work`` may go on. RuntimeError: the system gives no thread;
            ``work`` never begins. Otherwise the errors of ``work``.
        """
        if self.is_closed:
            raise NotServingError("the server is stopping")
        unwanted = threading.Event()
        # ``work`` is taken out of this list when it runs: the thread may keep the call itself for long, and
        # would keep with it all that ``work`` refers to.
        waiting = [work]
        del work

        def stoppable() -> T:
            with stopping_when(lambda: self.is_closed or unwanted.is_set()):
                go_on()
                return waiting.pop()()

        try:
            planned = asyncio.get_running_loop().run_in_executor(
                self._threads, copy_context().run, stoppable
            )
        except BaseException:
            unwanted.set()  # the pool may have it in its queue nevertheless
            raise
        try:
            await self._finished({planned})
        except asyncio.CancelledError:
            unwanted.set()
            self._abandon(planned)
            await run_to_completion(asyncio.wait({planned}, timeout=_END_SECONDS))
            raise
        if not planned.done():
            self._abandon(planned)
            raise NotServingError("the server is stopping")
        try:
            return planned.result()
        except PlanningStoppedError as exc:
            raise NotServingError("the server is stopping") from exc

    async def over(self) -> None:
        """Wait until no planning goes on for which nobody waits; once this is closed only a moment."""
        if self._abandoned:
            await self._finished(self._abandoned)

    async def _finished(self, planned: Collection[asyncio.Future[Any]]) -> None:
        """Wait for all of ``planned``; once this is closed no longer than a moment."""
        waiting = {*planned}
        while waiting and not self.is_closed:
            _, waiting = await asyncio.wait(
                {self._closing, *waiting}, return_when=asyncio.FIRST_COMPLETED
            )
            waiting.discard(self._closing)
        if waiting:
            await asyncio.wait(waiting, timeout=_END_SECONDS)

    def close(self) -> None:
        """End all planning; later calls fail."""
        self.is_closed = True
        if not self._closing.done():
            self._closing.set_result(None)
        self._threads.shutdown(wait=False)

    def _abandon(self, planned: asyncio.Future[Any]) -> None:
        self._abandoned.add(planned)
        planned.add_done_callback(self._end)

    def _end(self, planned: asyncio.Future[Any]) -> None:
        """Note the end of abandoned planning, and read its error: asyncio logs errors that are not read."""
        if not planned.cancelled():
            planned.exception()
        self._abandoned.discard(planned)
