"""Measuring what estimates are made of: the disk, and the kernels of a pack with all weights in memory.

Kernels are measured in passes of the real engine, by their traces. One engine is open at a time, so that
this takes no more memory than ``pre`` does.
"""

import os
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import islice, product
from pathlib import Path
from statistics import median
from typing import Self

from loader.buffers import PAGE_BYTES, Buffer
from loader.pool.pool import ReadPool
from loader.readers.disk import REAL_DISK, Disk
from models.packs.pack import Pack
from pipeline.devices.base import Device, Tuning
from pipeline.execution.opened import opened
from pipeline.fitting.fit import fit
from pipeline.measuring.sweeps import Answered, answered_sweeps, measured_sweeps, random_inputs
from pipeline.measuring.transfers import DEPTHS, Copies, FileReads, sizes
from pipeline.planning.estimates import of_pieces
from pipeline.planning.joined_launches import joined
from pipeline.planning.make import make_plan
from pipeline.profiles.disk_curves import DiskCurves
from pipeline.profiles.machine import this_machine
from pipeline.profiles.profile import Profile, is_disturbed
from pipeline.profiles.profile_file import manifest_checksum
from pipeline.profiles.times import CopyTime, Distribution, ReadTime
from pipeline.program.prepare import prepare
from pipeline.program.program import PreparedPiece, Program
from pipeline.schedule.architectures import ARCHITECTURES
from pipeline.timing.durations import services

# What a device could choose among, tried on a pack before its times are measured.

_TUNING_SWEEPS = 5


def _choose_tuning(pack: Pack, device: Device) -> Tuning:
    """Return what is fastest for ``pack`` on ``device``, which works so afterwards.

    Memory kinds are compared by sweeps of ``auto`` in a ring of a few chunks.

    Raises:
        LoaderError: weights.bin cannot be read. DeviceError: a kernel cannot be loaded or fails.
    """
    candidates = device.tunings(pack.graphs, pack.weights_path)
    if len(candidates) == 1:
        best = candidates[0]
    else:
        with closing(ReadPool()) as pool:
            best = min(candidates, key=lambda tuning: _seconds(pack, device, tuning, pool))
    device.tune(best)
    return best


def _seconds(pack: Pack, device: Device, tuning: Tuning, pool: ReadPool) -> float:
    device.tune(tuning)
    program = prepare(pack, device)
    plan = fit(program, device.adapt(ARCHITECTURES["auto"])).plan
    with opened(program, plan, device, pool) as engine:
        runs = measured_sweeps(engine, random_inputs(program))
        next(runs)  # the first one touches all memory, and verifies
        return median(sweep.delay_seconds for sweep in islice(runs, _TUNING_SWEEPS))


# How much of the processors others took meanwhile: what is measured on a busy machine takes too long.

_STAT = Path("/proc/stat")
# Of the first line: user, nice, system, (idle, waiting for disks), interrupts, soft ones, stolen by others
# of the same host. Guests are in user.
_BUSY = (0, 1, 2, 5, 6, 7)


@dataclass(frozen=True)
class ProcessorTimes:
    """Seconds since some beginning, of all processors together: ``busy``, and by this process ``own``."""

    at: float
    busy: float
    own: float

    @classmethod
    def now(cls) -> Self | None:
        """Return the times until now; None where the system does not count them."""
        own = os.times()
        try:
            busy = busy_seconds(_STAT.read_text("ascii"), os.sysconf("SC_CLK_TCK"))
        except (OSError, ValueError):
            return None
        return cls(time.monotonic(), busy, own.user + own.system)


def busy_seconds(stat: str, per_second: int) -> float:
    """Return the seconds that ``stat``, the text of /proc/stat, counts in ticks of all processors.

    Raises:
        ValueError: it does not say it.
    """
    word, *ticks = stat.partition("\n")[0].split()
    if word != "cpu" or len(ticks) <= max(_BUSY):
        raise ValueError(f"{_STAT}: no times of processors")
    return sum(int(ticks[index]) for index in _BUSY) / per_second


def others_share(
    before: ProcessorTimes | None, after: ProcessorTimes | None, processors: int
) -> float:
    """Return the part of ``processors`` that others took in between; 0 where it is unknown."""
    if before is None or after is None or after.at <= before.at:
        return 0.0
    taken = (after.busy - before.busy) - (after.own - before.own)
    return round(min(max(taken / (processors * (after.at - before.at)), 0.0), 1.0), 2)


# The profile.

#: Traced passes with all weights in memory.
DEFAULT_ITERATIONS = 3
# Passes of which the delay and the rest of the request are taken: more of short ones.
_ANSWERED_SECONDS = 0.5
_MIN_ANSWERED = 3

#: Called with the steps done and all steps.
Progress = Callable[[int, int], None]


