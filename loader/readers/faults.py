"""A reader whose disk fails as told: shipped, so that any model can be tried on a bad disk.

Errors are those that the readers of real files give for the same trouble.
"""

import errno
import os
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from loader.errors import ReadError
from loader.readers.filling import Filling
from loader.readers.reader import Reader

#: "io error": EIO. "short": the file ends at ``offset``. "slow": a read takes ``factor`` times as long.
#: "wrong bytes": one bit is flipped. "gone": the disk has disappeared (ENODEV), now and for ever.
FaultKind = Literal["io error", "short", "slow", "wrong bytes", "gone"]


@dataclass(frozen=True)
class Fault:
    """Strikes reads that touch [offset, end) of the file (end None: to its end), ``times`` times.

    ``times`` None: always. ``factor``: of slow reads.
    """

    kind: FaultKind
    offset: int = 0
    end: int | None = None
    times: int | None = 1
    factor: float = 100.0

    def touches(self, offset: int, length: int) -> bool:
        """Whether a read of [offset, offset + length) meets it."""
        end = offset + length
        return max(self.offset, offset) < (end if self.end is None else min(self.end, end))


class FaultyReader(Reader):
    """Reads through ``reader``, and fails where one of ``faults`` strikes: the first that does.

    ``sleep`` and ``clock`` measure and delay slow reads, in seconds.
    """

    def __init__(
        self,
        reader: Reader,
        faults: Sequence[Fault],
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.kind = reader.kind
        self.name = reader.name
        self.alignment = reader.alignment
        #: How often each fault has struck.
        self.struck = [0] * len(faults)
        self._reader = reader
        self._faults = tuple(faults)
        self._sleep = sleep
        self._clock = clock
        self._gone = False
        self._lock = threading.Lock()

    def read_into(self, offset: int, target: memoryview) -> None:
        fault = self._next(offset, len(target))
        if self._gone:
            raise self._failure(offset, target, errno.ENODEV)
        if fault is None:
            self._reader.read_into(offset, target)
        elif fault.kind == "io error":
            raise self._failure(offset, target, errno.EIO)
        elif fault.kind == "short":
            self._fall_short(fault, offset, target)
        elif fault.kind == "slow":
            started = self._clock()
            self._reader.read_into(offset, target)
            self._sleep((fault.factor - 1) * (self._clock() - started))
        else:
            self._reader.read_into(offset, target)
            target[max(fault.offset - offset, 0)] ^= 1

    def check(self) -> None:
        if self._gone:
            raise self._failure(0, memoryview(b""), errno.ENODEV)
        self._reader.check()

    def close(self) -> None:
        self._reader.close()

    def _next(self, offset: int, length: int) -> Fault | None:
        """Return the fault that strikes this read, and count it."""
        with self._lock:
            for number, fault in enumerate(self._faults):
                exhausted = fault.times is not None and self.struck[number] >= fault.times
                if not exhausted and fault.touches(offset, length):
                    self.struck[number] += 1
                    self._gone |= fault.kind == "gone"
                    return fault
        return None

    def _fall_short(self, fault: Fault, offset: int, target: memoryview) -> None:
        """Read up to where the file now ends, and say so."""
        block = max(fault.offset - offset, 0) // self.alignment * self.alignment
        if block:
            self._reader.read_into(offset, target[:block])
        filling = Filling(self.name, 1, offset, target)
        if there := max(fault.offset - offset, 0):
            filling.add(there)
        filling.add(0)

    def _failure(self, offset: int, target: memoryview, code: int) -> ReadError:
        cause = OSError(code, os.strerror(code))
        error = Filling(self.name, self.alignment, offset, target).failure(cause)
        error.__cause__ = cause
        return error
