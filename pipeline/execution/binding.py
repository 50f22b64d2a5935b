"""The launches of a plan, bound to memory: for one lane, or each for all lanes that run.

Nothing is decided here: calls.py says what runs where.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial

from pipeline.devices.base import (
    Device,
    DeviceError,
    KernelError,
    KernelValueError,
    Launch,
    StoppableLaunch,
    nothing,
)
from pipeline.devices.device_memory import Memory
from pipeline.devices.pack_kernels import KernelCall, PackKernels
from pipeline.execution.engine_memory import EngineMemory
from pipeline.execution.errors import InputError
from pipeline.execution.lane import LaneMemory, LaneRun
from pipeline.execution.table_reads import TableReads, source_inputs
from pipeline.planning.calls import KernelGroup, Layers, PlanCall, launches_of
from pipeline.planning.plan import Plan
from pipeline.program.program import PreparedPiece, Program
from pipeline.program.steps import Phase


def bind_steps(
    program: Program,
    plan: Plan,
    device: Device,
    memory: EngineMemory,
    running: Callable[[], LaneRun],
    tables: TableReads,
) -> list[Launch]:
    """Return the steps of ``plan``; ``running`` returns the lanes of the sweep where there may be several.

    ``tables``: reads rows of them.

    Lanes share sessions, which the device keeps, and have bindings of their own.

    Raises:
        DeviceError: a piece cannot be loaded.
    """
    kernels, layers = PackKernels(program, device, tables.bind), program.layers_by_place()
    bound = [
        _Binder(program, kernels, each, memory.scratch).steps(plan, layers) for each in memory.lanes
    ]
    if len(bound) == 1:
        return bound[0]
    return [
        nothing if nothing in launches else _for_all(launches, running)
        for launches in zip(*bound, strict=True)
    ]


def _for_all(launches: Sequence[Launch], running: Callable[[], LaneRun]) -> Launch:
    return lambda: running().step(launches)


class _Binder:
    """Binds launches to the memory of one lane.

    A kernel of a few rows takes microseconds: what surrounds it counts. So all is bound when a model is
    loaded, what phases of a region have in common once, and a phase is a loop over what to call.
    """

    def __init__(
        self, program: Program, kernels: PackKernels, memory: LaneMemory, scratch: Memory
    ) -> None:
        self._program = program
        self._kernels = kernels
        self._memory = memory
        self._scratch = scratch
        #: By the ids of their groups.
        self._bound: dict[int, Launch] = {}

    def steps(self, plan: Plan, layers: Layers) -> list[Launch]:
        """Return what runs each step of ``plan``: the first of several in one launch runs them all."""
        steps: list[Launch] = []
        for launch in launches_of(plan, layers):
            pieces = plan.steps[launch.steps.start : launch.steps.stop]
            integers = partial(_integers_of, self._program, pieces)
            bound = [self._group(group, integers) for group in launch.groups]
            steps.append(bound[0] if len(bound) == 1 else _one_by_one(bound))
            steps += [nothing] * (len(launch.steps) - 1)
        self._bound.clear()
        return steps

    def _group(self, group: KernelGroup, integers: Callable[[], str]) -> Launch:
        cached = self._bound.get(group.id)
        if cached is None:
            with _naming(group.name):
                launch = self._kernels.run(list(map(self._call, group.calls)), self._scratch)
            if isinstance(launch, StoppableLaunch):
                self._memory.stoppable.append(launch)
            cached = self._bound[group.id] = _named(launch, group.name, integers)
        return cached

    def _call(self, call: PlanCall) -> KernelCall:
        bound = self._memory.bound
        return KernelCall(call.kernel, list(map(bound, call.reads)), list(map(bound, call.writes)))


def _one_by_one(launches: Sequence[Launch]) -> Launch:
    bound = tuple(launches)

    def phase() -> None:
        for launch in bound:
            launch()

    return phase


# Of indices, lengths and counts. Bytes are quantised numbers: a kernel cannot compute some of them.
_INDICES = ("int32", "int64")


def _integers_of(program: Program, steps: Sequence[PreparedPiece | Phase]) -> str:
    """Return the inputs of which indices are computed that ``steps`` read; empty: there are none."""
    values = {
        operand.index
        for piece in steps
        if isinstance(piece, PreparedPiece)
        for operand in piece.inputs
        if operand.kind == "value" and operand.dtype in _INDICES
    }
    names = {name: None for value in sorted(values) for name in source_inputs(program, value)}
    return f"input{'s' * (len(names) > 1)} {', '.join(map(repr, names))}" if names else ""


def _named(launch: Launch, name: str | None, integers: Callable[[], str]) -> Launch:
    """Return ``launch`` with errors that say where; of values that come from ``integers`` as InputError."""
    if name is None:
        return launch

    def run() -> None:
        try:
            launch()
        except KernelError as exc:
            if isinstance(exc, KernelValueError) and (inputs := integers()):
                raise InputError(f"{inputs}: {name}: {exc}") from exc
            raise type(exc)(f"{name}: {exc}") from exc

    return run


@contextmanager
def _naming(name: str | None) -> Iterator[None]:
    """Have errors say where they are: pieces themselves have no names."""
    try:
        yield
    except DeviceError as exc:
        if name is None:
            raise
        raise type(exc)(f"{name}: {exc}") from exc
