"""The memory of one lane: its part of the arena, and cells for what no plan knows."""

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from models.packs.records.pieces import Operand
from models.packs.records.ports import Port
from pipeline.devices.cells import Cell, as_strings
from pipeline.devices.memory import Memory
from pipeline.execution.errors import InputError
from pipeline.execution.given import Arrays, GivenRows, Tensor, Tensors
from pipeline.planning.plan import Plan
from pipeline.program.lives import taken_by_rows
from pipeline.program.program import Program


class LaneMemory:
    """Where values and strips of lane ``number`` lie in ``arena``; ``weights`` says where weights do."""

    def __init__(
        self,
        program: Program,
        plan: Plan,
        arena: Memory,
        weights: Callable[[Operand], Any],
        number: int,
    ) -> None:
        self._plan = plan
        self._program = program
        self._weights = weights
        self._start = number * plan.lane_bytes
        self.arena = arena
        self._cells = {
            index: Cell() for index, value in enumerate(program.values) if value.is_loose
        }
        self._given = {index: GivenRows() for index in taken_by_rows(program, plan.steps)}
        # Looked up once: to make an array of an address takes as long as a small kernel.
        copied = [port for port in program.inputs if port.value not in self._given]
        self._targets = self._in_place(copied)
        self._views = self._in_place(program.outputs)
        for view in self._views.values():
            view.flags.writeable = False

    def array(self, operand: Operand) -> Any:
        """Return where an operand of known size lies, for kernels."""
        if operand.kind != "value":
            return self._weights(operand)
        start = self.offset(operand.index) + operand.offset
        return self.arena.array(start, operand.dtype, operand.shape)

    def offset(self, value: int) -> int:
        """Return where a value, or a strip, lies in the arena."""
        return self._start + self._plan.values[value]

    def given(self, value: int) -> GivenRows | None:
        """Return what holds an input during a sweep whose rows are taken from the request itself."""
        return self._given.get(value)

    def place(self, operand: Operand) -> Any | Cell:
        """Return where any operand lies."""
        return self._cells[operand.index] if operand.is_loose else self.array(operand)

    def put(self, inputs: Tensors) -> None:
        """Copy all inputs in; those that only regions read, by rows, are not copied.

        Raises:
            InputError: strings in one are not UTF-8.
        """
        for port in self._program.inputs:
            tensor, target = inputs[port.name], self._targets.get(port.name)
            if target is not None and isinstance(tensor, np.ndarray):
                target[...] = tensor
            else:
                self._put(port, tensor)

    def views(self) -> Arrays:
        """Return the outputs where they lie, read-only: gone with the next sweep, or when forgotten."""
        if len(self._views) == len(self._program.outputs):
            return self._views
        return {port.name: self._view(port) for port in self._program.outputs}

    def forget_inputs(self) -> None:
        """Let go of the tensors of the request."""
        for given in self._given.values():
            given.clear()

    def forget(self) -> None:
        """Let go of all that belongs to one sweep: also tensors of unknown size."""
        self.forget_inputs()
        for cell in self._cells.values():
            cell.clear()

    def close(self) -> None:
        """Let go of the arena: views would keep its memory."""
        self._targets.clear()
        self._views.clear()

    def _put(self, port: Port, tensor: Tensor) -> None:
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
        target = self._targets.get(port.name)
        if target is None or isinstance(tensor, np.ndarray):
            self.arena.write(self.offset(port.value), np.ascontiguousarray(tensor))
        else:
            tensor.put(target)  # made where it is needed, rather than made and copied

    def _view(self, port: Port) -> NDArray[Any]:
        if port.is_loose:
            return self._cells[port.value].array
        view = self._views.get(port.name)
        if view is None:
            view = self.arena.read(self.offset(port.value), port.dtype, port.shape)
            view.flags.writeable = False
        return view

    def _in_place(self, ports: Iterable[Port]) -> dict[str, NDArray[Any]]:
        """Return where those of ``ports`` lie that the host may touch, by name."""
        known = [port for port in ports if not port.is_loose]
        found = {
            port.name: self.arena.in_place(self.offset(port.value), port.dtype, port.shape)
            for port in known
        }
        return {name: array for name, array in found.items() if array is not None}
