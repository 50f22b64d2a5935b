"""The steps of a sweep, bound to memory: for one lane, or each for all lanes that run."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from models.packs.records.pieces import Piece
from pipeline.devices.base import Device, DeviceError, Launch, nothing
from pipeline.devices.memory import Memory
from pipeline.devices.pack_kernels import PackKernels, PlacedPiece
from pipeline.execution.engine_memory import EngineMemory
from pipeline.execution.lane_memory import LaneMemory
from pipeline.execution.lanes import LaneRun
from pipeline.execution.phases import PhaseBinder, named
from pipeline.planning.plan import Plan
from pipeline.program.decided import takes_rows
from pipeline.program.program import Program
from pipeline.program.steps import Phase, regions_of


def bind_steps(
    program: Program,
    plan: Plan,
    device: Device,
    memory: EngineMemory,
    running: Callable[[], LaneRun],
) -> list[Launch]:
    """Return the steps of ``plan``; ``running`` tells the lanes of the sweep where there may be several.

    Lanes share sessions, which the device keeps, and have bindings of their own.

    Raises:
        DeviceError: a piece cannot be loaded.
    """
    names = _layer_names(program)
    kernels = _Kernels(device, PackKernels(program, device))
    lanes = [_Binder(program, plan, kernels, each, memory.scratch, names) for each in memory.lanes]
    bound = [lane.steps() for lane in lanes]
    if len(bound) == 1:
        return bound[0]
    return [
        nothing if nothing in launches else _for_all(launches, running)
        for launches in zip(*bound, strict=True)
    ]


def _for_all(launches: Sequence[Launch], running: Callable[[], LaneRun]) -> Launch:
    return lambda: running().step(launches)


class _Kernels(NamedTuple):
    """What runs resident pieces, and what runs all others."""

    device: Device
    of_program: PackKernels


class _Binder:
    """Binds steps to the memory of one lane."""

    def __init__(
        self,
        program: Program,
        plan: Plan,
        kernels: _Kernels,
        memory: LaneMemory,
        scratch: Memory,
        names: Mapping[tuple[int, int], str],
    ) -> None:
        self._program = program
        self._plan = plan
        self._kernels = kernels
        self._memory = memory
        self._scratch = scratch
        self._names = names

    def steps(self) -> list[Launch]:
        phases = {
            region: PhaseBinder(
                region,
                self._memory,
                self._kernels.of_program,
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
        """Return one launch for the steps of ``run``: nobody looks until the last one has ended."""
        steps = self._plan.steps[run.start : run.stop]
        pieces = [step for step in steps if isinstance(step, Piece)]
        name = f"{self._name(pieces[0])} to {self._name(pieces[-1])}"
        with _naming(name):
            launch = self._kernels.of_program.run(list(map(self._placed, pieces)), self._scratch)
        return named(launch, name)

    def _placed(self, piece: Piece) -> PlacedPiece:
        return PlacedPiece(
            piece,
            [self._input(piece, number) for number in range(len(piece.inputs))],
            [self._memory.array(operand) for operand in piece.outputs],
        )

    def _input(self, piece: Piece, number: int) -> Any:
        """Return where an input lies, or what holds it during a sweep."""
        operand = piece.inputs[number]
        given = self._memory.given(operand.index) if not number and takes_rows(piece) else None
        return self._memory.array(operand) if given is None else given

    def _piece(self, piece: Piece) -> Launch:
        name = self._name(piece)
        with _naming(name):
            return named(self._resident(piece) if piece.resident else self._alone(piece), name)

    def _resident(self, piece: Piece) -> Launch:
        kernel = self._kernels.device.load(self._program.pack.graphs[piece.graph])
        return kernel.attach(
            [self._memory.place(operand) for operand in piece.inputs],
            [self._memory.place(operand) for operand in piece.outputs],
        )

    def _alone(self, piece: Piece) -> Launch:
        return self._kernels.of_program.piece(self._placed(piece), self._scratch)

    def _name(self, piece: Piece) -> str:
        return self._names.get(_made(piece), "a piece")


def _layer_names(program: Program) -> dict[tuple[int, int], str]:
    """Return, for what each piece makes, the first layer in it: what users know it by."""
    names: dict[tuple[int, int], str] = {}
    for layer in program.layers:
        for piece in program.pieces[layer.first_piece : layer.end_piece]:
            names.setdefault(_made(piece), f"layer {layer.name!r} ({layer.operator})")
    return names


def _made(piece: Piece) -> tuple[int, int]:
    """Return what tells pieces apart whatever their size: where their output begins."""
    first = piece.outputs[0]
    return first.index, first.offset


@contextmanager
def _naming(name: str) -> Iterator[None]:
    """Have errors say where they are: pieces themselves have no names."""
    try:
        yield
    except DeviceError as exc:
        raise type(exc)(f"{name}: {exc}") from exc
