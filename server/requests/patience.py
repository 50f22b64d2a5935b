"""The time of one request: how long its client keeps it waiting, and the limit on what happens now.

A request waits for its client while a body comes or an answer goes. One that makes no progress is ended:
after the time that the settings give, or after half a second where another request waits for what it holds
(exchange.py).
"""

import asyncio
import time
from collections.abc import Callable
from types import TracebackType

from pipeline.execution.errors import DeadlineError
from server.errors import BusyError, ServiceError
from server.transport.limits import PROGRESS_BYTES

# A photograph is late by the time for which its client keeps us waiting beyond a fair pace, in bytes a
# second.
_PACE = 2 << 20


class Patience:
    """Counts the time in which a client keeps its request waiting; ``cut_off`` ends its connection.

    ``clock``: the event loop's.
    """

    def __init__(self, cut_off: Callable[[], None], clock: Callable[[], float]) -> None:
        self._cut_off = cut_off
        self.clock = clock
        self._waits_since: float | None = None
        # Since it last made progress, and how many bytes have moved since then.
        self._waited, self._progress = 0.0, 0
        # While the body came.
        self._kept_waiting = 0.0
        #: Of what happens now, if it has a limit.
        self.limit: TimeLimit | None = None
        #: It waits for memory, or waited for it when its time was over.
        self.is_short = False
        #: Why it was ended.
        self.evicted: ServiceError | None = None

    def begin(self) -> None:
        """From now on the client keeps it waiting."""
        self._waits_since = self.clock()

    def end_reading(self, n_bytes: int) -> None:
        """So many bytes of the body have come."""
        assert self._waits_since is not None
        waited = self.clock() - self._waits_since
        self._waited += waited
        self._kept_waiting += waited
        self._waits_since = None
        self._progress += n_bytes
        if self._progress >= PROGRESS_BYTES:  # fewer are as good as none
            self._progress, self._waited = 0, 0.0

    def end_sending(self) -> None:
        """The client has taken a part of the answer."""
        self._waits_since = None
        self._progress, self._waited = 0, 0.0

    def moved(self) -> None:
        """Note that it went on."""
        self._progress, self._waited = 0, 0.0

    def stalled_seconds(self, now: float) -> float:
        """How long the client has kept it waiting without progress; 0 while nothing is expected of it."""
        return 0.0 if self._waits_since is None else self._waited + now - self._waits_since

    def late_seconds(self, now: float, n_bytes: int) -> float:
        """How late a body is of which ``n_bytes`` have come, by a fair pace."""
        waits = 0.0 if self._waits_since is None else now - self._waits_since
        return self._kept_waiting + waits - n_bytes / _PACE

    async def arm(self) -> None:
        """Have what happens now be ended when its time is over, since something must be waited for."""
        if self.limit is not None and not self.limit.is_armed:
            await self.limit.arm()

    def end(self, why: ServiceError) -> None:
        """End the request: what has a limit with the error ``why``, all else by cutting it off."""
        if self.evicted is not None:
            return
        self.evicted = why
        if self.limit is not None:
            self.limit.end()
        else:
            self._cut_off()


class TimeLimit:
    """A limit of ``seconds`` on what happens inside; ``what`` did not, where it takes longer.

    ``limit_seconds``: what the client knows of it, for messages: a part of that may have passed before.
    Inside, the request can be ended. Memory is waited for in here alone: what waits elsewhere can
    neither be ended nor give way. A timer is set only where something must be waited for.

    Raises:
        StalledError, BusyError: it was ended. BusyError: it took longer, waiting for memory at the end.
        DeadlineError: it took longer.
    """

    def __init__(self, patience: Patience, seconds: float, what: str, limit_seconds: float) -> None:
        self._patience = patience
        self._what = what
        self._limit_seconds = limit_seconds
        self._seconds = seconds
        self._began = time.monotonic()
        self._timeout: asyncio.Timeout | None = None
        #: Whether its timer is set.
        self.is_armed = False

    async def __aenter__(self) -> None:
        self._patience.limit = self
        self._patience.is_short = False

    async def arm(self) -> None:
        """Set the timer, once."""
        self.is_armed = True
        left = self._seconds - (time.monotonic() - self._began)
        self._timeout = await asyncio.timeout(left).__aenter__()

    def end(self) -> None:
        """Let the time be over."""
        if self._timeout is not None:
            self._timeout.reschedule(asyncio.get_running_loop().time())

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        patience = self._patience
        patience.limit = None
        # A request that was ended in the moment in which it could go on goes on, and may be ended again.
        evicted, patience.evicted = patience.evicted, None
        if self._timeout is None:
            return
        try:
            await self._timeout.__aexit__(kind, error, traceback)
        except TimeoutError:
            if evicted is not None:
                raise evicted from None
            if patience.is_short:
                raise BusyError(
                    f"there was no memory for the request within {self._limit_seconds:.3g} s "
                    "(setting request_memory)"
                ) from None
            raise DeadlineError(f"{self._what} within {self._limit_seconds:.3g} s") from None
