"""How much reads, copies and kernels slow each other down in the architectures of seed 003, measured.

Times of reads on a quiet machine, of copies, of kernels with all weights in memory: none of them knows
what happens when all three run at once and wait for each other's threads. A few sweeps of each order do,
each beside one of the same kernels alone: a machine's speed changes from minute to minute.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import islice
from statistics import median

from loader.pool.pool import ReadPool
from loader.readers.disk import CHECKED, REAL_DISK, Disk
from pipeline.devices.base import Device
from pipeline.execution.opened import opened
from pipeline.measuring.engines import measured_sweeps
from pipeline.measuring.loop import recorded_loop_seconds
from pipeline.measuring.sample_inputs import random_inputs
from pipeline.planning.make import chunk_limit, make_plan
from pipeline.planning.plan import Choice, Plan
from pipeline.planning.streaming import READS_IN_RING
from pipeline.planning.thumb import USEFUL_RING_BYTES
from pipeline.profiles.profile import Profile
from pipeline.profiles.times import Overlap
from pipeline.program.program import Program
from pipeline.schedule.architectures import ARCHITECTURES
from pipeline.timing.traced_durations import Service, Services, services

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
    loop = recorded_loop_seconds(plan)
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
