"""Planning beside the event loop, on threads; a search that is not wanted any more ends soon.

A call that is cancelled waits a moment for the end of its planning. What goes on after that counts as
abandoned, and a lock under which it was started is released only when it has finished: the next call takes
no memory in addition to it, and its state is never partial.
"""

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
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
        #: Called when nothing abandoned goes on any more.
        self._waiting: list[Callable[[], None]] = []
        # At normal priority: a thread with a lower one would wait for a core while it holds the
        # interpreter, and hold up the event loop.
        self._threads = ThreadPoolExecutor(_MOST, "planner")

    async def run(self, work: Callable[[], T]) -> T:
        """Return the result of ``work``.

        When this is cancelled, ``work`` ends as soon as its search checks whether it is wanted, and this
        ends with it; or a second later, if the search does not check: then ``when_over`` waits for it.

        Raises:
            NotServingError: it is closed. RuntimeError: the system gives no thread; ``work`` never begins.
            Otherwise the errors of ``work``.
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
            return await asyncio.shield(planned)
        except PlanningStoppedError as exc:
            raise NotServingError("the server is stopping") from exc
        except asyncio.CancelledError:
            unwanted.set()
            self._abandoned.add(planned)
            planned.add_done_callback(self._end)
            await run_to_completion(asyncio.wait({planned}, timeout=_END_SECONDS))
            raise

    def when_over(self, call: Callable[[], None]) -> None:
        """Call ``call`` when no planning goes on whose caller was cancelled: now, or when the last ends.

        Once this is closed nothing begins any more, and ``call`` does not wait longer than a moment.
        """
        self._waiting.append(call)
        if not any(not planned.done() for planned in self._abandoned):
            self._call()
        elif self.is_closed:
            self._give_up()

    def close(self) -> None:
        """End all planning; later calls fail."""
        self.is_closed = True
        self._threads.shutdown(wait=False)
        if self._waiting:
            self._give_up()

    def _end(self, planned: asyncio.Future[Any]) -> None:
        """Note the end of abandoned planning, and read its error: asyncio logs errors that are not read."""
        if not planned.cancelled():
            planned.exception()
        self._abandoned.discard(planned)
        if not self._abandoned:
            self._call()

    def _give_up(self) -> None:
        asyncio.get_running_loop().call_later(_END_SECONDS, self._call)

    def _call(self) -> None:
        waiting, self._waiting = self._waiting, []
        for call in waiting:
            call()
