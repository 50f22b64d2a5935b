"""Phases of regions, bound to memory: each a list of kernels and copies of rows.

A kernel of a few rows takes microseconds: what surrounds it counts. So all is bound when a model is loaded,
what phases have in common once, and a phase is a loop over what to call.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from models.packs.records.pieces import Operand
from models.packs.records.row_parts import RowValue
from pipeline.devices.base import Block, KernelError, Launch
from pipeline.devices.pack_kernels import GraphPart, PackKernels
from pipeline.execution.lane_memory import LaneMemory
from pipeline.program.program import Program
from pipeline.program.region_plan import (
    Action,
    Area,
    AreaCopy,
    Compute,
    Fill,
    Floats,
    GraphCall,
    WeightGather,
    launches,
)
from pipeline.program.sessions import strip_shape
from pipeline.program.steps import RegionSteps

_DTYPE = np.dtype(np.float32)


class PhaseBinder:
    """Binds the phases of ``region`` to ``memory``; ``name`` says what to call a piece in errors."""

    def __init__(
        self,
        region: RegionSteps,
        memory: LaneMemory,
        kernels: PackKernels,
        name: Callable[[int], str],
    ) -> None:
        self._program: Program = region.program  # as it was planned
        self._region = region
        self._memory = memory
        self._kernels = kernels
        self._name = name
        self._bound: dict[tuple[Action, ...], Launch] = {}

    def bind(self, number: int) -> Launch:
        """Return what runs phase ``number``.

        Raises:
            DeviceError: a kernel cannot be loaded.
        """
        bound = tuple(map(self._launch, launches(self._region.plan.phases[number])))

        def phase() -> None:
            for launch in bound:
                launch()

        return phase

    def _launch(self, actions: tuple[Action, ...]) -> Launch:
        if actions not in self._bound:
            computed = [action for action in actions if isinstance(action, Compute)]
            self._bound[actions] = self._compute(computed) if computed else self._made(actions[0])
        return self._bound[actions]

    def _made(self, action: Action) -> Launch:
        match action:
            case AreaCopy(source, target):
                return self._move(source, target)
            case Fill(target, lowest):
                number = float(np.finfo(_DTYPE).min) if lowest else 0.0
                return self._kernels.device.filler(self._rows(target), number)
            case GraphCall():
                return self._call(action)
            case WeightGather():
                return self._gather(action)
            case Compute():
                return self._compute([action])

    def _call(self, call: GraphCall) -> Launch:
        operator = self._program.row_operators[call.operator]
        inputs = [self._strip(area) for area in call.inputs]
        inputs += [self._memory.array(operand) for operand in operator.weights]
        output = self._strip(call.output)
        launch = self._kernels.row_operator(call.operator, call.graph, inputs, output)
        return named(launch, self._name(operator.first_piece))

    def _compute(self, actions: Sequence[Compute]) -> Launch:
        parts = [
            GraphPart(
                action.graph, list(map(self._placed, action.inputs)), self._placed(action.output)
            )
            for action in actions
        ]
        pieces = self._region.plan.region.pieces
        return named(
            self._kernels.graphs(parts),
            f"{self._name(pieces[0])} to {self._name(pieces[-1])}, in groups of channels",
        )

    def _gather(self, action: WeightGather) -> Launch:
        first, end = action.blocks
        weights = self._memory.array(action.source)[:, first:end]
        return partial(np.copyto, self._placed(action.target), weights)

    def _placed(self, place: Floats | Operand) -> Any:
        """Return what kernels of a bottleneck are bound to."""
        if not isinstance(place, Floats):
            return self._memory.array(place)
        start = place.offset + self._beginning(place.strip, place.row_value)
        return self._memory.arena.array(start, _DTYPE.name, place.shape)

    def _move(self, source: Area, target: Area) -> Launch:
        rows = self._rows(target)
        given = None if source.strip is not None else self._memory.given(self._value(source).value)
        if given is None:
            return self._kernels.device.copier(self._rows(source), rows)
        return self._kernels.device.putter(
            rows,
            partial(given.put_rows, first_plane=source.first_plane, first_row=source.first_row),
        )

    def _value(self, area: Area) -> RowValue:
        return self._program.row_values[area.row_value]

    def _rows(self, area: Area) -> Block:
        """Return where ``area`` lies."""
        value = self._value(area)
        column = value.row_bytes // value.shape[3] // _DTYPE.itemsize
        shape = (area.first_plane + area.planes, area.held_rows, area.held_columns * column)
        return Block(
            self._memory.arena.array(self._start(area), _DTYPE.name, shape),
            range(area.first_plane, shape[0]),
            range(area.first_row, area.first_row + area.rows),
            range(area.first_column * column, (area.first_column + area.columns) * column),
        )

    def _strip(self, area: Area) -> Any:
        """Return a whole strip as kernels have it: [1, channels, rows, width]."""
        shape = strip_shape(self._program, area)
        return self._memory.arena.array(self._start(area), _DTYPE.name, shape)

    def _start(self, area: Area) -> int:
        """Return where in the arena what ``area`` is a part of begins."""
        return area.offset + self._beginning(area.strip, area.row_value)

    def _beginning(self, strip: int | None, row_value: int | None) -> int:
        """Return where in the arena a strip begins, or a value that is whole."""
        if strip is not None:
            return self._memory.offset(len(self._program.values) + self._region.first_strip + strip)
        assert row_value is not None
        return self._memory.offset(self._program.row_values[row_value].value)


def named(launch: Launch, name: str) -> Launch:
    """Return ``launch`` with errors that say where."""

    def run() -> None:
        try:
            launch()
        except KernelError as exc:
            raise type(exc)(f"{name}: {exc}") from exc

    return run
