"""Follows the memory of the box: models give some back while it is scarce, and grow when it is free again.

What lowers the ceiling of the budget, and when it is raised, is decided by server/memory/pressure.py; what
models do then by the repository.
"""

import asyncio
import logging
import os
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Literal, NamedTuple, Protocol

from models.sizes import format_size
from pipeline.budget.budget import Budget
from server.errors import NotServingError
from server.memory.pressure import Ceiling, Observation, Pressure
from server.memory.process_memory import lacking_bytes
from server.memory.request_memory import RequestMemory
from server.operation.pressure_events import (
    STALLED_PART,
    PressureError,
    PressureEvents,
    is_off,
    open_events,
)

_log = logging.getLogger(__name__)

_CHECK_SECONDS, _BRIEF_SECONDS = 0.5, 0.1
#: How long tasks are watched for whether they wait for memory.
_STALL_SECONDS = 0.5

Signals = Literal["auto", "events", "headroom", "off"]


class _Stalled(NamedTuple):
    """How long tasks had waited for memory at a time of the clock."""

    measured_at: float
    seconds: float


class Relieved(Protocol):
    """The models, which give memory back and grow; see Repository."""

    async def relieve(self, ceiling_bytes: int) -> None: ...
    def ease(self, ceiling_bytes: int) -> None: ...


class Relieving:
    """Has ``models`` follow the memory that there is, within ``budget``.

    ``open_``: opens what reports pressure, if anything does; raises PressureError. ``lacking``: returns how
    much less is free than shall be; None: it is not looked at. ``end_compiling``: ends a process that
    compiles, which comes before all models, and returns whether there was one.
    """

    def __init__(
        self,
        models: Relieved,
        budget: Budget,
        open_: Callable[[], PressureEvents | None],
        lacking: Callable[[], int | None] | None = None,
        end_compiling: Callable[[], bool] = lambda: False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._models, self._budget = models, budget
        self._end_compiling = end_compiling
        self._open, self._lacking, self._clock = open_, lacking, clock
        self._events: PressureEvents | None = None
        self._pressure = Pressure(budget.total_bytes)
        self._stalled: _Stalled | None = None
        self._is_pressed = False
        self._heard = asyncio.Event()
        #: Events that were reported, changes of the ceiling down and up, and what models gave back.
        self.heard = self.lowered = self.raised = self.released_bytes = 0

    @property
    def signals(self) -> str:
        """What it follows, in words; empty: nothing."""
        has_events = self._events is not None and not self._events.lost
        events = [f"events of {self._events.name}"] if self._events and has_events else []
        return " and ".join([*events, *(["headroom"] if self._lacking else [])])

    def hear(self) -> None:
        """Note an event."""
        self.heard += 1
        self._heard.set()

    async def run(self) -> None:
        """Follow the memory until cancelled, or until the server ends."""
        try:
            self._begin()
            _log.info("memory pressure: models follow %s", self.signals or "nothing")
            while True:
                try:
                    await self.step()
                except NotServingError:  # the server ends
                    return
                except Exception:  # noqa: BLE001  after any error the service goes on, and looks again
                    _log.exception("memory pressure cannot be followed")
                await self._pause()
        finally:
            if self._events is not None:
                self._events.close()

    def _begin(self) -> None:
        try:
            self._events = self._open()
            if self._events is not None:
                self._events.begin(asyncio.get_running_loop(), self.hear)
        except PressureError as exc:
            _log.warning("memory pressure: %s", exc)
            if self._events is not None:
                self._events.close()
                self._events = None

    async def _pause(self) -> None:
        """Wait for an event, or for the next look; for a moment at least, however many events come."""
        await asyncio.sleep(_BRIEF_SECONDS)
        if self._lacking is None and not (self._budget.is_lowered or self._is_pressed):
            await self._heard.wait()  # nothing is to be looked at
            return
        try:
            async with asyncio.timeout(_CHECK_SECONDS):
                await self._heard.wait()
        except TimeoutError:
            pass

    async def step(self) -> None:
        """Observation once, and have models do what follows. Raises as Repository.relieve."""
        now, used_bytes = self._clock(), self._budget.used_bytes
        stalled = self._is_stalled(now)
        is_event = self._heard.is_set() or stalled
        self._heard.clear()
        lacking = None if self._lacking is None else self._lacking()
        if (is_event or (lacking or 0) > 0) and self._end_compiling():
            _log.warning("memory is scarce: a process that compiled was ended")
            return
        ceiling = self._pressure.see(Observation(now, is_event, lacking, used_bytes))
        was_pressed, self._is_pressed = self._is_pressed, self._pressure.is_pressed(now)
        if ceiling is not None and ceiling.signal:
            await self._lower(ceiling)
        elif ceiling is not None:
            self.raised += 1
            self._models.ease(ceiling.n_bytes)
            _log.info("memory is free again: models may use %s", self._share())
        elif was_pressed and not self._is_pressed:
            self._models.ease(self._budget.ceiling_bytes)

    def _is_stalled(self, now: float) -> bool:
        """Return whether a shortage lasts that was reported: the kernel reports it each 2 s only."""
        if not self._is_pressed or self._events is None:
            self._stalled = None
            return False
        before, total = self._stalled, self._events.stalled_seconds()
        if before is not None and now - before.measured_at < _STALL_SECONDS:
            return False
        self._stalled = None if total is None else _Stalled(now, total)
        if before is None or total is None:
            return False
        return total - before.seconds >= STALLED_PART * (now - before.measured_at)

    async def _lower(self, ceiling: Ceiling) -> None:
        before, started = self._budget.used_bytes, self._clock()
        self.lowered += 1
        await self._models.relieve(ceiling.n_bytes)
        after = self._budget.used_bytes
        self._pressure.relieved(after)
        released_bytes = max(before - after, 0)
        self.released_bytes += released_bytes
        exceeded = self._budget.exceeded_bytes
        more = f"; {format_size(exceeded)} above it stay: no model can do with less" * bool(
            exceeded
        )
        message = "memory is scarce (%s): models gave back %s in %.1f s and may use %s%s"
        seconds = self._clock() - started
        figures = format_size(released_bytes), seconds, self._share(), more
        _log.log(logging.WARNING if exceeded else logging.INFO, message, ceiling.signal, *figures)

    def _share(self) -> str:
        budget = self._budget
        return f"{format_size(budget.ceiling_bytes)} of {format_size(budget.total_bytes)}"


def relieving(
    models: Relieved,
    budget: Budget,
    requests: RequestMemory,
    end_compiling: Callable[[], bool],
    signals: Signals,
    environ: Mapping[str, str] = os.environ,
) -> Relieving | None:
    """Return what follows ``signals``; None: nothing is to be followed.

    What ``requests`` may take any moment is not free.
    """
    if signals == "off" or (signals == "auto" and is_off(environ)):
        return None
    open_ = no_events if signals == "headroom" else partial(open_events, environ)

    def lacking() -> int | None:
        lacks = lacking_bytes()
        return None if lacks is None else lacks + requests.capacity_bytes - requests.used_bytes

    followed = None if signals == "events" else lacking
    return Relieving(models, budget, open_, followed, end_compiling)


def no_events() -> None:
    """Open nothing that reports events."""
