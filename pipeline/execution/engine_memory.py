"""The memory of one engine: ring, resident weights and arena, as the arrays that kernels are bound to.

Pointers stay the same from the first sweep to the last.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from models.packs.manifest import Manifest, Operand, Port
from pipeline.devices.base import Device
from pipeline.devices.cells import Cell, as_strings, takes
from pipeline.devices.memory import Memory, Use
from pipeline.execution.errors import InputError
from pipeline.execution.given import GivenRows, Tensor, Tensors
from pipeline.planning.plan import Plan
from pipeline.program.lives import taken_by_rows


class EngineMemory:
    """Holds what ``plan`` says for the model of ``manifest``, and cells for what no plan knows.

    The disk writes to ``staging`` where weights are copied before use, else to ``ring``.

    Raises:
        DeviceError: ``device`` has not that much.
    """

    def __init__(self, manifest: Manifest, plan: Plan, device: Device) -> None:
        self._plan = plan
        copies = plan.architecture.copies
        slots = plan.architecture.slots or 1
        sizes: dict[Use, int] = {
            "staging": plan.staging_bytes,
            "shared": 0 if copies else plan.ring_bytes,
            "own": (plan.ring_bytes if copies else 0) + plan.resident_bytes + plan.arena_bytes,
            "scratch": plan.scratch_bytes,
        }
        device.check(sizes)
        self._held: list[Memory] = []

        def allocate(use: Use, n_bytes: int, slots: int = 1) -> Memory:
            self._held.append(device.allocate(use, n_bytes, slots))
            return self._held[-1]

        try:
            self.staging = allocate("staging", plan.staging_bytes, slots)
            self.ring = allocate("own" if copies else "shared", plan.ring_bytes, slots)
            self.resident = allocate("own", plan.resident_bytes)
            self.arena = allocate("own", plan.arena_bytes)
            self.scratch = allocate("scratch", plan.scratch_bytes)
        except BaseException:
            self.close()
            raise
        self._cells = {
            index: Cell() for index, value in enumerate(manifest.values) if value.is_loose
        }
        self._given = {index: GivenRows() for index in taken_by_rows(manifest, plan.steps)}

    def array(self, operand: Operand) -> Any:
        """Return where an operand of known size lies, for kernels."""
        if operand.kind == "value":
            buffer, start = self.arena, self._plan.values[operand.index]
        else:
            kept = operand.index in self._plan.resident
            buffer = self.resident if kept else self.ring
            start = self._plan.spans[operand.index]
        return buffer.array(start + operand.offset, operand.dtype, operand.shape)

    def offset(self, value: int) -> int:
        """Return where a value, or a strip, lies in the arena."""
        return self._plan.values[value]

    def given(self, value: int) -> GivenRows | None:
        """Return what holds an input during a sweep whose rows are taken from the request itself."""
        return self._given.get(value)

    def place(self, operand: Operand) -> Any | Cell:
        """Return where any operand lies."""
        return self._cells[operand.index] if operand.is_loose else self.array(operand)

    def put(self, port: Port, tensor: Tensor) -> None:
        """Copy an input in; one that only regions read, by rows, is not copied.

        Raises:
            InputError: strings in it are not UTF-8.
        """
        if port.value in self._given:
            self._given[port.value].hold(tensor)
            return
        if not port.is_loose:
            self._write(port, tensor)
            return
        try:
            self._cells[port.value].array = as_strings(np.asarray(tensor))
        except UnicodeDecodeError as exc:
            raise InputError(f"input {port.name!r} has bytes that are not UTF-8: {exc}") from exc

    def _write(self, port: Port, tensor: Tensor) -> None:
        offset = self._plan.values[port.value]
        if not isinstance(tensor, np.ndarray):
            target = self.arena.array(offset, port.dtype, port.shape)
            if isinstance(target, np.ndarray):
                tensor.put(target)  # made where it is needed, rather than made and copied
                return
        self.arena.write(offset, np.ascontiguousarray(tensor))

    def view(self, port: Port) -> NDArray[Any]:
        """Return an output where it lies, read-only: gone with the next sweep, or when it is forgotten."""
        if port.is_loose:
            return self._cells[port.value].array
        return self.arena.view(self._plan.values[port.value], port.dtype, port.shape)

    def forget_inputs(self) -> None:
        """Let go of the tensors of the request."""
        for given in self._given.values():
            given.clear()

    def forget(self) -> None:
        """Let go of all that belongs to one sweep: also tensors of unknown size."""
        self.forget_inputs()
        for cell in self._cells.values():
            cell.clear()

    def n_bytes(self) -> dict[str, int]:
        """Return what was allocated, by name."""
        return {
            "staging": self.staging.n_bytes,
            "ring": self.ring.n_bytes,
            "resident": self.resident.n_bytes,
            "arena": self.arena.n_bytes,
        }

    def huge_page_bytes(self) -> int:
        """Return how much of the memory for weights lies on huge pages, once it was touched."""
        weights = (self.staging, self.ring, self.resident)
        return sum(memory.huge_page_bytes() for memory in weights)

    def close(self) -> None:
        for memory in self._held:
            memory.close()


def check_inputs(ports: tuple[Port, ...], inputs: Tensors) -> None:
    """Check that ``inputs`` are exactly what ``ports`` take; those with a default may be left out.

    Raises:
        InputError: one is unknown, missing, or of another dtype or shape.
    """
    expected = {port.name: port for port in ports}
    for name in inputs:
        if name not in expected:
            raise InputError(f"unknown input {name!r}; the model takes {', '.join(expected)}")
    for name, port in expected.items():
        if name not in inputs:
            if port.default is None:
                raise InputError(f"input {name!r} is missing")
            continue
        array = inputs[name]
        if not takes(port, array):
            raise InputError(
                f"input {name!r} is {array.dtype}{list(array.shape)}, "
                f"the model takes {port.dtype}{list(port.shape)}"
            )