def profile_pack(
    pack: Pack,
    device: Device,
    iterations: int = DEFAULT_ITERATIONS,
    progress: Progress = lambda done, total: None,
    doing: Callable[[str], None] = lambda what: None,
    *,
    disk: Disk = REAL_DISK,
    curves: DiskCurves | None = None,
) -> Profile:
    """Measure ``pack`` on ``device`` without its plans: transfers, and ``iterations`` traced passes.

    ``doing`` is called with what comes next. ``disk``: what weights are read from. ``curves``: of disks
    that were measured before; what they lack is measured, and saved there if the machine was quiet.

    Raises:
        LoaderError: weights.bin cannot be read. DeviceError: a kernel cannot be loaded or fails.
    """
    before = ProcessorTimes.now()
    doing("how the device works best")
    tuning = _choose_tuning(pack, device)
    program = prepare(pack, device)
    machine = this_machine(pack.weights_path, device, disk)
    now = datetime.now(UTC)  # noqa: TID251  a date
    measured = () if curves is None else curves.reads(machine, now)
    progress(0, 3)
    with file_reads(pack, disk) as reads:
        doing("reads and copies")
        curve = _reads(reads, measured, with_pages=bool(program.tables))
        copy_times = _copies(program, device, reads.buffer.n_bytes, reads.n_bytes)
        progress(1, 3)
        doing("kernels")
        pieces = _trace(program, device, reads.pool, iterations)
        progress(2, 3)
        delays, outside = _answered(program, device, reads.pool)
        n_bytes = reads.n_bytes
        progress(3, 3)
    of = Distribution.of
    others = others_share(before, ProcessorTimes.now(), os.cpu_count() or 1)
    if curves is not None and len(curve) > len(measured) and not is_disturbed(others):
        curves.save(machine, curve, now)
    return Profile(
        manifest=manifest_checksum(pack),
        machine=machine,
        date=now.isoformat(timespec="seconds"),
        reads=tuple(
            item
            for item in curve
            if item.n_bytes in sizes(n_bytes) or (item.n_bytes == PAGE_BYTES and program.tables)
        ),
        copies=copy_times,
        pieces=pieces,
        resident=of(delays),
        outside=of(outside),
        tuning=tuning,
        others=others,
    )


@contextmanager
def file_reads(pack: Pack, disk: Disk) -> Iterator[FileReads]:
    """Yield what times reads of the weights of ``pack``, as they lie on ``disk``."""
    n_bytes = pack.weights_path.stat().st_size
    largest = max((span.length for span in pack.manifest.spans), default=0)
    buffer = Buffer(max(max(DEPTHS) * max(sizes(n_bytes), default=PAGE_BYTES), largest))
    reader = disk.open_for_timing(pack.weights_path)
    pool = ReadPool(max(DEPTHS))
    try:
        yield FileReads(reader, pool, buffer, n_bytes)
    finally:
        pool.close()
        reader.close()
        buffer.close()


def _reads(
    reads: FileReads, measured: Iterable[ReadTime], *, with_pages: bool
) -> tuple[ReadTime, ...]:
    """Return ``measured`` with the sizes and depths that it lacks of this file.

    ``with_pages``: also of pages of tables, anywhere in the file.
    """
    curve = {(item.n_bytes, item.depth): item for item in measured}
    for depth in DEPTHS if with_pages else ():
        if (PAGE_BYTES, depth) not in curve:
            seconds = Distribution.of(list(reads.pages(depth)))
            curve[PAGE_BYTES, depth] = ReadTime(n_bytes=PAGE_BYTES, depth=depth, seconds=seconds)
    for n_bytes, depth in product(sizes(reads.n_bytes), DEPTHS):
        if (n_bytes, depth) not in curve:
            seconds = Distribution.of(list(reads.row(n_bytes, depth, turn=0)))
            curve[n_bytes, depth] = ReadTime(n_bytes=n_bytes, depth=depth, seconds=seconds)
    return tuple(curve.values())


def _copies(
    program: Program, device: Device, buffer_bytes: int, file_bytes: int
) -> tuple[CopyTime, ...]:
    if not file_bytes:
        return ()
    with (
        closing(device.allocate("staging", buffer_bytes)) as source,
        closing(device.allocate("own", buffer_bytes)) as target,
    ):
        copied = Copies(program.pack, device, source, target)
        total = sum(span.length for span in program.spans)
        return tuple(
            CopyTime(n_bytes=n_bytes, seconds=Distribution.of(list(copied.seconds(n_bytes))))
            for n_bytes in sizes(total)
        )


def _trace(program: Program, device: Device, pool: ReadPool, sweeps: int) -> tuple[float, ...]:
    """Return the usual seconds of each of the finest pieces, weights in memory."""
    plan = make_plan(program, ARCHITECTURES["pre"])
    rows = []
    with opened(program, plan, device, pool) as engine:
        runs = measured_sweeps(engine, random_inputs(program))
        next(runs)  # the first one touches all memory
        for sweep in islice(runs, sweeps):
            served = services(plan.stages, sweep.events, plan.choice.depth)[-1]
            rows.append([0.0 if service is None else service.seconds for service in served])
    usual = [median(kernel) for kernel in zip(*rows, strict=True)]
    chosen = [step for step in plan.steps if isinstance(step, PreparedPiece)]
    return of_pieces(program, chosen, usual)


def _answered(program: Program, device: Device, pool: ReadPool) -> tuple[list[float], list[float]]:
    """Return the delays of passes as ``pre`` serves them, and what else their requests take."""
    plan = joined(program, make_plan(program, ARCHITECTURES["pre"]))
    answered: list[Answered] = []
    with opened(program, plan, device, pool) as engine:
        runs = answered_sweeps(engine, random_inputs(program))
        next(runs)
        end = time.perf_counter() + _ANSWERED_SECONDS
        while len(answered) < _MIN_ANSWERED or time.perf_counter() < end:
            answered.append(next(runs))
    return (
        [item.delay_seconds for item in answered],
        [item.outside_seconds for item in answered],
    )
