"""A reader that is as fast as told: shipped, so that a pipeline can be measured beside any disk."""

import threading
import time
from collections.abc import Callable

from loader.readers.reader import Reader


class Pace:
    """A disk that brings ``bytes_per_second``, one read after the other. Thread-safe.

    ``clock``: in seconds.
    """

    def __init__(
        self, bytes_per_second: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        if bytes_per_second <= 0:
            raise ValueError(f"{bytes_per_second} bytes a second: nothing would ever come")
        self.clock = clock
        self._bytes_per_second = bytes_per_second
        self._busy_until = 0.0
        self._lock = threading.Lock()

    def ends(self, n_bytes: int) -> float:
        """Return when so many bytes, asked for now, have come."""
        with self._lock:
            begins = max(self.clock(), self._busy_until)
            self._busy_until = begins + n_bytes / self._bytes_per_second
            return self._busy_until


class PacedReader(Reader):
    """Reads through ``reader``, all reads together at most ``bytes_per_second``.

    A read ends when a disk of that speed would have brought it, if everything before it were
    brought first; files that share a ``Pace`` lie on one disk. ``sleep`` and ``clock`` measure and wait,
    in seconds.
    """

    def __init__(
        self,
        reader: Reader,
        bytes_per_second: float | Pace,
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        given = bytes_per_second
        self._pace = given if isinstance(given, Pace) else Pace(given, clock)
        self.kind = reader.kind
        self.name = reader.name
        self.alignment = reader.alignment
        self._reader = reader
        self._sleep = sleep

    def read_into(self, offset: int, target: memoryview) -> None:
        ends = self._pace.ends(target.nbytes)
        self._reader.read_into(offset, target)
        left = ends - self._pace.clock()
        if left > 0:
            self._sleep(left)

    def check(self) -> None:
        self._reader.check()

    def close(self) -> None:
        self._reader.close()
