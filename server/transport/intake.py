"""Requests that have come and wait for the event loop: which begins next, and which is refused unread.

Where the loop itself computes short answers, requests wait for it, and it sees none of them while it works.
So it works for a slice of time, looks at all sockets, and works on. Requests then wait here, where their
deadlines are known, and not unseen in sockets.

Decisions only: a request itself knows how to begin or to be refused, and the clock is an argument.
"""

import time
from asyncio import AbstractEventLoop, TimerHandle
from bisect import bisect_right
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

from server.errors import BusyError, LateError
from server.transport.http1 import Head

# The loop works for so long before it looks at the sockets again: for this part of the time that is left to
# the first deadline, within bounds. A look costs as much as a few short answers.
_SLICE_OF_LEFT = 1 / 20
SLICES_SECONDS = (0.001, 0.004)
#: No refusal goes sooner after its request, nor after the answer before it on its connection: clients that
#: ask again at once, or that have asked already, would keep the loop refusing.
PAUSE_SECONDS = 0.02
# An estimated wait may become so many times as long, since other threads use the processor, too.
_HEADROOM = 3.0
# The estimate before the first measurement.
_FIRST_PACE_SECONDS = 0.0005
# The pace is the mean over so many requests; one that takes far longer counts with so many times the mean.
_MEAN_OF = 32
_MOST_OF_MEAN = 4.0

_LATE = "the server has more requests than it can answer in time"


class Refused(Protocol):
    """The answer to a request that does not begin; ``content``: bytes that are here."""

    status_code: int
    raw_headers: list[tuple[bytes, bytes]]
    content: Any


class Arrived(Protocol):
    """A request whose header has come. Either ``begin`` or ``refuse`` is called once.

    ``expected``: what the reception keeps for it until it joins the requests of its model.
    """

    expected: Any

    @property
    def head(self) -> Head: ...

    @property
    def declared_bytes(self) -> int:
        """How long its body is, by its header; 0: it does not say."""

    @property
    def body(self) -> bytes | bytearray:
        """The bytes of its body that have come."""

    @property
    def arrived_at(self) -> float:
        """When its first byte came, on time.monotonic's clock."""

    @property
    def answerable_at(self) -> float:
        """When it could be answered at the earliest: it had come, and the one before it had its answer."""

    def begin(self) -> None:
        """Start to answer it."""

    def refuse(self, answer: Refused) -> None:
        """Send ``answer``."""


class Reception(Protocol):
    """Knows the deadlines of requests, and how to refuse them."""

    def deadline(self, request: Arrived, is_free: bool) -> float | None:
        """Return by when ``request`` has to be answered; None: it begins at once, whatever waits.

        ``is_free``: nothing waits, so an exact deadline is not needed.

        Raises:
            BusyError: it would be refused if it began.
        """

    def refusal(self, request: Arrived, why: BusyError) -> Refused:
        """Return the answer to ``request``, which is refused, and count it."""


class Intake:
    """Lets requests begin, the first deadline first, as many in a slice as there is time for.

    ``loop`` calls it again after a look at the sockets, and when a refusal is due.
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
        #: Seconds from the beginning of one request to that of the next, while more wait.
        self.pace = _FIRST_PACE_SECONDS
        # The part of that in which the request itself is answered; the rest is reading and refusing others.
        self._work_seconds = _FIRST_PACE_SECONDS
        self._waiting: list[tuple[float, Arrived]] = []
        # Refused requests: when the answer is due, the request, the answer.
        self._refused: deque[tuple[float, Arrived, Refused]] = deque()
        # The one timer for all of them; None: none are waiting.
        self._timer: TimerHandle | None = None
        self._working = False
        # Of a slice: the most requests that may begin in it, how many began, and when they began; they go
        # on after the look at the sockets.
        self._most = 1
        self._begun = 0
        self._begun_at = 0.0
        #: When all sockets were last read, on time.monotonic's clock; 0 if no requests wait.
        self.looked_at = 0.0

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
                self._working, self._begun = True, 0  # 0: the time of this request is not measured
                self._loop.call_soon(self._work)
        except BusyError as exc:
            self._refuse(request, exc)

    def _check(self, deadline: float, before: int) -> None:
        """Check that there is time for ``before`` others and a slice, at whose end answers are sent.

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
        """Begin as many requests as a slice has time for, and call this again when they have run."""
        now = self._clock()
        if self._begun:
            self.pace = self._mean(self.pace, now - self._begun_at)
            self._work_seconds = self._mean(self._work_seconds, now - self.looked_at)
        self._begun_at, self._begun = now, 0
        if self._waiting:
            self._loop.call_soon(self._note)
            least, longest = SLICES_SECONDS
            seconds = (self._waiting[0][0] - now) * _SLICE_OF_LEFT
            self._most = max(1, int(min(max(seconds, least), longest) / self._work_seconds))
        # If requests take longer than before, the last ones are refused now, not at their deadlines.
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
        else:
            self.looked_at = 0.0

    def _note(self) -> None:
        """Note the time: all sockets were looked at, and the requests that have begun go on."""
        self.looked_at = self._clock()

    def _mean(self, mean: float, seconds: float) -> float:
        """Return the new ``mean`` of one request, after those of the slice took so many seconds."""
        seconds_each = min(seconds / self._begun, _MOST_OF_MEAN * mean)
        return mean + (seconds_each - mean) * self._begun / (self._begun + _MEAN_OF)

    def _refuse(self, request: Arrived, why: BusyError) -> None:
        answer, due = self._reception.refusal(request, why), request.answerable_at + PAUSE_SECONDS
        self._refused.append((due, request, answer))
        self._set_timer()

    def _set_timer(self) -> None:
        """Have the first refusal sent when it is due; there is one timer at a time."""
        if self._refused and self._timer is None:
            seconds = max(self._refused[0][0] - self._clock(), 0.0)
            self._timer = self._loop.call_later(seconds, self._answer)

    def _answer(self) -> None:
        """Send the refusals that are due. What their connections are refused next is not due yet."""
        due = self._clock() + SLICES_SECONDS[0]
        try:
            while self._refused and self._refused[0][0] <= due:
                _, request, answer = self._refused.popleft()
                request.refuse(answer)
        finally:
            self._timer = None
            self._set_timer()


def _deadline(waiting: tuple[float, Arrived]) -> float:
    return waiting[0]
