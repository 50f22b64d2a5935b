"""Memory of a device, as the engine uses it: the disk writes to some of it, kernels are bound to it."""

import math
from abc import ABC, abstractmethod
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from loader.buffers import Buffer

#: Who touches it. staging: the disk and the copy stage; shared: the disk and kernels; own: kernels and
#: the copy stage; scratch: kernels while they run.
Use = Literal["staging", "shared", "own", "scratch"]


class Memory(ABC):
    """``n_bytes`` of zeroed memory at fixed addresses until ``close``."""

    n_bytes: int
    #: Whether the disk can write to it: it has ``host``.
    reachable = True

    @abstractmethod
    def host(self, offset: int, length: int) -> memoryview:
        """Return the bytes [offset, offset + length) for the disk to write to, of reachable memory."""

    @abstractmethod
    def array(self, offset: int, dtype: str, shape: tuple[int, ...]) -> Any:
        """Return what kernels are bound to: an array that begins ``offset`` bytes in."""

    def write(self, offset: int, array: NDArray[Any]) -> None:
        """Put ``array``, C-contiguous, at ``offset``; kernels launched later see it."""
        self._view(offset, array.dtype.name, array.shape)[...] = array

    def read(self, offset: int, dtype: str, shape: tuple[int, ...]) -> NDArray[Any]:
        """Return a copy of what kernels launched so far leave at ``offset``."""
        return self._view(offset, dtype, shape).copy()

    def in_place(self, offset: int, dtype: str, shape: tuple[int, ...]) -> NDArray[Any] | None:
        """Return what lies at ``offset`` for the host to write and to read between sweeps, until ``close``.

        None: it does so by ``write`` and ``read``.
        """
        return None

    def _view(self, offset: int, dtype: str, shape: tuple[int, ...]) -> NDArray[Any]:
        length = math.prod(shape) * np.dtype(dtype).itemsize
        return np.ndarray(shape, dtype, self.host(offset, length))

    def lend(self, offset: int, length: int) -> None:  # noqa: B027  most memory is always everyone's
        """Let the disk write to [offset, offset + length); no kernel that uses it is in flight."""

    def reclaim(self, offset: int, length: int) -> None:  # noqa: B027
        """Take what was lent back: kernels launched from now on may use it."""

    def populate(self, offset: int, length: int) -> None:  # noqa: B027  a device has all of its memory
        """Take [offset, offset + length) from the system before it is used; what it holds stays."""

    def huge_page_bytes(self) -> int:
        """Return how much lies on huge pages."""
        return 0

    @abstractmethod
    def close(self) -> None:
        """Give it back; nothing uses it any more."""


class HostMemory(Memory):
    """Anonymous memory of the process; arrays are NumPy's views of it."""

    def __init__(self, n_bytes: int) -> None:
        self.n_bytes = n_bytes
        self._buffer = Buffer(n_bytes)

    def host(self, offset: int, length: int) -> memoryview:
        return self._buffer.bytes[offset : offset + length].data

    def array(self, offset: int, dtype: str, shape: tuple[int, ...]) -> NDArray[Any]:
        return self._buffer.array(offset, dtype, shape)

    def in_place(self, offset: int, dtype: str, shape: tuple[int, ...]) -> NDArray[Any]:
        return self.array(offset, dtype, shape)

    def populate(self, offset: int, length: int) -> None:
        self._buffer.populate(offset, length)

    def huge_page_bytes(self) -> int:
        return self._buffer.pages().huge_bytes if self._buffer.huge_pages else 0

    def close(self) -> None:
        self._buffer.close()


def address(view: memoryview) -> int:
    """Return where ``view`` begins."""
    return int(np.frombuffer(view, np.uint8).ctypes.data)
