"""What surrounds kernels, measured: the loop of a sweep, launches and requests, transfers beside them.

Times of reads on a quiet machine, of copies, of kernels with all weights in memory: none of them includes
what happens when all three run at once and wait for each other's threads. A few sweeps of each order do,
each beside one of the same kernels alone: a machine's speed changes from minute to minute.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from statistics import median
from typing import TypeVar

from loader.pool.pool import ReadPool
from loader.readers.disk import CHECKED, REAL_DISK, Disk
from pipeline.devices.base import Device, Done
from pipeline.execution.opened import opened
from pipeline.execution.sweep import Sweeper
from pipeline.measuring.sweeps import (
    Answered,
    Measured,
    answered_sweeps,
    measured_sweeps,
    random_inputs,
)
from pipeline.planning.joined_launches import apart, joined
from pipeline.planning.make import chunk_limit, make_plan
from pipeline.planning.plan import Choice, Plan
from pipeline.planning.streaming import READS_IN_RING
from pipeline.planning.thumb import USEFUL_RING_BYTES
from pipeline.profiles.profile import Profile
from pipeline.profiles.times import Overlap
from pipeline.program.program import Program
from pipeline.schedule.architectures import ARCHITECTURES
from pipeline.schedule.trace import TraceEvent
from pipeline.timing.durations import Service, Services, services

# What the loop around kernels costs: the schedule of a sweep that reads, called at every step.
#
# Sweeps in which nothing else takes time: reads and copies have ended when they are started, kernels do
# nothing. Sweeps without reads have no such loop, and kernels are measured in those.

_LOOP_SWEEPS = 9


def loop_seconds(plan: Plan, recorded: bool = False) -> list[float]:
    """Return what a step of ``plan`` takes beside its kernel, sweep by sweep; ``recorded``: with traces."""
    stages = plan.stages
    sweeper = Sweeper(stages, [_at_once] * (len(stages) - 1), [_nothing] * len(stages[-1]))
    seconds = []
    for _ in range(_LOOP_SWEEPS):
        events: list[TraceEvent] = []
        record: Callable[[TraceEvent], None] | None = events.append if recorded else None
        seconds.append(sweeper.run(record=record).delay_seconds / max(len(stages[-1]), 1))
    return seconds


def _recorded_loop_seconds(plan: Plan) -> float:
    """Return what all steps of a sweep of ``plan`` take beside their kernels where it is recorded."""
    return median(loop_seconds(plan, recorded=True)) * len(plan.stages[-1])


def _at_once(index: int, done: Done) -> None:
    done(None, 0.0)


def _nothing() -> None:
    pass


# What a request takes beside usual kernels: in the sweep, for each launch, and outside of the sweep.
#
# Sweeps with as few launches as can be, and with one for each step; all weights are in memory. They take
# turns, since a machine's speed changes, and one engine is open at a time.

_MOST_ROUNDS = 5
_WARM_UP = 2
# Sweeps of a few milliseconds are many, long ones few.
_ROUND_SECONDS = 0.3
_LEAST_SWEEPS = 3

_Sweep = TypeVar("_Sweep", Answered, Measured)


@dataclass(frozen=True)
class Launches:
    """``seconds``: what a step takes less, usually, that is launched with the one before it; 0: none is.

    ``whole``: by how much a sweep takes longer than the usual times of its kernels: some always take more.
    ``outside``: seconds of requests, all but their sweeps.
    """

    seconds: float
    whole: float
    outside: list[float]


def measure_launches(
    program: Program, profile: Profile, device: Device, pool: ReadPool, rounds: int
) -> Launches:
    """Measure launches in the times of ``profile``, whose kernels were launched one by one.

    In up to ``rounds`` rounds of a few sweeps each.

    Raises:
        LoaderError: weights.bin cannot be read. DeviceError: a kernel cannot be loaded or fails.
    """
    plan = joined(program, make_plan(program, ARCHITECTURES["pre"]))
    single = apart(plan)
    inputs = random_inputs(program)
    fewer = len(plan.steps) - plan.launches
    parts: list[float] = []
    wholes: list[float] = []
    outside: list[float] = []
    for _ in range(min(rounds, _MOST_ROUNDS)):
        with opened(program, plan, device, pool) as engine:
            together = _some(answered_sweeps(engine, inputs))
        with opened(program, single, device, pool) as engine:
            alone = _some(measured_sweeps(engine, inputs))
        outside += (each.outside_seconds for each in together)
        delay = median(each.delay_seconds for each in alone)
        parts.append(median(each.delay_seconds for each in together) / delay)
        wholes.append(delay / _usual_kernels(single, alone))
    whole = max(median(wholes), 1.0)
    said = whole * sum(profile.durations(single).stages[-1])
    saved = max(1.0 - median(parts), 0.0) * said
    return Launches(saved / fewer if fewer else 0.0, whole, outside)


def _some(sweeps: Iterator[_Sweep]) -> list[_Sweep]:
    measured: list[_Sweep] = []
    for _ in range(_WARM_UP):  # the first one touches all memory
        next(sweeps)
    end = time.perf_counter() + _ROUND_SECONDS
    while len(measured) < _LEAST_SWEEPS or time.perf_counter() < end:
        measured.append(next(sweeps))
    return measured


def _usual_kernels(plan: Plan, sweeps: Sequence[Measured]) -> float:
    """Return the sum of what each kernel takes usually."""
    rows = [services(plan.stages, sweep.events, plan.choice.depth)[-1] for sweep in sweeps]
    kernels = (
        [each.seconds for each in row if each is not None] for row in zip(*rows, strict=True)
    )
    return float(sum(map(median, kernels)))


# How much reads, copies and kernels slow each other down in the architectures of seed 003, measured.

#: One of each order of operations that sweeps can have: as ``order_of`` names them.
ORDERS = ("seq", "sync", "async", "2s", "auto")

# Small reads, so that what each of them costs shows beside what their bytes cost.
_READ_BYTES = 512 << 10
_PART_OF_WEIGHTS = 4


def measure_overlap(
    program: Program,
    name: str,
    profile: Profile,
    device: Device,
    pool: ReadPool,
    sweeps: int,
    *,
    disk: Disk = REAL_DISK,
) -> Overlap:
    """Return what ``sweeps`` in the order ``name`` change of the times that ``profile`` has of ``disk``."""
    plan = typical_plan(program, name, device)
    choice = Choice(chunk_bytes=chunk_limit(program, plan.architecture, plan.choice))
    quiet = make_plan(program, ARCHITECTURES["pre"], choice=choice)
    # Where reads and kernels take turns, the disturbance has all that they lose.
    slowdown = profile.slowdown if name == "auto" else 0.0
    *moves, _ = [sum(row) for row in profile.durations(plan).stages]
    factors: list[list[float]] = [[] for _ in moves]
    lost = []
    loop = _recorded_loop_seconds(plan)
    with (
        _sweeping(program, quiet, device, pool, disk) as alone,
        _sweeping(program, plan, device, pool, disk) as beside,
    ):
        for (quiet_kernels,), served in islice(zip(alone, beside, strict=False), sweeps):
            *moved, kernels = served
            for row, operations, expected in zip(factors, moved, moves, strict=True):
                row.append(_seconds(operations) / expected if expected else 1.0)
            known = slowdown / (1 + slowdown) * _together(moved[0], kernels)
            lost.append(_seconds(kernels) - _seconds(quiet_kernels) - known - loop)
    read, *copies = map(median, factors)
    return Overlap(
        read=read,
        copying=copies[0] if copies else 1.0,
        slowdown=slowdown,
        disturbance=max(median(lost), 0.0) / max(len(plan.groups), 1),
    )


def typical_plan(program: Program, name: str, device: Device) -> Plan:
    """Return a plan whose operations meet in the order ``name``."""
    architecture = device.adapt(ARCHITECTURES[name])
    if name != "auto" or architecture.slots:
        return make_plan(program, architecture)
    chunk = program.largest_chunk_bytes
    ring = max(min(USEFUL_RING_BYTES, program.weight_bytes // _PART_OF_WEIGHTS), chunk)
    choice = Choice(ring, max(ring // READS_IN_RING, chunk), _READ_BYTES)
    return make_plan(program, architecture, choice=choice)


@contextmanager
def _sweeping(
    program: Program, plan: Plan, device: Device, pool: ReadPool, disk: Disk
) -> Iterator[Iterator[Services]]:
    """Open an engine; yield, for sweep after sweep, when the operations of each stage were served."""
    with opened(program, plan, device, pool, disk.open(program.pack.weights_path)) as engine:
        runs = measured_sweeps(engine, random_inputs(program))
        for _ in range(CHECKED if disk.bytes_per_second else 1):
            next(runs)  # the first one touches all memory, and verifies
        served = (services(plan.stages, run.events, plan.choice.depth) for run in runs)
        # Without reads there is a stage less.
        yield (rows[-1:] if plan.architecture.resident else rows for rows in served)


def _seconds(operations: Iterable[Service | None]) -> float:
    return sum(item.seconds for item in operations if item is not None)


def _together(reads: Iterable[Service | None], kernels: Iterable[Service | None]) -> float:
    """Return for how long a kernel ran while some read was in flight."""
    events = sorted(
        (at, which, change)
        for which, operations in enumerate((reads, kernels))
        for item in operations
        if item is not None
        for at, change in ((item.start, 1), (item.end, -1))
    )
    working, before, total = [0, 0], 0.0, 0.0
    for at, which, change in events:
        if all(working):
            total += at - before
        working[which] += change
        before = at
    return total
