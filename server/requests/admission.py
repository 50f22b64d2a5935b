"""Lines of requests: bounded, first come first served, and one can leave them.

Before an engine they wait as jobs for its thread (Line), for what goes one by one as tasks (Turns).
"""

import asyncio
import threading
from collections import deque
from typing import Generic, Literal, TypeVar

from server.errors import BusyError, NotServingError

T = TypeVar("T")


class Line(Generic[T]):
    """At most ``limit`` jobs that wait for the model ``name``. All methods are thread-safe."""

    def __init__(self, name: str, limit: int) -> None:
        self._name = name
        self._limit = limit
        self._jobs: deque[T] = deque()
        self._closed = False
        self._taken = False
        #: How often ``take`` looked whether there is a job; while none comes, it sleeps.
        self.wake_ups = 0
        self._changed = threading.Condition()

    def __len__(self) -> int:
        return len(self._jobs)

    @property
    def idle(self) -> bool:
        """Whether it is open, no job waits, and whoever took the last one has come back for another."""
        return not (self._closed or self._jobs or self._taken)

    def check_room(self) -> None:
        """Check that there is room for one more.

        Raises:
            BusyError: there is none.
        """
        if len(self._jobs) >= self._limit:
            raise BusyError(f"model {self._name!r}: {self._limit} requests are waiting")

    def join(self, job: T) -> None:
        """Put ``job`` at the end.

        Raises:
            BusyError: the line is full. NotServingError: it is closed.
        """
        with self._changed:
            self._check_open()
            self.check_room()
            self._jobs.append(job)
            self._changed.notify()

    def join_first(self, job: T) -> None:
        """Put ``job`` before all others, also where the line is full.

        Raises:
            NotServingError: it is closed.
        """
        with self._changed:
            self._check_open()
            self._jobs.appendleft(job)
            self._changed.notify()

    def leave(self, job: T) -> None:
        """Take ``job`` out, if it still waits: its place is free for another."""
        with self._changed:
            if job in self._jobs:
                self._jobs.remove(job)

    def take(self) -> T | None:
        """Return the first job; wait for one; None when the line is closed and empty."""
        with self._changed:
            self._taken = False
            self._changed.wait_for(self._awake)
            self._taken = bool(self._jobs)
            return self._jobs.popleft() if self._jobs else None

    def close(self) -> None:
        """Refuse new jobs; those that wait are still taken."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _check_open(self) -> None:
        if self._closed:
            raise NotServingError(f"model {self._name!r} is leaving service")

    def _awake(self) -> bool:
        self.wake_ups += 1
        return bool(self._jobs) or self._closed


class Turns(asyncio.Lock):
    """A lock for which ``limit`` may wait."""

    def __init__(self, what: str, limit: int) -> None:
        super().__init__()
        self._what = what
        self._limit = limit
        self._waiting = 0

    async def acquire(self) -> Literal[True]:
        """Wait for the lock.

        Raises:
            BusyError: too many wait.
        """
        if self._waiting >= self._limit:
            raise BusyError(f"{self._limit} requests wait for {self._what}")
        self._waiting += 1
        try:
            return await super().acquire()
        finally:
            self._waiting -= 1
