"""What a plan calls: kernels, and the bytes of buffers that each reads and writes.

All that happens in memory during one inference is here, in order: engines bind it
(pipeline/execution/binding.py), validate.py judges it, pictures and tables show it. It follows from a plan
alone and is listed when it is needed, launch by launch: kept, it would be a large part of a small budget.
Equal calls of a region, as most are in many of its phases, are one.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import count
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from models.packs.records.pieces import Layer, Operand
from pipeline.planning.plan import InvalidPlanError, Location, Plan
from pipeline.program.kernels import CopyKernel, FillKernel, Kernel, OrtGraph
from pipeline.program.program import MadeAt, PreparedPiece, made_at
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
from pipeline.program.steps import Phase, RegionSteps

Shape = tuple[int, ...]


class BufferView(NamedTuple):
    """An array in buffer ``buffer`` of the plan, by its index, ``offset`` bytes behind where that begins.

    ``box``: of an array [planes, rows, elements], what is meant of it; None: all.
    """

    buffer: int
    offset: int
    dtype: str
    shape: Shape
    box: tuple[range, range, range] | None = None


class UnsizedValue(NamedTuple):
    """A value, by its index, whose size only a run gives: it has no buffer."""

    value: int


Argument = BufferView | UnsizedValue


class PlanCall(NamedTuple):
    """One kernel, and what it reads and writes in the order of its ports."""

    kernel: Kernel
    reads: tuple[Argument, ...]
    writes: tuple[Argument, ...]


class KernelGroup(NamedTuple):
    """``calls`` that run as one kernel where the device can. ``name``: what errors call it, if anything.

    ``id``: of the groups of a plan; phases of a region have some in common.
    """

    id: int
    calls: tuple[PlanCall, ...]
    name: str | None


class PlanLaunch(NamedTuple):
    """What runs ``steps``, one of them or a run of several: ``groups``, one after the other."""

    steps: range
    groups: tuple[KernelGroup, ...]


Layers = Mapping[MadeAt, Layer]


def launches_of(plan: Plan, layers: Layers = MappingProxyType({})) -> Iterator[PlanLaunch]:
    """Yield the launches of ``plan`` in order; ``layers``: of its program, for names.

    Raises:
        InvalidPlanError: the plan has no buffer for something that a step uses.
    """
    lowering = _Lowering(plan, layers)
    runs = {run.start: run for run in plan.runs}
    position = 0
    while position < len(plan.steps):
        steps = runs.get(position, range(position, position + 1))
        yield PlanLaunch(steps, lowering.groups(plan.steps[position : steps.stop]))
        position = steps.stop


_DTYPE = np.dtype(np.float32)
_COPY = CopyKernel(((0, 0),))
_FLOATS = _DTYPE.name
_LOWEST = float(np.finfo(_DTYPE).min)


class _Lowering:
    """Finds the buffers of what steps read and write."""

    def __init__(self, plan: Plan, layers: Layers) -> None:
        self._plan = plan
        self._layers = layers
        self._region: RegionSteps | None = None
        #: Of the region of the last phase, by the identity of its actions: equal ones are one object there.
        self._groups: dict[tuple[int, ...], KernelGroup] = {}
        self._ids = count()

    def groups(self, steps: Sequence[PreparedPiece | Phase]) -> tuple[KernelGroup, ...]:
        """Return what one launch of ``steps`` calls."""
        first, last = steps[0], steps[-1]
        if isinstance(first, Phase):
            return self._phase(first)
        pieces = [step for step in steps if isinstance(step, PreparedPiece)]
        name = self._name(first)
        if first is not last and isinstance(last, PreparedPiece):
            name = f"{name} to {self._name(last)}"
        return (KernelGroup(next(self._ids), tuple(map(self._piece, pieces)), name),)

    def _piece(self, piece: PreparedPiece) -> PlanCall:
        reads, writes = map(self._operand, piece.inputs), map(self._operand, piece.outputs)
        return PlanCall(piece.kernel, tuple(reads), tuple(writes))

    def _name(self, piece: PreparedPiece) -> str:
        layer = self._layers.get(made_at(piece))
        return "a piece" if layer is None else f"layer {layer.name!r} ({layer.operator})"

    def _operand(self, operand: Operand) -> Argument:
        if operand.is_loose:
            return UnsizedValue(operand.index)
        locations = self._plan.values if operand.kind == "value" else self._plan.spans
        location = _require(locations[operand.index], operand)
        return BufferView(
            location.buffer, location.offset + operand.offset, operand.dtype, operand.shape
        )

    # Phases of regions.

    def _phase(self, phase: Phase) -> tuple[KernelGroup, ...]:
        if phase.region is not self._region:
            self._region, self._groups = phase.region, {}
        groups = []
        for actions in launches(phase.region.plan.phases[phase.number]):
            key = tuple(map(id, actions))
            if key not in self._groups:
                calls = tuple(self._action(phase.region, action) for action in actions)
                name = self._name_of(phase.region, actions[0])
                self._groups[key] = KernelGroup(next(self._ids), calls, name)
            groups.append(self._groups[key])
        return tuple(groups)

    def _name_of(self, region: RegionSteps, action: Action) -> str | None:
        """Return what errors call the launch of ``action``; copies fail with no more than the device."""
        pieces = region.program.pieces
        match action:
            case GraphCall(operator):
                return self._name(pieces[region.program.row_operators[operator].first_piece])
            case Compute():
                region_pieces = region.plan.region.pieces
                names = [self._name(pieces[i]) for i in (region_pieces[0], region_pieces[-1])]
                ends = " to ".join(names)
                return f"{ends}, in groups of channels"
            case AreaCopy() | Fill() | WeightGather():
                return None

    def _action(self, region: RegionSteps, action: Action) -> PlanCall:
        program = region.program  # as it was planned
        match action:
            case AreaCopy(source, target):
                return PlanCall(_COPY, (self._rows(region, source),), (self._rows(region, target),))
            case Fill(target, lowest):
                kernel = FillKernel(_LOWEST if lowest else 0.0)
                return PlanCall(kernel, (), (self._rows(region, target),))
            case GraphCall(operator, areas, output):
                read = [self._line_buffer(region, area) for area in areas]
                weights = map(self._operand, program.row_operators[operator].weights)
                written = self._line_buffer(region, output)
                return PlanCall(program.row_kernels[operator], (*read, *weights), (written,))
            case Compute(graph=graph, inputs=inputs, output=output):
                reads = [
                    self._floats(region, item) if isinstance(item, Floats) else self._operand(item)
                    for item in inputs
                ]
                written = self._floats(region, output)
                return PlanCall(OrtGraph(graph, resident=False), tuple(reads), (written,))
            case WeightGather(source, (first, end), target):
                planes, _, elements = map(range, source.shape)
                gathered = self._operand(source)
                assert isinstance(gathered, BufferView)
                box = planes, range(first, end), elements
                there = self._floats(region, target)
                a, b, c = map(range, target.shape)
                return PlanCall(
                    _COPY, (gathered._replace(box=box),), (there._replace(box=(a, b, c)),)
                )

    def _floats(self, region: RegionSteps, floats: Floats) -> BufferView:
        location = self._beginning(region, floats.strip, floats.row_value)
        return BufferView(location.buffer, location.offset + floats.offset, _FLOATS, floats.shape)

    def _rows(self, region: RegionSteps, area: Area) -> BufferView:
        """Return the rows of ``area``."""
        value = region.program.row_values[area.row_value]
        column = value.row_bytes // value.shape[3] // _DTYPE.itemsize
        shape = (area.first_plane + area.planes, area.held_rows, area.held_columns * column)
        location = self._beginning(region, area.strip, area.row_value)
        box = (
            range(area.first_plane, shape[0]),
            range(area.first_row, area.first_row + area.rows),
            range(area.first_column * column, (area.first_column + area.columns) * column),
        )
        return BufferView(location.buffer, location.offset + area.offset, _FLOATS, shape, box)

    def _line_buffer(self, region: RegionSteps, area: Area) -> BufferView:
        """Return a complete line buffer as kernels have it: [1, channels, rows, width]."""
        location = self._beginning(region, area.strip, area.row_value)
        shape = strip_shape(region.program, area)
        return BufferView(location.buffer, location.offset + area.offset, _FLOATS, shape)

    def _beginning(self, region: RegionSteps, strip: int | None, row_value: int | None) -> Location:
        """Return where a line buffer begins, or a value that is complete."""
        if strip is not None:
            return Location(self._plan.line_buffers[region.first_strip + strip], 0)
        assert row_value is not None
        value = region.program.row_values[row_value].value
        return _require(self._plan.values[value], f"value {value}")


def _require(location: Location | None, what: object) -> Location:
    if location is None:
        raise InvalidPlanError(f"the plan has no buffer for {what}, which a step uses")
    return location
