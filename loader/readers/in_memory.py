"""The shipped fake: a reader of bytes in memory that can be told to wait, to fall short, to fail."""

import threading
from collections.abc import Callable

import numpy as np

from loader.errors import ClosedError, ReadError
from loader.readers.reader import Reader

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
