"""The shipped fakes: bytes in memory, and a disk that fails as set up.

Errors are those that the readers of real files give for the same trouble.
"""

import errno
import os
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from loader.errors import ClosedError, ReadError
from loader.readers.interface import Filling, Reader

#: Called with the offset and length of a read before it happens; may block or raise ReadError.
Hook = Callable[[int, int], None]


class MemoryReader(Reader):
    """Reads ``content``; keeps a count of reads in progress, so that tests can see that all ended."""

    kind = "memory"
    name = "memory"
    alignment = 1

    def __init__(self, content: bytes, hook: Hook | None = None) -> None:
        self.content = content
        self.hook = hook
        self.closed = False
        self.in_progress = 0
        self._lock = threading.Lock()

    def read_into(self, offset: int, target: memoryview) -> None:
        with self._lock:
            if self.closed:
                raise ClosedError("memory: reader closed")
            self.in_progress += 1
        try:
            if self.hook is not None:
                self.hook(offset, len(target))
            count = max(min(len(self.content) - offset, len(target)), 0)
            # NumPy lets other threads run meanwhile; a memoryview does not.
            content = np.frombuffer(self.content, np.uint8)[offset : offset + count]
            np.copyto(np.frombuffer(target, np.uint8)[:count], content)
            if count < len(target):
                raise ReadError(f"memory: ends {len(target) - count} bytes short at {offset}")
        finally:
            with self._lock:
                self.in_progress -= 1

    def close(self) -> None:
        if self.in_progress:
            raise AssertionError(f"closed with {self.in_progress} reads in progress")
        self.closed = True


#: "io error": EIO. "short": the file ends at ``offset``. "slow": a read takes ``factor`` times as long.
#: "wrong bytes": one bit is flipped. "gone": the disk has disappeared (ENODEV), now and for ever.
FaultKind = Literal["io error", "short", "slow", "wrong bytes", "gone"]


@dataclass(frozen=True)
class ReadFault:
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
        faults: Sequence[ReadFault],
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

    def _next(self, offset: int, length: int) -> ReadFault | None:
        """Return the fault that strikes this read, and count it."""
        with self._lock:
            for number, fault in enumerate(self._faults):
                exhausted = fault.times is not None and self.struck[number] >= fault.times
                if not exhausted and fault.touches(offset, length):
                    self.struck[number] += 1
                    self._gone |= fault.kind == "gone"
                    return fault
        return None

    def _fall_short(self, fault: ReadFault, offset: int, target: memoryview) -> None:
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
