"""Takes changes of what is desired of the models, one after the other, each to its end.

A caller that leaves takes nothing back. While there is no change models grow; that, and what is done in
idle time, ends for the next change, and growth goes on after it.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Coroutine, Iterator
from contextvars import Context, copy_context
from dataclasses import dataclass, field
from typing import Any

from pipeline.execution.shielded import run_to_completion
from server.errors import BusyError, NotServingError
from server.faults import traceable
from server.repository.changes import OF_MODEL, Change, Generation, Relieve, described
from server.repository.planning_threads import PlanningThreads
from server.requests.waiting import settle

_log = logging.getLogger(__name__)

#: Changes that wait: a client may desire as many different ones as it can think of.
MAX_CHANGES = 1024

_RELIEF = Relieve()

Work = Callable[[], Coroutine[Any, Any, None]]


@dataclass
class _Desired:
    """A change that was not taken yet. ``context``: of its first caller; ``callers``: how many wait.

    ``generation``: how many were desired of its model then, with this one.
    """

    result: asyncio.Future[Any]
    generation: int = 0
    context: Context = field(default_factory=copy_context)
    callers: int = 0


class Reconciler:
    """Has ``take`` make changes, and ``grow`` use what they leave; ``planning``: the threads of both.

    Work that ``planning`` goes on with, although nobody waits for it, ends before the next change begins.
    """

    def __init__(
        self,
        take: Callable[[Change], Coroutine[Any, Any, Any]],
        grow: Work,
        planning: PlanningThreads,
    ) -> None:
        self._take = take
        self._grow = grow
        self._planning = planning
        #: Of each model of which anything was desired, and that is not forgotten.
        self.generations: dict[str, Generation] = {}
        #: In the order in which they came.
        self._desired: dict[Change, _Desired] = {}
        self._is_taking = self._grows = False
        #: How many callers have more changes to come, so that nothing grows yet.
        self._more = 0
        #: Growth, or what is done in idle time.
        self._background: asyncio.Task[None] | None = None
        self._loop: asyncio.Task[None] | None = None
        #: Whether nothing is desired any more.
        self.is_closed = False

    async def reached(self, change: Change) -> Any:
        """Return what ``change`` came to, once those before it were made.

        When this is cancelled the change is made all the same.

        Raises:
            NotServingError: all ends. BusyError: MAX_CHANGES of models wait. Otherwise as ``take``.
        """
        if self.is_closed:
            raise NotServingError("the server is stopping")
        if change not in self._desired:
            if isinstance(change, OF_MODEL) and len(self._desired) >= MAX_CHANGES:
                raise BusyError("too many changes of models wait")
            result = asyncio.get_running_loop().create_future()
            self._desired[change] = _Desired(result, self._next_generation(change))
        desired = self._desired[change]
        desired.callers += 1
        if self._background is not None:
            self._background.cancel()
        self._go_on()
        try:
            return await asyncio.shield(desired.result)
        finally:
            desired.callers -= 1
            del desired  # the error of a future refers to this frame

    def _next_generation(self, change: Change) -> int:
        if not isinstance(change, OF_MODEL):
            return 0
        before = self.generations.get(change.model, Generation())
        now = self.generations[change.model] = before._replace(desired=before.desired + 1)
        return now.desired

    def forget(self, model: str) -> None:
        """Forget what was desired of a model that nobody knows, if no more is."""
        changes = (change for change in self._desired if isinstance(change, OF_MODEL))
        if not any(change.model == model for change in changes):
            self.generations.pop(model, None)

    def grow_later(self) -> None:
        """Let the loaded models use free memory when there is no change."""
        self._grows = True
        self._go_on()

    @contextlib.contextmanager
    def growing_afterwards(self) -> Iterator[None]:
        """Let nothing grow meanwhile."""
        self._more += 1
        try:
            yield
        finally:
            self._more -= 1
            self._go_on()

    async def in_idle_time(self, work: Work) -> None:
        """Do ``work`` if nothing else is to be done, until it is: then it is cancelled.

        It has ended before this does. Raises the errors of ``work``.
        """
        if self.is_closed or self._is_taking or self._more or self._desired or self._background:
            return
        task = self._background = asyncio.create_task(work())
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError:
            task.cancel()
            await run_to_completion(asyncio.wait({task}))
            if not task.cancelled():
                task.exception()  # seen, or the loop complains
            raise
        finally:
            await run_to_completion(self._end_background(task))
        if not task.cancelled():
            task.result()

    async def at_rest(self) -> None:
        """Wait until all changes are made, and nothing grows."""
        while self._loop is not None and not self._loop.done():
            await asyncio.wait({self._loop})

    async def close(self) -> None:
        """End planning, and wait until the changes that came before are made; later ones are refused."""
        self.is_closed = True
        self._planning.close()
        if self._background is not None:
            self._background.cancel()
            await asyncio.wait({self._background})
        await self.at_rest()

    def _go_on(self) -> None:
        # In a context of its own, or it would keep the request that woke it.
        if self._loop is None or self._loop.done():
            self._loop = Context().run(asyncio.create_task, self._run())

    async def _run(self) -> None:
        """Take step after step until none is left."""
        while True:
            if self._background is not None:
                await self._end_background(self._background)
            elif self._desired:
                await self._step()
            elif self._grows and not (self.is_closed or self._more):
                self._grows = False
                growth = self._background = asyncio.create_task(self._grow())
                await self._end_background(growth)
                if growth.cancelled():
                    self._grows = True
                elif exc := growth.exception():
                    _log.error("models cannot use free memory: %s", exc, exc_info=exc)
            else:
                return

    async def _step(self) -> None:
        """Make the first change; memory that the system lacks is given back before all others."""
        change = _RELIEF if _RELIEF in self._desired else next(iter(self._desired))
        desired, self._is_taking = self._desired.pop(change), True
        task = asyncio.get_running_loop().create_task(self._take(change), context=desired.context)
        await asyncio.wait({task})
        await self._planning.over()
        self._is_taking = False
        if isinstance(change, OF_MODEL) and (before := self.generations.get(change.model)):
            self.generations[change.model] = before._replace(observed=desired.generation)
        if task.cancelled():  # as all tasks are when a loop ends
            desired.result.cancel()
        elif (exc := task.exception()) is not None:
            settle(desired.result, exc)
            desired.result.exception()  # seen, or the loop complains
            if not (desired.callers or self.is_closed):
                _log.warning("%s failed: %s", described(change), exc, exc_info=traceable(exc))
        else:
            settle(desired.result, task.result())

    async def _end_background(self, task: "asyncio.Task[None]") -> None:
        """Wait for the end of ``task``, of the background."""
        await asyncio.wait({task})
        await self._planning.over()
        if self._background is task:
            self._background = None
