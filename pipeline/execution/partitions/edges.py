"""The memory between partitions: of each edge two buffers with the values that cross."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from models.packs.records.ports import Port
from pipeline.devices.memory import HostMemory
from pipeline.execution.given import Arrays
from pipeline.planning.partitions.plan import BUFFERS
from pipeline.program.partitions import aligned
from pipeline.program.program import Program

#: The arrays of one buffer by the names of their ports.
Buffer = dict[str, NDArray[Any]]


class Edges:
    """Buffers for what each of ``parts`` makes for the next one."""

    def __init__(self, parts: Sequence[Program]) -> None:
        self._ports = [part.outputs for part in parts[:-1]]
        buffer_bytes = [sum(aligned(port.n_bytes) for port in ports) for ports in self._ports]
        self._memory = HostMemory(BUFFERS * sum(buffer_bytes))
        self._buffers: list[list[Buffer]] = []
        start = 0
        for ports, n_bytes in zip(self._ports, buffer_bytes, strict=True):
            starts = [start + number * n_bytes for number in range(BUFFERS)]
            self._buffers.append([self._laid_out(ports, each) for each in starts])
            start += BUFFERS * n_bytes

    @property
    def n_bytes(self) -> int:
        return self._memory.n_bytes

    def buffer(self, edge: int, number: int) -> Buffer:
        """Return what lies in a buffer: of one frame, from when it is written until it was read."""
        return self._buffers[edge][number]

    def write(self, edge: int, number: int, values: Arrays) -> None:
        """Copy ``values`` to a buffer."""
        for name, array in self._buffers[edge][number].items():
            np.copyto(array, values[name])

    def close(self) -> None:
        """Give the memory back; no partition runs."""
        self._buffers.clear()
        self._memory.close()

    def _laid_out(self, ports: Sequence[Port], start: int) -> Buffer:
        arrays: Buffer = {}
        for port in ports:
            arrays[port.name] = self._memory.array(start, port.dtype, port.shape)
            start += aligned(port.n_bytes)
        return arrays
