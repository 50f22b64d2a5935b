"""How long a pass of a plan takes, estimated: times of its operations through its own schedule.

Estimates rank plans, and measurements decide among the first (pipeline/measuring/races.py). They need the
times of pieces whole, from one trace of ``pre`` or by arithmetic, and a curve of the disk.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

from models.network.macs import macs, weight_count
from pipeline.planning.make import chunk_limit
from pipeline.planning.plan import Plan
from pipeline.planning.streaming import PAGE_BYTES
from pipeline.program.choice import choose_pieces, finest_positions
from pipeline.program.kernels import LOOKUP_DEPTH, TableLookup
from pipeline.program.program import PreparedPiece, Program
from pipeline.program.region_plan import Action, Compute, Region, RegionPlan, launches
from pipeline.program.row_network import RowNetwork
from pipeline.program.steps import regions_of, row_network
from pipeline.program.work import (
    BYTES_A_SECOND,
    MULTIPLICATIONS_A_SECOND,
    again_ratio,
    computing_seconds,
)
from pipeline.timing.durations import Durations
from pipeline.timing.timeline import Timeline, timeline

# What estimates count beside kernels and bytes. Only their proportions to these decide.

#: What a launch, or a phase of rows, takes beside its kernels: Python, and a pool of threads to wake.
LAUNCH_SECONDS = 20e-6
#: The same of a kernel that is launched with the one before it, and of a row operator.
KERNEL_SECONDS = 4e-6
_COPY_SECONDS = 2e-6
#: How many cores of ``computing_seconds`` compute as fast as a usual server's two threads with AVX-512.
_CORES = 4
#: What each call or copy of a phase takes beside what it computes.
_ACTION_SECONDS = 3e-6
#: Operators on rows take longer than on whole values by so much: smaller products, and other caches.
_ROWS = 1.12
#: What each read takes from the kernels, however short: threads that wake, pages that are pinned.
_DISTURBANCE_SECONDS = 0.3e-3


@dataclass(frozen=True)
class OperationTimes:
    """Seconds on one machine that estimates are made of.

    ``pieces``: of each of the finest pieces of a program, without its launch. ``read``: of a read of so
    many bytes while so many are in flight; ``copy``: of a copy of so many bytes.
    """

    pieces: tuple[float, ...]
    read: Callable[[int, int], float]
    copy: Callable[[int], float]


# Of a machine that was not measured.

_READ_BYTES_A_SECOND = 1.5e9
#: What a read takes beside its bytes.
_READ_SECONDS = 120e-6
# More reads in flight do not make a disk faster.
_READS_OF_A_DISK = 2


def arithmetic(program: Program) -> OperationTimes:
    """Return times by multiplications and bytes, of a machine that was not measured."""
    pieces = tuple(computing_seconds(piece) / _CORES for piece in program.pieces)
    return OperationTimes(pieces, _read_seconds, _copy_seconds)


def _read_seconds(n_bytes: int, in_flight: int) -> float:
    shared = min(in_flight, _READS_OF_A_DISK) * n_bytes
    return _READ_SECONDS + shared / _READ_BYTES_A_SECOND


def _copy_seconds(n_bytes: int) -> float:
    return n_bytes / BYTES_A_SECOND


def of_pieces(
    program: Program, pieces: Sequence[PreparedPiece], seconds: Sequence[float]
) -> tuple[float, ...]:
    """Return what each of the finest pieces takes of the ``seconds`` of chosen ``pieces`` with launches.

    Chunks of a layer have parts in proportion to their arithmetic.
    """
    divided = [0.0] * len(program.pieces)
    for run, took in zip(finest_positions(program, pieces), seconds, strict=True):
        parts = [computing_seconds(program.pieces[piece]) for piece in run]
        whole = sum(parts)
        for piece, part in zip(run, parts, strict=True):
            share = part / whole if whole else 1 / len(run)
            divided[piece] = max(took - LAUNCH_SECONDS, 0.0) * share
    return tuple(divided)


# Regions whose phases are kept: those of the variants that a few budgets plan.
_MAX_REGIONS = 256


class Estimates:
    """Estimates of plans of ``program`` by ``times``."""

    def __init__(self, program: Program, times: OperationTimes) -> None:
        self.program = program
        self.times = times
        self._phases: dict[Region, list[float]] = {}

    def seconds(self, plan: Plan) -> float:
        """Return about what a pass of ``plan`` takes after an idle moment, its head read ahead."""
        return self.sweep(plan).delay_seconds

    def sweep(self, plan: Plan) -> Timeline:
        """Return the times of all operations of a pass of ``plan`` after an idle moment."""
        return timeline(plan.stages, self.durations(plan), plan.stages[0].ahead)

    def durations(self, plan: Plan) -> Durations:
        """Return about the seconds of every operation of ``plan``, reads for the next pass included."""
        depth, rows = plan.choice.depth, []
        if len(plan.stages) > 1:
            reads = [self.times.read(read.n_bytes, depth) for read in plan.reads]
            rows.append(tuple((reads * 2)[: len(plan.stages[0])]))
        if plan.architecture.copies:
            rows.append(tuple(self.times.copy(buffer.n_bytes) for buffer in plan.weights))
        rows.append(tuple(self.kernels(plan)))
        return Durations(tuple(rows), depth, disturbance=_DISTURBANCE_SECONDS)

    def kernels(self, plan: Plan) -> Iterator[float]:
        """Yield about what each step takes; the first of a launch takes the launch."""
        program, choice = self.program, plan.choice
        inside = {piece for region in choice.regions for piece in region.pieces}
        limit = chunk_limit(program, plan.architecture, choice)
        chosen = choose_pieces(program, limit)
        whole = (run for run in finest_positions(program, chosen) if run.start not in inside)
        phases = chain.from_iterable(map(self._of_phases, (r.plan for r in regions_of(plan.steps))))
        joined = {position for run in plan.runs for position in run[1:]}
        for position, step in enumerate(plan.steps):
            if isinstance(step, PreparedPiece):
                launch = KERNEL_SECONDS if position in joined else LAUNCH_SECONDS
                seconds = sum(self.times.pieces[piece] for piece in next(whole))
                yield launch + seconds + self._lookup(step)
            else:
                yield LAUNCH_SECONDS + next(phases)

    def _lookup(self, step: PreparedPiece) -> float:
        """Return about what reading rows of a table takes: 0 of a step that reads none."""
        kernel = step.kernel
        if not isinstance(kernel, TableLookup):
            return 0.0
        pages = math.prod(step.inputs[0].shape) * (1 + kernel.row_bytes / PAGE_BYTES)
        return pages * self.times.read(PAGE_BYTES, LOOKUP_DEPTH) / LOOKUP_DEPTH

    def _of_phases(self, plan: RegionPlan) -> list[float]:
        """Return what each phase of a region takes; kept, since plans share regions."""
        if plan.region not in self._phases:
            counts = [len(launches(phase)) for phase in plan.phases]
            whole = sum(self.times.pieces[piece] for piece in plan.region.pieces)
            each = _ROWS * again_ratio(row_network(self.program), plan) * whole / sum(counts)
            while len(self._phases) >= _MAX_REGIONS:
                del self._phases[next(iter(self._phases))]
            self._phases[plan.region] = [(each + _ACTION_SECONDS) * count for count in counts]
        return self._phases[plan.region]

    def on_rows(self, operator: int, rows: int) -> float:
        """Return about what row operator ``operator`` takes for ``rows`` rows of its output."""
        network = row_network(self.program)
        item = network.operators[operator]
        whole = sum(self.times.pieces[item.first_piece : item.end_piece])
        return KERNEL_SECONDS + whole * rows / network.values[item.output].height


# Row operators.


@dataclass(frozen=True)
class ArithmeticRows:
    """Times of row operators of ``network`` by multiplications alone, for the search among regions.

    Of such times only proportions decide.
    """

    network: RowNetwork

    def call(self, operator: int, rows: int) -> float:
        """Return what row operator ``operator`` takes for ``rows`` rows of its output."""
        item = self.network.operators[operator]
        output = self.network.values[item.output]
        weights = max((operand.n_bytes for operand in item.weights), default=0) // 4
        work = macs(max(weights, output.shape[1]), rows * output.shape[3])
        return KERNEL_SECONDS + work / MULTIPLICATIONS_A_SECOND

    def move(self, n_bytes: int) -> float:
        """Return what copying ``n_bytes`` in all takes."""
        return _COPY_SECONDS + n_bytes / BYTES_A_SECOND

    def bottleneck(self, plan: RegionPlan) -> float:
        """Return what all of a bottleneck in groups of channels takes."""
        # Of those that are alike all are one object.
        each = {id(action): action for phase in plan.phases for action in phase}
        seconds = {number: self._action(action) for number, action in each.items()}
        return sum(seconds[id(action)] for phase in plan.phases for action in phase)

    def _action(self, action: Action) -> float:
        if not isinstance(action, Compute):
            return _COPY_SECONDS
        _, channels, *pixels = action.output.shape
        # Weights come second.
        weights = weight_count(place.shape for place in action.inputs[1:2])
        work = macs(max(weights, channels), math.prod(pixels))
        return KERNEL_SECONDS + work / MULTIPLICATIONS_A_SECOND

    def pieces(self) -> Callable[[int], float]:
        """Return what computes the seconds of pieces: each operator's at the first of its own."""
        seconds: dict[int, float] = {}
        for number, item in enumerate(self.network.operators):
            height = self.network.values[item.output].height
            took = seconds.get(item.first_piece, 0.0)
            seconds[item.first_piece] = took + self.call(number, height)
        return lambda piece: seconds.get(piece, 0.0)
