"""The memory of one lane: its part of the arena, and cells for what no plan knows."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from models.packs.manifest import Manifest, Operand, Port
from pipeline.devices.cells import Cell, as_strings
from pipeline.devices.memory import Memory
from pipeline.execution.errors import InputError
from pipeline.planning.plan import Plan
from pipeline.program.lives import taken_by_rows


class LaneMemory:
    """Where values and strips of lane ``number`` lie in ``arena``; ``weights`` says where weights do."""

    def __init__(
        self,
        manifest: Manifest,
        plan: Plan,
        arena: Memory,
        weights: Callable[[Operand], Any],
        number: int,
    ) -> None:
        self._plan = plan
        self._manifest = manifest
        self._weights = weights
        self._start = number * plan.lane_bytes
        self.arena = arena
        self._cells = {
            index: Cell() for index, value in enumerate(manifest.values) if value.is_loose
        }
        self._given = {index: Cell() for index in taken_by_rows(manifest, plan.steps)}

    def array(self, operand: Operand) -> Any:
        """Return where an operand of known size lies, for kernels."""
        if operand.kind != "value":
            return self._weights(operand)
        start = self.offset(operand.index) + operand.offset
        return self.arena.array(start, operand.dtype, operand.shape)

    def offset(self, value: int) -> int:
        """Return where a value, or a strip, lies in the arena."""
        return self._start + self._plan.values[value]

    def given(self, value: int) -> Cell | None:
        """Return what holds an input during a sweep whose rows are taken from the request's own array."""
        return self._given.get(value)

    def place(self, operand: Operand) -> Any | Cell:
        """Return where any operand lies."""
        return self._cells[operand.index] if operand.is_loose else self.array(operand)

    def put(self, inputs: Mapping[str, NDArray[Any]]) -> None:
        """Copy all inputs in; those that only regions read, by rows, are not copied.

        Raises:
            InputError: strings in one are not UTF-8.
        """
        for port in self._manifest.inputs:
            self._put(port, inputs[port.name])

    def take(self) -> dict[str, NDArray[Any]]:
        """Return copies of the outputs by name."""
        return {port.name: self._taken(port) for port in self._manifest.outputs}

    def forget(self) -> None:
        """Let go of tensors that belong to one sweep: of unknown size, and of the request."""
        for cell in (*self._cells.values(), *self._given.values()):
            cell.clear()

    def _put(self, port: Port, array: NDArray[Any]) -> None:
        if port.value in self._given:
            self._given[port.value].array = np.ascontiguousarray(array)
            return
        if not port.is_loose:
            self.arena.write(self.offset(port.value), np.ascontiguousarray(array))
            return
        try:
            self._cells[port.value].array = as_strings(array)
        except UnicodeDecodeError as exc:
            raise InputError(f"input {port.name!r} has bytes that are not UTF-8: {exc}") from exc

    def _taken(self, port: Port) -> NDArray[Any]:
        if port.is_loose:
            return self._cells[port.value].array.copy()
        return self.arena.read(self.offset(port.value), port.dtype, port.shape)
