"""Plans on threads of the process, beside the event loop; what nobody waits for any more ends soon."""

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from typing import TypeVar

from loader.priority import step_aside
from pipeline.program.stopping import PlanningStoppedError, stopping_when
from server.errors import NotServingError

#: At once; one more waits.
_MOST = 8

T = TypeVar("T")


class PlanningThreads:
    """Runs what plans, until it is closed."""

    def __init__(self) -> None:
        self._closed = False
        self._aside = ThreadPoolExecutor(_MOST, "planner", step_aside)

    async def run(self, work: Callable[[], T]) -> T:
        """Return what ``work`` returns; when this is cancelled, it ends as soon as its search asks.

        Raises:
            NotServingError: closed. Otherwise what ``work`` raises.
        """
        return await self._run(None, work)

    async def plan(self, search: Callable[[], T]) -> T:
        """Do as ``run`` where requests leave a core; ``search`` starts no threads: they would, too."""
        return await self._run(self._aside, search)

    async def _run(self, threads: ThreadPoolExecutor | None, work: Callable[[], T]) -> T:
        if self._closed:
            raise NotServingError("the server is stopping")
        left = threading.Event()
        # Taken out: its thread, which gives way to others, may keep a call for long after its result.
        waiting = [work]
        del work

        def stoppable() -> T:
            with stopping_when(lambda: self._closed or left.is_set()):
                return waiting.pop()()

        try:
            return await asyncio.get_running_loop().run_in_executor(
                threads, copy_context().run, stoppable
            )
        except PlanningStoppedError as exc:
            raise NotServingError("the server is stopping") from exc
        finally:
            left.set()

    def close(self) -> None:
        """End what is being planned; nothing will be any more."""
        self._closed = True
        self._aside.shutdown(wait=False)
