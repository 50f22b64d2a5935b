"""Which engine may use an arena of activations, and when: one for ever, or several in turns.

Invariant: a shared arena is held by at most one engine at a time, and the first to ask gets it first.
Models that may run at once never share one. A shared arena is as large as the largest of its members needs;
it grows and shrinks at its end (pipeline/devices/device_memory.py), so no pointers change.
"""

import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from pipeline.devices.base import Device
from pipeline.devices.device_memory import Memory, Space
from pipeline.execution.deadlines import check_deadline
from pipeline.execution.errors import ArenaLostError, CancelledError, EngineClosedError

#: What engines that run in turns have once, of the kinds of ``Plan.memory``: only the request that runs
#: uses it. What others hold meanwhile, inputs in line and answers on their way, is the memory of requests.
SHARED_KINDS = frozenset({"arena", "scratch", "io"})

_CLOSE_SECONDS = 60.0


class ArenaLease(ABC):
    """An engine's right to ``memory``, an arena."""

    memory: Memory

    def wake(self) -> None:  # noqa: B027  an engine does not wait for its own
        """Have waiting requests look whether they are cancelled."""

    def abandon(self) -> None:  # noqa: B027
        """Leave the arena to the others; its own one stays, since a broken device may still use it."""

    def lose(self) -> None:  # noqa: B027  an arena of its own is never used again
        """The disk may write to it for ever: no engine gets it any more."""

    @abstractmethod
    def close(self) -> None:
        """Give it back; the engine computes no more."""


class OwnArena(ArenaLease):
    """``n_bytes`` of ``device`` for one engine, which never waits.

    Raises:
        DeviceError: there is not enough of it.
    """

    def __init__(self, device: Device, n_bytes: int) -> None:
        self.memory = device.allocate("own", n_bytes)

    def close(self) -> None:
        self.memory.close()


class SharedArena:
    """One arena in ``space`` for engines that run in turns. Thread-safe."""

    def __init__(self, space: Space) -> None:
        self._space = space
        #: Of the space and its members: giving pages back takes as long as the system takes.
        self._resizing = threading.Lock()
        #: Of the line. The event loop takes it, in ``wake``, so no thread holds it for long.
        self._changed = threading.Condition()
        #: The requests for a turn, in order. The first one holds the arena.
        self._line: deque[object] = deque()
        self._members: dict[ArenaLease, int] = {}
        self._closed = False
        #: What a read that has not ended may write to for ever, from the beginning on; None: nothing.
        self._lost_bytes: int | None = None

    @property
    def n_bytes(self) -> int:
        """What the largest member needs."""
        return self._space.n_bytes

    @property
    def members(self) -> int:
        return len(self._members)

    @property
    def waiting(self) -> int:
        """Turns that were asked for and have not begun."""
        return max(len(self._line) - 1, 0)

    def join(self, n_bytes: int) -> "SharedLease":
        """Return the lease of one more engine, whose arena takes ``n_bytes``.

        Raises:
            MemoryError: that is more than the space has. EngineClosedError: the arena was closed.
            ArenaLostError: it is lost.
        """
        with self._resizing:
            self._check_open()
            self._space.resize(max(n_bytes, self.n_bytes))
            lease = SharedLease(self, self._space.first(n_bytes))
            self._members[lease] = n_bytes
            return lease

    def leave(self, lease: ArenaLease) -> None:
        """Give back what only ``lease`` needed; it holds no turn."""
        with self._resizing:
            used = self._members.pop(lease, None) is not None
            if used and not self._closed:
                self._space.resize(max([*self._members.values(), self._lost_bytes or 0]))

    def acquire(self, deadline: float | None, cancelled: Callable[[], bool]) -> object:
        """Wait for the next turn; return what ``release`` takes. Raises as ``Lease.turn``."""
        ticket = object()
        with self._changed:
            self._line.append(ticket)
            try:
                while True:
                    self._check_open()
                    if cancelled():
                        raise CancelledError("cancelled while another model was running")
                    if self._line[0] is ticket:
                        return ticket
                    self._wait(deadline)
            except BaseException:
                self._line.remove(ticket)
                self._changed.notify_all()
                raise

    def release(self, ticket: object) -> None:
        """End a turn."""
        with self._changed:
            self._line.remove(ticket)
            self._changed.notify_all()

    def wake(self) -> None:
        """Have waiting requests look whether they are cancelled."""
        with self._changed:
            self._changed.notify_all()

    def lose(self, lease: ArenaLease) -> None:
        """Give no more turns, and never give back what ``lease`` has: a read into it has not ended."""
        with self._changed:
            self._lost_bytes = self._members[lease]
            self._changed.notify_all()

    def close(self) -> None:
        """Refuse new turns, turn waiting ones away, wait for the turn that runs, give the memory back.

        A turn that does not end in ``_CLOSE_SECONDS`` keeps the memory: its kernel does not return.
        """
        with self._changed:
            self._closed = True
            self._changed.notify_all()
            is_free = self._changed.wait_for(lambda: not self._line, _CLOSE_SECONDS)
        with self._resizing:
            self._members.clear()
            if is_free and self._lost_bytes is None:
                self._space.close()

    def _check_open(self) -> None:
        if self._lost_bytes is not None:
            raise ArenaLostError(
                "the disk may still write to the arena that models share: a read has not ended"
            )
        if self._closed:
            raise EngineClosedError("the arena that models share is closed")

    def _wait(self, deadline: float | None) -> None:
        self._changed.wait(check_deadline(deadline, "while another model was running"))


class SharedLease(ArenaLease):
    """The right of an engine that uses ``arena`` in its turns; ``memory``: its part of that."""

    def __init__(self, arena: SharedArena, memory: Memory) -> None:
        self._arena = arena
        self.memory = memory

    @contextmanager
    def turn(
        self, deadline: float | None = None, cancelled: Callable[[], bool] = lambda: False
    ) -> Iterator[float]:
        """Hold the arena inside the context; yield how many seconds it took to get it.

        Args:
            deadline: on time.monotonic's clock.
            cancelled: asked when the wait begins, and after each ``wake``.

        Raises:
            CancelledError, DeadlineError: as asked, while waiting. EngineClosedError: it was closed.
            ArenaLostError: an engine has lost it.
        """
        asked = time.perf_counter()
        ticket = self._arena.acquire(deadline, cancelled)
        try:
            yield time.perf_counter() - asked
        finally:
            self._arena.release(ticket)

    def wake(self) -> None:
        self._arena.wake()

    def abandon(self) -> None:
        self.close()

    def lose(self) -> None:
        self._arena.lose(self)

    def close(self) -> None:
        self._arena.leave(self)
        self.memory.close()
