"""Instances of models: packs as they were on disk, each with a plan, in memory that the budget holds.

Invariant: the budget holds exactly what instances hold that are not closed, each under its ``key``. A model
that serves has one; while its pack is replaced it may have two, and what could not be closed is one for as
long as it holds memory.
"""

import asyncio
import time
from collections.abc import Callable
from dataclasses import replace
from enum import Enum

from server.faults import Code, Fault
from server.repository.fleet import Place
from server.repository.preparing import Prepared
from server.repository.worker import Worker


class State(Enum):
    """What an instance does; all but CLOSED hold memory.

    OPENING: its weights are read. SERVING: it answers. FAILED: it has left service by itself, until it is
    closed. DRAINING: it answers the requests that it has, and is closed then. STUCK: it was given up, and
    holds its memory until what runs ends. LOST: a disk may write to its memory for ever, so that only a
    restart of the process helps. CLOSED: it holds nothing.
    """

    OPENING = "opening"
    SERVING = "serving"
    FAILED = "failed"
    DRAINING = "draining"
    STUCK = "stuck"
    LOST = "lost"
    CLOSED = "closed"


class Uses:
    """Counts the requests that use one instance, or that wait for the next one of a model."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._count = self._in_parts = 0
        self._awaits_parts = False
        self._over: asyncio.Future[None] | None = None
        #: When a request began or ended last; before the first one, when the model was loaded.
        self.used_at = clock()

    def __len__(self) -> int:
        return self._count

    @property
    def idle_seconds(self) -> float:
        """Seconds since a request started or ended last."""
        return self._clock() - self.used_at

    def begin(self) -> None:
        """Count one more."""
        self._count += 1
        self.used_at = self._clock()

    def begin_parts(self) -> None:
        """Count one of those that use it already as one that is answered in parts, one after the other."""
        self._in_parts += 1

    def end(self, *, in_parts: bool = False) -> None:
        """Count one less; ``in_parts``: that was answered in parts."""
        self._count -= 1
        self._in_parts -= in_parts
        self.used_at = self._clock()
        if not self._awaited and self._over is not None and not self._over.done():
            self._over.set_result(None)

    @property
    def _awaited(self) -> int:
        return self._in_parts if self._awaits_parts else self._count

    async def over(self, limit_seconds: float, *, in_parts: bool = False) -> None:
        """Wait until no request uses it any more, but no longer than ``limit_seconds``.

        ``in_parts``: none that is answered in parts, of which each comes to the line by itself.
        """
        self._awaits_parts = in_parts
        if not self._awaited or not limit_seconds:
            return
        self._over = asyncio.get_running_loop().create_future()
        await asyncio.wait({self._over}, timeout=limit_seconds)


_READING = Fault(Code.LOADING, "loading: reading weights", permanent=False)


class Instance:
    """``prepared`` with the plan ``place``, which holds memory as ``key``; it is OPENING at first.

    ``uses``: of the requests to it. ``worker``: answers them; None: it has none yet, or none any more.
    """

    def __init__(self, key: str, prepared: Prepared, place: Place, uses: Uses) -> None:
        self.key, self.prepared, self.place, self.uses = key, prepared, place, uses
        self.worker: Worker | None = None
        self._state = State.OPENING
        self._fault: Fault | None = _READING

    @property
    def state(self) -> State:
        state, worker = self._state, self.worker  # another thread sees the end of one that is stuck
        if worker is None:
            return state
        if worker.abandoned:
            return State.STUCK
        return State.FAILED if state is State.SERVING and worker.fault else state

    @property
    def serves(self) -> bool:
        return self._state is State.SERVING and self.fault is None

    @property
    def fault(self) -> Fault | None:
        """Why it does not answer; None while it does."""
        worker = self.worker
        return self._fault if worker is None else worker.fault

    def serve(self, worker: Worker) -> None:
        """Let ``worker`` answer from now on."""
        self.worker, self._state = worker, State.SERVING

    def drain(self) -> Worker:
        """Take no more requests; return what answers the last ones."""
        assert self.worker is not None
        self._state = State.DRAINING
        return self.worker

    def lose(self, fault: Fault) -> None:
        """Hold memory until the process ends, because of ``fault``."""
        self._fault, self._state = replace(fault, permanent=True), State.LOST
        self.worker = None

    def close(self) -> None:
        """Hold nothing any more."""
        self._state = State.CLOSED
        self.worker = None
