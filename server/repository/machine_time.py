"""How much of the machine a sweep has had, where sweeps of several models run at once.

While n run, each has an n-th of the processor and the disk, and takes n times as long as alone. So the time
of each is counted by its part: what it would take alone, and what a profile predicts.
"""

import threading
import time
from collections.abc import Callable
from types import TracebackType


class MachineTime:
    """Counts the sweeps that run. Thread-safe."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._running = 0
        self._changed_at = clock()
        self._each = 0.0

    def part(self) -> "Part":
        """Return a context; a sweep counts while it is open."""
        return Part(self)

    def change(self, by: int) -> float:
        """Count time up to now for those that run, then change their number by ``by``.

        Return the seconds that a sweep would have had that ran from the beginning on.
        """
        with self._lock:
            now = self._clock()
            if self._running:
                self._each += (now - self._changed_at) / self._running
            self._changed_at = now
            self._running += by
            return self._each


class Part:
    """Of one sweep; ``seconds`` counts when it has ended. A class, since short answers feel a generator."""

    __slots__ = ("_began", "_machine", "seconds")

    def __init__(self, machine: MachineTime) -> None:
        self._machine = machine
        self.seconds = 0.0

    def __enter__(self) -> "Part":
        self._began = self._machine.change(1)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.seconds = self._machine.change(-1) - self._began
