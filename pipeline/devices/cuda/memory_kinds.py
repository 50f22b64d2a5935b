"""The memory kinds of the CUDA device, and the arrays in them that kernels are bound to.

copied: the disk writes to page-locked memory, the copy engine moves it to device memory. mapped: kernels
read the page-locked memory itself. managed: pages that move, or on integrated devices are cached by
both sides, lent to the CPU while the disk writes.
"""

import ctypes
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loader.buffers import Buffer
from pipeline.devices.base import Block, DeviceError
from pipeline.devices.cuda.driver import Driver, Stretches
from pipeline.devices.device_memory import Memory

_PAGE_BYTES = 4096


@dataclass(frozen=True)
class DeviceArray:
    """Where kernels find an array: ``address`` on the device, C-contiguous."""

    address: int
    dtype: str
    shape: tuple[int, ...]

    @property
    def n_bytes(self) -> int:
        return math.prod(self.shape) * np.dtype(self.dtype).itemsize


def stretches(block: Block) -> Stretches:
    """Return where ``block`` lies: its rows of each plane.

    Raises:
        DeviceError: these do not lie together, as they do not in tiles.
    """
    _, rows, elements = block.array.shape
    if len(block.elements) < elements and len(block.rows) > 1:
        raise DeviceError("a GPU copies whole rows: tiles run on the CPU")
    item_bytes = np.dtype(block.array.dtype).itemsize
    pitch = item_bytes * rows * elements
    first = item_bytes * (block.rows.start * elements + block.elements.start)
    n_bytes = item_bytes * len(block.rows) * len(block.elements)
    return Stretches(
        block.array.address + pitch * block.planes.start + first, pitch, n_bytes, len(block.planes)
    )


class DeviceMemory(Memory):
    """Device memory. ``write`` and ``read`` go through ``stream`` and wait for it."""

    reachable = False

    def __init__(self, driver: Driver, stream: int, n_bytes: int) -> None:
        self.n_bytes = n_bytes
        self._driver = driver
        self._stream = stream
        self._address = driver.allocate(n_bytes) if n_bytes else 0

    def host(self, offset: int, length: int) -> memoryview:
        raise TypeError("the disk cannot write to device memory")

    def array(self, offset: int, dtype: str, shape: tuple[int, ...]) -> DeviceArray:
        return DeviceArray(self._address + offset, dtype, shape)

    def write(self, offset: int, array: NDArray[Any]) -> None:
        if array.nbytes:
            target = self._address + offset
            self._driver.copy(target, array.ctypes.data, array.nbytes, self._stream)
            self._driver.synchronize_stream(self._stream)

    def read(self, offset: int, dtype: str, shape: tuple[int, ...]) -> NDArray[Any]:
        result = np.empty(shape, dtype)
        if result.nbytes:
            source = self._address + offset
            self._driver.copy(result.ctypes.data, source, result.nbytes, self._stream)
            self._driver.synchronize_stream(self._stream)
        return result

    def close(self) -> None:
        address, self._address = self._address, 0
        if address:
            self._driver.free(address)


class PinnedMemory(Memory):
    """Anonymous memory on huge pages, page-locked: O_DIRECT writes to it, the device reads it."""

    def __init__(self, driver: Driver, n_bytes: int) -> None:
        self.n_bytes = n_bytes
        self._driver = driver
        self._buffer = Buffer(n_bytes)
        self._device_address = 0
        if n_bytes:
            try:
                self._device_address = driver.register(self._buffer.address, n_bytes)
            except BaseException:
                self._buffer.close()
                raise

    def host(self, offset: int, length: int) -> memoryview:
        return self._buffer.bytes[offset : offset + length].data

    def array(self, offset: int, dtype: str, shape: tuple[int, ...]) -> DeviceArray:
        return DeviceArray(self._device_address + offset, dtype, shape)

    def huge_page_bytes(self) -> int:
        return self._buffer.pages().huge_bytes if self._buffer.huge_pages else 0

    def close(self) -> None:
        if self._device_address:
            self._device_address = 0
            self._driver.unregister(self._buffer.address)
        self._buffer.close()


class ManagedMemory(Memory):
    """Managed memory in ``slots`` equal places, an allocation each: only a whole one can be lent.

    Where the device cannot share pages while kernels run (integrated ones before Thor), the CPU may touch
    a place only between ``lend`` and ``reclaim``.
    """

    def __init__(
        self, driver: Driver, stream: int, n_bytes: int, slots: int, attaches: bool
    ) -> None:
        self.n_bytes = n_bytes
        self._driver = driver
        self._stream = stream
        self._attaches = attaches
        self._slot_bytes = n_bytes if slots == 1 else n_bytes // slots // _PAGE_BYTES * _PAGE_BYTES
        self._slots: list[int] = []
        try:
            while self._slot_bytes and len(self._slots) < slots:
                self._slots.append(driver.allocate_managed(self._slot_bytes))
        except BaseException:
            self.close()
            raise

    def host(self, offset: int, length: int) -> memoryview:
        start = self._at(offset)
        return memoryview((ctypes.c_ubyte * length).from_address(start)).cast("B")

    def array(self, offset: int, dtype: str, shape: tuple[int, ...]) -> DeviceArray:
        return DeviceArray(self._at(offset), dtype, shape)

    def lend(self, offset: int, length: int) -> None:
        if self._attaches:
            self._driver.attach(self._slots[offset // self._slot_bytes], None)

    def reclaim(self, offset: int, length: int) -> None:
        if self._attaches:
            self._driver.attach(self._slots[offset // self._slot_bytes], self._stream)

    def close(self) -> None:
        while self._slots:
            self._driver.free(self._slots.pop())

    def _at(self, offset: int) -> int:
        slot, start = divmod(offset, self._slot_bytes)
        return self._slots[slot] + start
