"""The line of one model: a bounded queue of requests, which batches take, and of changes of its plan.

Invariant: a request is let in or refused when it joins; one that was let in stays until a batch takes it,
or until its client leaves. What a decision depends on changes only within ``Line._deciding``, after which
the batches and changes that may begin go to the threads of all models (dispatcher.py).
"""

import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from server.errors import BusyError, LateError, NotServingError
from server.scheduling.agenda import Agenda, Expected
from server.scheduling.costs import Costs
from server.scheduling.sweeps import ALONE, Batching, Sweep, Ticket

C = TypeVar("C")


@dataclass(frozen=True)
class Desk:
    """What the lines of one run queue share.

    ``dispatch``: hands out the batches that begin now, under the lock. ``hand_out``: has a thread run a
    batch or a change of a line, under the lock. ``finished``: of the lock; notified when one may be over.
    """

    lock: threading.RLock
    clock: Callable[[], float]
    costs: Costs
    agenda: Agenda
    dispatch: Callable[[], None]
    hand_out: "Callable[[Line[Any], Any], None]"
    finished: threading.Condition


class Line(Generic[C]):
    """Requests and changes of its plan (of type C) that wait for the model ``name``. Thread-safe.

    ``key``: the model in the run queue. ``limit``: of requests that wait. ``concurrency``: how many batches
    run at once. ``run``: runs a batch or a change, on a thread, and then calls ``done`` or ``made``.
    """

    def __init__(
        self,
        desk: Desk,
        name: str,
        key: str,
        limit: int,
        concurrency: int,
        run: Callable[[Sweep | C], None],
    ) -> None:
        self.key = key
        self.batching: Batching = ALONE
        #: Whether batches of this model use an arena that other models use, too.
        self.takes_turns = False
        self._desk = desk
        self._name = name
        self._limit = limit
        self._concurrency = concurrency
        self._run = run
        self._waiting: set[Ticket] = set()
        #: Batches that were handed out; how long it took until a thread had each, once one has.
        self._running: dict[Sweep, float] = {}
        self._changes: deque[C] = deque()
        #: Changes that were handed out.
        self._making: list[C] = []
        #: Batches and changes that were handed out and have not returned, also those given up.
        self._handed_out = 0
        self._closed = self._is_abandoned = False
        self._lock = desk.lock

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def idle(self) -> bool:
        """Whether it is open, nothing waits and nothing runs."""
        return not (self._closed or self._waiting or self._changes or self._handed_out)

    @property
    def is_contended(self) -> bool:
        """Whether a request that comes now may have to wait: others are here, or are expected."""
        return self.expects or not self.idle

    @property
    def can_begin(self) -> bool:
        """Whether one more batch may run."""
        return len(self._running) < self._concurrency and not self.changing

    @property
    def changing(self) -> bool:
        """Whether a change waits or is being made: until then no batch begins."""
        return bool(self._changes or self._making)

    @property
    def expects(self) -> bool:
        """Whether requests are expected, of it or of another one whose batches take the same cores."""
        return self._desk.agenda.expects

    @property
    def runs(self) -> bool:
        """Whether a batch of it runs."""
        return bool(self._running)

    @contextmanager
    def _deciding(self) -> Iterator[None]:
        """Hold the lock for a change of what a decision depends on, and decide anew after it."""
        with self._lock:
            yield
            self._begin_change()
            self._desk.dispatch()

    def _begin_change(self) -> None:
        """Hand out the next change if nothing else runs: until then it can be taken back."""
        if self._changes and not (self._running or self._making):
            self._making.append(self._changes.popleft())
            self._hand_out(self._making[-1])

    def _hand_out(self, what: Sweep | C) -> None:
        self._handed_out += 1
        self._desk.hand_out(self, what)

    def follow(self, batching: Batching, takes_turns: bool) -> None:
        """Let requests share batches as ``batching`` says; ``takes_turns``: as the attribute."""
        with self._deciding():
            self.batching, self.takes_turns = batching, takes_turns

    def waiting(self) -> list[Ticket]:
        """Return the requests that wait."""
        with self._lock:
            return list(self._waiting)

    def check_room(
        self, deadline: float | None = None, expected: Expected | None = None, is_read: bool = True
    ) -> None:
        """Check that there is room for one more, which has to be answered by ``deadline`` if there is one.

        ``expected``, ``is_read``: as ``ask`` of the run queue.

        Raises:
            BusyError: there is none. LateError: a request with this deadline would be refused now.
            NotServingError: the line is closed.
        """
        if self._closed:
            raise self.leaving()
        if len(self._waiting) >= self._limit:
            many = "1 request is" if self._limit == 1 else f"{self._limit} requests are"
            raise BusyError(f"model {self._name!r}: {many} waiting")
        if deadline is not None:
            with self._lock:
                ticket, now = Ticket(self.key, deadline), self._desk.clock()
                refusal = self._desk.agenda.ask(ticket, now, expected, is_read)
                if refusal is not None:
                    raise self._late(refusal)

    def check_deadline(self, deadline: float) -> None:
        """Check that a request which has to be answered by ``deadline`` would be let in now.

        Raises:
            LateError: it would be late, whatever else comes.
        """
        with self._lock:
            refusal = self._desk.agenda.refusal(Ticket(self.key, deadline), self._desk.clock())
            if refusal is not None:
                raise self._late(refusal)

    def expect(self, deadline: float, n_bytes: int) -> Expected:
        """Expect a request that was let in, which is read now, and has a body of ``n_bytes``."""
        with self._lock:
            run_queue = self._desk.agenda
            expected = run_queue.expect(self.key, deadline, n_bytes, self._desk.clock())
            if self._closed:  # which refuses it when it is read
                run_queue.came(expected)
            return expected

    def expect_still(self, expected: Expected, waits_seconds: float) -> None:
        """Expect a request as long as if it came now, and after it has waited here for so many seconds."""
        with self._lock:
            if not self._closed:
                self._desk.agenda.expect_still(expected, self._desk.clock() + waits_seconds)

    def note_refusal(self, is_late: bool) -> None:
        """Note of a request that was expected whether it was refused late after all."""
        with self._lock:
            self._desk.agenda.note_refusal(is_late)

    def came(self, expected: Expected) -> None:
        """Expect it no longer: it joins, or does not come."""
        with self._lock:
            self._desk.agenda.came(expected)

    def join(self, ticket: Ticket) -> None:
        """Let ``ticket`` in.

        Raises:
            BusyError: the line is full. LateError: its answer would come too late, or make that of another
            one late. NotServingError: the line is closed.
        """
        with self._deciding():
            self.check_room()
            ticket.model = self.key
            refusal = self._desk.agenda.admit(ticket, self._desk.clock())
            if refusal is not None:
                raise self._late(refusal)
            self._waiting.add(ticket)

    def join_first(self, change: C) -> None:
        """Put ``change`` before all requests, also where the line is full.

        Raises:
            NotServingError: the line is closed.
        """
        with self._deciding():  # batches of other models do not wait for this one now
            if self._closed:
                raise self.leaving()
            self._changes.append(change)

    def made(self, change: C) -> None:
        """Note that ``change``, which was handed out, has been made or has failed."""
        with self._lock:
            self._making.remove(change)

    def take_changes(self) -> list[C]:
        """Take the changes that wait out of the line."""
        with self._deciding():
            changes = list(self._changes)
            self._changes.clear()
            return changes

    def take_waiting(self) -> list[Ticket]:
        """Take the requests that wait out of the line, before a batch takes one of them."""
        with self._deciding():
            tickets = list(self._waiting)
            for ticket in tickets:
                self._waiting.discard(ticket)
                self._desk.agenda.leave(ticket)
            return tickets

    def leave(self, ticket: Ticket) -> None:
        """Take ``ticket`` out, if it still waits: its place is free for another."""
        if ticket not in self._waiting:
            return  # most have been computed, and need no decision
        with self._deciding():
            self._waiting.discard(ticket)
            self._desk.agenda.leave(ticket)

    def grant(self, batch: Sweep) -> None:
        """Hand ``batch`` out; the lock is held."""
        self._running[batch] = self._desk.clock()
        for ticket in batch.tickets:
            self._waiting.discard(ticket)
        self._hand_out(batch)

    def run(self, what: Sweep | C) -> None:
        """Run a batch or a change that was handed out, on the thread that calls this."""
        with self._lock:
            if what in self._running:
                self._running[what] = self._desk.clock() - self._running[what]
        self._run(what)

    def returned(self) -> None:
        """Note that ``run`` has returned; what may begin now goes to threads. The lock is held."""
        with self._deciding():
            self._handed_out -= 1
        self._desk.finished.notify_all()

    def done(self, batch: Sweep, seconds: float | None, late: bool = False) -> None:
        """Note that ``batch`` has ended, after so many ``seconds`` of computing; None: unknown.

        It costs the time, too, in which its thread woke: the next batch begins as much later. ``late``: as
        Costs.see.
        """
        with self._lock:  # the thread comes back next, and then others may begin
            if batch not in self._running:
                return  # ``abandon`` has ended it already
            woke_seconds = self._running.pop(batch)
            if seconds is not None:
                self._desk.costs.see(self.key, len(batch.tickets), woke_seconds + seconds, late)
            self._desk.agenda.end(batch, self._desk.clock())

    def abandon(self) -> None:
        """Count the batches that run here, which are stuck, as ended, so that others may begin."""
        with self._deciding():
            for batch in list(self._running):
                self.done(batch, None)
            self._is_abandoned = True
            self._desk.finished.notify_all()

    def close(self) -> None:
        """Refuse new requests; those that wait are still taken."""
        with self._lock:
            self._closed = True
            self._desk.agenda.forget(self.key)
            self._desk.finished.notify_all()

    def wait_until_over(self, *, or_abandoned: bool = False) -> None:
        """Wait until it is closed and empty, and all that it handed out has returned; blocks.

        ``or_abandoned``: or until what runs here was abandoned.
        """
        with self._lock:
            while not (self._is_over or (or_abandoned and self._is_abandoned)):
                self._desk.finished.wait()

    @property
    def _is_over(self) -> bool:
        return self._closed and not (self._waiting or self._changes or self._handed_out)

    def _late(self, seconds: float) -> LateError:
        if self._desk.agenda.is_idle:
            self._desk.costs.doubt(self.key)
        return LateError(
            f"model {self._name!r}: no answer in time, but {max(seconds, 0.01):.2f} s later",
            seconds,
        )

    def leaving(self) -> NotServingError:
        """Return the error of what comes once the line is closed."""
        return NotServingError(f"model {self._name!r} is leaving service")
