"""An io_uring for reads, from the optional package liburing.

The package holds the interpreter's lock while it waits for completions, so nothing waits for them here:
the ring rings an eventfd, and who wants to sleep reads that. Of its reads only ``readv`` takes memory
of ours.
"""

import os
from types import ModuleType
from typing import Any


class Ring:
    """An io_uring with room for ``entries`` reads. One thread at a time, but for ``wake``.

    Raises:
        ImportError: the package liburing is not installed. OSError: the kernel refuses.
    """

    def __init__(self, entries: int) -> None:
        import liburing

        self._uring: ModuleType = liburing
        self._ring: Any = liburing.Ring()
        self._completion: Any = liburing.Cqe()
        self._vectors: dict[int, Any] = {}  # alive until the kernel is done with them
        liburing.io_uring_queue_init(entries, self._ring)
        self.bell = os.eventfd(0, os.EFD_CLOEXEC)
        liburing.io_uring_register_eventfd(self._ring, self.bell)

    def read(self, number: int, descriptor: int, target: memoryview, offset: int) -> None:
        """Prepare read ``number``; ``target`` must live until it has ended."""
        vector = self._uring.Iovec([target])
        entry = self._uring.io_uring_get_sqe(self._ring)
        self._uring.io_uring_prep_readv(entry, descriptor, vector, offset)
        entry.user_data = number
        self._vectors[number] = vector

    def submit(self) -> None:
        """Hand the reads prepared to the kernel; does not wait for them.

        Raises:
            OSError: it takes none just now; they stay prepared.
        """
        self._uring.io_uring_submit(self._ring)

    def wait(self) -> None:
        """Sleep until a read ends or ``wake`` is called."""
        os.eventfd_read(self.bell)

    def wake(self) -> None:
        """End a ``wait``, this one or the next; from any thread."""
        os.eventfd_write(self.bell, 1)

    def ended(self) -> list[tuple[int, int | OSError]]:
        """Return number and count of bytes, or error, of each read that has ended."""
        ended: list[tuple[int, int | OSError]] = []
        while self._uring.io_uring_cq_ready(self._ring):
            self._uring.io_uring_wait_cqe(self._ring, self._completion)  # there is one: no wait
            entry = self._completion[0]
            number = int(entry.user_data)
            try:
                count: int | OSError = int(entry.res)
            except OSError as exc:
                count = OSError(exc.errno, os.strerror(exc.errno or 0))
            self._uring.io_uring_cqe_seen(self._ring, entry)
            del self._vectors[number]
            ended.append((number, count))
        return ended

    def close(self) -> None:
        """Give the ring back; no read may be in flight."""
        self._uring.io_uring_queue_exit(self._ring)
        os.close(self.bell)
