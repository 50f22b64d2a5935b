"""Where weights lie: on the disk of their file, or on one of another speed that reads without a core."""

import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from loader.readers.files import open_reader
from loader.readers.interface import Reader

#: Sweeps that find the bytes they ask for: one that checks them, and what it reads ahead for the next.
CHECKED = 2


class CorelessReader(Reader):
    """Brings what lies at an offset ``brings`` times, and from then on leaves what is in memory.

    That takes no core. Results mean nothing then, and kernels take as long as ever: what is left are
    weights, of another layer.
    """

    def __init__(self, reader: Reader, brings: int = CHECKED) -> None:
        self._reader = reader
        self._brings = brings
        self.kind, self.name, self.alignment = reader.kind, reader.name, reader.alignment
        self._brought: Counter[int] = Counter()

    def read_into(self, offset: int, target: memoryview) -> None:
        self._brought[offset] += 1
        if self._brought[offset] <= self._brings:
            self._reader.read_into(offset, target)

    def check(self) -> None:
        self._reader.check()

    def close(self) -> None:
        self._reader.close()


# A reader of a given speed: shipped, so that a pipeline can be measured beside any disk.


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
        pace = bytes_per_second
        self._pace = pace if isinstance(pace, Pace) else Pace(pace, clock)
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


@dataclass(frozen=True)
class Disk:
    """Opens files: for sweeps, and for reads that are timed and whose bytes are not used.

    ``bytes_per_second``: of all its files together; None: what the disk gives that they lie on.
    """

    open: Callable[[Path], Reader] = open_reader
    open_for_timing: Callable[[Path], Reader] = open_reader
    bytes_per_second: float | None = None


REAL_DISK = Disk()


def paced_disk(bytes_per_second: float) -> Disk:
    """Return a disk of that speed, as one that brings bytes by DMA: reads take no core.

    The first sweeps of an engine read their file, so that checksums and first answers are right; from then
    on reads take their time and bring nothing, and answers mean nothing.

    Raises:
        ValueError: that is no speed.
    """
    pace = Pace(bytes_per_second)
    return Disk(
        lambda path: PacedReader(CorelessReader(open_reader(path)), pace),
        lambda path: PacedReader(CorelessReader(open_reader(path), brings=0), pace),
        bytes_per_second,
    )
