"""A reader that is as fast as told: shipped, so that a pipeline can be measured beside any disk."""

import threading
import time
from collections.abc import Callable

from loader.readers.reader import Reader


class PacedReader(Reader):
    """Reads through ``reader``, all reads together at most ``bytes_per_second``.

    A read ends when a disk of that speed would have brought it, if everything before it were
    brought first. ``sleep`` and ``clock`` measure and wait, in seconds.
    """

    def __init__(
        self,
        reader: Reader,
        bytes_per_second: float,
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if bytes_per_second <= 0:
            raise ValueError(f"{bytes_per_second} bytes a second: nothing would ever come")
        self.kind = reader.kind
        self.name = reader.name
        self.alignment = reader.alignment
        self._reader = reader
        self._bytes_per_second = bytes_per_second
        self._sleep = sleep
        self._clock = clock
        self._busy_until = 0.0
        self._lock = threading.Lock()

    def read_into(self, offset: int, target: memoryview) -> None:
        with self._lock:
            begins = max(self._clock(), self._busy_until)
            ends = self._busy_until = begins + target.nbytes / self._bytes_per_second
        self._reader.read_into(offset, target)
        left = ends - self._clock()
        if left > 0:
            self._sleep(left)

    def check(self) -> None:
        self._reader.check()

    def close(self) -> None:
        self._reader.close()
