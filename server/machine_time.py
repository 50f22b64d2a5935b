"""How much of the machine a sweep has had, where sweeps of several models run at once.

While n run, each has an n-th of the processor and the disk, and takes n times as long as alone. So the time
of each is counted by its part: what it would take alone, and what a profile predicts.
"""

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass


@dataclass
class Part:
    """Of one sweep; ``seconds`` counts when it has ended."""

    seconds: float = 0.0


class MachineTime:
    """Counts the sweeps that run. Thread-safe."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._running = 0
        self._changed_at = clock()
        # What a sweep would have had that ran from the beginning on.
        self._each = 0.0

    @contextlib.contextmanager
    def part(self) -> Iterator[Part]:
        """Count a sweep while the context is open; its part is known afterwards."""
        part = Part()
        began = self._change(1)
        try:
            yield part
        finally:
            part.seconds = self._change(-1) - began

    def _change(self, by: int) -> float:
        """Count time up to now for those that run, then change their number."""
        with self._lock:
            now = self._clock()
            if self._running:
                self._each += (now - self._changed_at) / self._running
            self._changed_at = now
            self._running += by
            return self._each
