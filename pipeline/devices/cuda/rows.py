"""Rows on a GPU: graphs for any number of them, and where rows of several planes lie."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from pipeline.devices.base import Block, DeviceError, Kernel, Launch
from pipeline.devices.cuda.driver import Stretches
from pipeline.devices.cuda.kernel import CudaKernel
from pipeline.devices.cuda.lowering import Shapes
from pipeline.devices.memory import Memory


class CudaRows(Kernel):
    """A graph on any number of rows: for each number ``make`` makes a program, which takes no scratch."""

    def __init__(self, make: Callable[[Shapes], CudaKernel]) -> None:
        self._make = make
        self._made: dict[Shapes, CudaKernel] = {}

    def bind(
        self, inputs: Sequence[Any], outputs: Sequence[Any], scratch: Memory | None = None
    ) -> Launch:
        shapes = tuple(array.shape for array in inputs)
        if shapes not in self._made:
            self._made[shapes] = self._make(shapes)
        return self._made[shapes].bind(inputs, outputs, scratch)


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


def bits_of(number: float) -> int:
    """Return the 32 bits of a float."""
    return int(np.float32(number).view(np.uint32))
