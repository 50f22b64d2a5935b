"""The steps of a sweep, bound to memory: for one lane, or each for all lanes that run."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np

from models.packs.records.pieces import Layer, Operand
from models.packs.records.row_parts import RowValue
from pipeline.devices.base import Block, Device, DeviceError, KernelError, Launch, nothing
from pipeline.devices.device_memory import Memory
from pipeline.devices.pack_kernels import KernelCall, PackKernels, PutRows
from pipeline.execution.engine_memory import EngineMemory
from pipeline.execution.lane import LaneMemory, LaneRun
from pipeline.planning.plan import Plan
from pipeline.program.kernels import CopyKernel, FillKernel, OrtGraph
from pipeline.program.program import MadeAt, PreparedPiece, Program, made_at
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
from pipeline.program.steps import Phase, RegionSteps, regions_of

# Phases of regions, bound to memory: each a list of kernels and copies of rows.
#
# A kernel of a few rows takes microseconds: what surrounds it counts. So all is bound when a model is
# loaded, what phases have in common once, and a phase is a loop over what to call.

_DTYPE = np.dtype(np.float32)
_COPY = CopyKernel(((0, 0),))


class _PhaseBinder:
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
            launch = self._kernels.run(list(map(self._kernel, actions)))
            name = self._name_of(actions[0])
            self._bound[actions] = launch if name is None else _named(launch, name)
        return self._bound[actions]

    def _kernel(self, action: Action) -> KernelCall:
        """Return what does ``action``, and where."""
        match action:
            case AreaCopy(source, target):
                return KernelCall(_COPY, [self._source(source)], [self._rows(target)])
            case Fill(target, lowest):
                number = float(np.finfo(_DTYPE).min) if lowest else 0.0
                return KernelCall(FillKernel(number), [], [self._rows(target)])
            case GraphCall(number, areas, output):
                weights = self._program.row_operators[number].weights
                inputs = [*map(self._strip, areas), *map(self._memory.array, weights)]
                kernel = self._program.row_kernels[number]
                return KernelCall(kernel, inputs, [self._strip(output)])
            case Compute(graph=graph, inputs=inputs, output=output):
                read = list(map(self._placed, inputs))
                return KernelCall(OrtGraph(graph, resident=False), read, [self._placed(output)])
            case WeightGather(source, (first, end), target):
                planes, _, elements = map(range, source.shape)
                gathered = Block(self._memory.array(source), planes, range(first, end), elements)
                there = Block(self._placed(target), *map(range, target.shape))
                return KernelCall(_COPY, [gathered], [there])

    def _name_of(self, action: Action) -> str | None:
        """Return what errors call the launch of ``action``; copies fail with no more than the device."""
        match action:
            case GraphCall(number):
                return self._name(self._program.row_operators[number].first_piece)
            case Compute():
                pieces = self._region.plan.region.pieces
                ends = f"{self._name(pieces[0])} to {self._name(pieces[-1])}"
                return f"{ends}, in groups of channels"
            case AreaCopy() | Fill() | WeightGather():
                return None

    def _placed(self, place: Floats | Operand) -> Any:
        """Return what kernels of a bottleneck are bound to."""
        if not isinstance(place, Floats):
            return self._memory.array(place)
        start = place.offset + self._beginning(place.strip, place.row_value)
        return self._memory.arena.array(start, _DTYPE.name, place.shape)

    def _source(self, area: Area) -> Block | PutRows:
        """Return the rows of ``area``, or what puts them where they stay with the request."""
        given = None if area.strip is not None else self._memory.given(self._value(area).value)
        if given is None:
            return self._rows(area)
        return partial(given.put_rows, first_plane=area.first_plane, first_row=area.first_row)

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


def _named(launch: Launch, name: str) -> Launch:
    """Return ``launch`` with errors that say where."""

    def run() -> None:
        try:
            launch()
        except KernelError as exc:
            raise type(exc)(f"{name}: {exc}") from exc

    return run


# All steps of a sweep.


def bind_steps(
    program: Program,
    plan: Plan,
    device: Device,
    memory: EngineMemory,
    running: Callable[[], LaneRun],
) -> list[Launch]:
    """Return the steps of ``plan``; ``running`` returns the lanes of the sweep where there may be several.

    Lanes share sessions, which the device keeps, and have bindings of their own.

    Raises:
        DeviceError: a piece cannot be loaded.
    """
    layers = program.layers_by_place()
    kernels = PackKernels(program, device)
    lanes = [_Binder(program, plan, kernels, each, memory.scratch, layers) for each in memory.lanes]
    bound = [lane.steps() for lane in lanes]
    if len(bound) == 1:
        return bound[0]
    return [
        nothing if nothing in launches else _for_all(launches, running)
        for launches in zip(*bound, strict=True)
    ]


def _for_all(launches: Sequence[Launch], running: Callable[[], LaneRun]) -> Launch:
    return lambda: running().step(launches)


class _Binder:
    """Binds steps to the memory of one lane."""

    def __init__(
        self,
        program: Program,
        plan: Plan,
        kernels: PackKernels,
        memory: LaneMemory,
        scratch: Memory,
        layers: Mapping[MadeAt, Layer],
    ) -> None:
        self._program = program
        self._plan = plan
        self._kernels = kernels
        self._memory = memory
        self._scratch = scratch
        self._layers = layers

    def steps(self) -> list[Launch]:
        phases = {
            region: _PhaseBinder(
                region,
                self._memory,
                self._kernels,
                lambda piece: self._name(self._program.pieces[piece]),
            )
            for region in regions_of(self._plan.steps)
        }
        runs = {run.start: run for run in self._plan.runs}
        launches: list[Launch] = []
        while len(launches) < len(self._plan.steps):
            step = self._plan.steps[len(launches)]
            run = runs.get(len(launches))
            if run is not None:
                launches += [self._run(run), *[nothing] * (len(run) - 1)]
            elif isinstance(step, Phase):
                launches.append(phases[step.region].bind(step.number))
            else:
                launches.append(self._piece(step))
        return launches

    def _run(self, run: range) -> Launch:
        """Return one launch for the steps of ``run``: between them no deadline is looked at."""
        steps = self._plan.steps[run.start : run.stop]
        pieces = [step for step in steps if isinstance(step, PreparedPiece)]
        name = f"{self._name(pieces[0])} to {self._name(pieces[-1])}"
        with _naming(name):
            launch = self._kernels.run(list(map(self._placed, pieces)), self._scratch)
        return _named(launch, name)

    def _placed(self, piece: PreparedPiece) -> KernelCall:
        inputs = [
            self._input(operand, piece.reads_rows and not number)
            for number, operand in enumerate(piece.inputs)
        ]
        return KernelCall(piece.kernel, inputs, list(map(self._memory.place, piece.outputs)))

    def _input(self, operand: Operand, by_rows: bool) -> Any:
        """Return where an input lies, or what holds it during a sweep."""
        given = self._memory.given(operand.index) if by_rows else None
        return self._memory.place(operand) if given is None else given

    def _piece(self, piece: PreparedPiece) -> Launch:
        name = self._name(piece)
        with _naming(name):
            return _named(self._kernels.bind(self._placed(piece), self._scratch), name)

    def _name(self, piece: PreparedPiece) -> str:
        layer = self._layers.get(made_at(piece))
        return "a piece" if layer is None else f"layer {layer.name!r} ({layer.operator})"


@contextmanager
def _naming(name: str) -> Iterator[None]:
    """Have errors say where they are: pieces themselves have no names."""
    try:
        yield
    except DeviceError as exc:
        raise type(exc)(f"{name}: {exc}") from exc
