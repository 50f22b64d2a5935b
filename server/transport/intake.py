"""Requests that have come and wait for the event loop: which begins next, and which is refused unread.

Where the loop itself computes short answers, requests wait for it, and it sees none of them while it works.
So it works for a slice of time, looks at all sockets, and works on. What has come by then waits here, where
it is known how long each may take, and not in sockets, where nobody knows of it.

Decisions only: requests are begun and refused by those who offer them, the clock is an argument.
"""

import time
from asyncio import AbstractEventLoop
from bisect import bisect_right
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

from server.errors import BusyError, LateError
from server.transport.http1 import Head

# So long the loop works before it looks at the sockets again: a part of the time that is left to the first
# of those that wait, within bounds. Looking costs as much as a few short answers.
_SLICE_OF_LEFT = 1 / 20
SLICES_SECONDS = (0.001, 0.004)
#: No refusal goes sooner after its request: clients that ask again at once would keep the loop refusing.
PAUSE_SECONDS = 0.02
# A wait that was foreseen may become so many times as long: others take the processor, too.
_HEADROOM = 3.0
# Before anything was measured.
_FIRST_PACE_SECONDS = 0.0005
# What is measured is the mean over so many requests; one that takes far longer is an accident.
_MEAN_OF = 32
_MOST_OF_MEAN = 4.0

_LATE = "the server has more requests than it can answer in time"


class Refused(Protocol):
    """The answer to a request that does not begin; ``body``: bytes that are here."""

    status: int
    headers: list[tuple[bytes, bytes]]
    body: Any


class Arrived(Protocol):
    """A request whose header has come. Either ``begin`` or ``refuse`` is called once."""

    @property
    def head(self) -> Head: ...

    @property
    def body(self) -> bytes | bytearray:
        """What has come of it."""

    @property
    def is_whole(self) -> bool:
        """Whether that is all."""

    @property
    def at(self) -> float:
        """When its first byte came, on time.monotonic's clock."""

    def begin(self) -> None:
        """Have it answered."""

    def refuse(self, answer: Refused) -> None:
        """Give it ``answer``."""


class Reception(Protocol):
    """Knows what requests ask for."""

    def deadline(self, request: Arrived, is_free: bool) -> float | None:
        """Return by when ``request`` has to be answered; None: it begins at once, whatever waits.

        ``is_free``: nothing waits, so that it need not be known exactly.

        Raises:
            BusyError: it would be refused if it began.
        """

    def refusal(self, request: Arrived, why: BusyError) -> Refused:
        """Return the answer to ``request``, which is refused, and count it."""


class Intake:
    """Lets requests begin, the first deadline first, as many in a slice as there is time for.

    ``loop`` calls back when it has looked at the sockets once more, and when a pause is over.
    """

    def __init__(
        self,
        reception: Reception,
        loop: AbstractEventLoop,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._reception = reception
        self._loop = loop
        self._clock = clock
        #: Seconds from one that begins to the next where more wait.
        self.pace = _FIRST_PACE_SECONDS
        # What of that is its own work; the rest is reading others, and refusing them.
        self._work_seconds = _FIRST_PACE_SECONDS
        self._waiting: list[tuple[float, Arrived]] = []
        # Those that are refused, with the answer and when it is due.
        self._refused: deque[tuple[float, Arrived, Refused]] = deque()
        self._working = False
        # Of a slice: how many it is for, how many began in it, when they did, and when they went on.
        self._most = 1
        self._begun = 0
        self._begun_at = self._went_on_at = 0.0

    @property
    def looked_at(self) -> float:
        """When all that could be read had been read, if requests wait; on time.monotonic's clock."""
        return self._went_on_at if self._working else 0.0

    def take(self, request: Arrived) -> None:
        """Let ``request`` begin, now or when it is its turn, or refuse it."""
        try:
            deadline = self._reception.deadline(request, not self._working)
            if deadline is None:
                request.begin()
            elif self._working:
                before = bisect_right(self._waiting, deadline, key=_deadline)
                self._check(deadline, before)
                self._waiting.insert(before, (deadline, request))
            else:
                request.begin()
                self._working, self._begun = True, 0  # how long this one takes is seen by nobody
                self._loop.call_soon(self._work)
        except BusyError as exc:
            self._refuse(request, exc)

    def _check(self, deadline: float, before: int) -> None:
        """Check that there is time for ``before`` others, and then for a slice: answers go at its end.

        Raises:
            LateError: there is not.
        """
        late = self._clock() + _HEADROOM * self._wait(before) - deadline
        if late > 0:
            raise LateError(_LATE, late)

    def _wait(self, before: int) -> float:
        """Return the seconds that ``before`` others and a slice take."""
        return (before + self._most) * self.pace

    def _work(self) -> None:
        """Begin as many as a slice of time is for, and come back when they have had it."""
        now = self._clock()
        if self._begun:
            self.pace = self._mean(self.pace, now - self._begun_at)
            self._work_seconds = self._mean(self._work_seconds, now - self._went_on_at)
        self._begun_at, self._begun = now, 0
        if self._waiting:
            self._loop.call_soon(self._note)
            least, longest = SLICES_SECONDS
            left = (self._waiting[0][0] - now) * _SLICE_OF_LEFT
            self._most = max(1, int(min(max(left, least), longest) / self._work_seconds))
        # Where it takes longer than it did, the last are told now and not when their time is over.
        while self._waiting and now + self._wait(len(self._waiting)) > self._waiting[-1][0]:
            _, request = self._waiting.pop()
            self._refuse(request, LateError(_LATE, self._wait(len(self._waiting))))
        while self._waiting and self._begun < self._most:
            deadline, request = self._waiting.pop(0)
            try:
                self._check(deadline, 0)
            except LateError as exc:
                self._refuse(request, exc)
                continue
            self._begun += 1
            request.begin()
        self._working = self._begun > 0
        if self._working:
            self._loop.call_soon(self._work)

    def _note(self) -> None:
        """Note that those that have begun go on, now that all sockets were looked at."""
        self._went_on_at = self._clock()

    def _mean(self, mean: float, seconds: float) -> float:
        """Return the ``mean`` of one request, now that those that had begun took so many seconds."""
        seen = min(seconds / self._begun, _MOST_OF_MEAN * mean)
        return mean + (seen - mean) * self._begun / (self._begun + _MEAN_OF)

    def _refuse(self, request: Arrived, why: BusyError) -> None:
        answer, due = self._reception.refusal(request, why), request.at + PAUSE_SECONDS
        self._refused.append((due, request, answer))
        if len(self._refused) == 1:
            self._loop.call_later(max(due - self._clock(), 0.0), self._answer)

    def _answer(self) -> None:
        """Give those that are refused the answers that are due."""
        tick = SLICES_SECONDS[0]
        now = self._clock()
        while self._refused and self._refused[0][0] <= now + tick:
            _, request, answer = self._refused.popleft()
            request.refuse(answer)
        if self._refused:
            self._loop.call_later(self._refused[0][0] - now, self._answer)


def _deadline(waiting: tuple[float, Arrived]) -> float:
    return waiting[0]
