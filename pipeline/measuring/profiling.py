"""Measuring a profile: r, c and k of a pack on this machine, in rounds, because machines are not quiet.

Kernels are measured in sweeps of the real engine with all weights in memory, once for each size of
chunks that the pack offers, by their traces. One engine is open at a time, so that profiling takes no more
memory than ``pre`` does. How much reading and computing slow each other down is measured in sweeps with and
without reads, taking turns.
"""

import os
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import chain, islice
from pathlib import Path
from statistics import median
from typing import Self

from loader.buffers import PAGE_BYTES, Buffer
from loader.pool.pool import ReadPool
from loader.readers.disk import REAL_DISK, Disk
from models.packs.pack import Pack
from pipeline.devices.base import Device, Tuning
from pipeline.execution.opened import opened
from pipeline.measuring.overheads import (
    ORDERS,
    loop_seconds,
    measure_launches,
    measure_overlap,
    typical_plan,
)
from pipeline.measuring.row_operators import RowKernels, group_seconds, phases_factor
from pipeline.measuring.sweeps import Measured, measured_sweeps, random_inputs
from pipeline.measuring.transfers import DEPTHS, Copies, FileReads, sizes
from pipeline.planning.make import make_plan
from pipeline.planning.plan import Choice, Plan
from pipeline.profiles.machine import this_machine
from pipeline.profiles.profile import Profile
from pipeline.profiles.profile_file import manifest_checksum
from pipeline.profiles.times import CopyTime, Distribution, ReadTime, piece_key
from pipeline.program.choice import choose_pieces, chunk_sizes
from pipeline.program.prepare import prepare
from pipeline.program.program import PreparedPiece, Program
from pipeline.schedule.architectures import ARCHITECTURES
from pipeline.schedule.trace import TraceEvent
from pipeline.timing.durations import services


def chunk_levels(program: Program) -> list[int]:
    """Return limits for ``choose_pieces`` that together choose every piece there is, ascending.

    Few of them (greedily, the one with the most new pieces first); 0 means the finest chunks.
    """
    chosen = {
        limit: {piece_key(piece) for piece in choose_pieces(program, limit)}
        for limit in (0, *chunk_sizes(program))
    }
    missing = set[str]().union(*chosen.values())
    levels = []
    while missing:
        best = max(chosen, key=lambda limit: len(chosen[limit] & missing))
        levels.append(best)
        missing -= chosen[best]
    return sorted(levels) or [0]


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
    plan = typical_plan(program, "auto", device)
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


# The profile, in rounds.

DEFAULT_ITERATIONS = 6
_ROUNDS = 3
# Kernels are measured beside so many reads in flight, and the largest: what each read costs besides its
# bytes is the overlaps' (pipeline/measuring/overheads.py) to say.
_BESIDE_DEPTH = 2

#: Called with the steps done and all steps.
Progress = Callable[[int, int], None]


@dataclass
class _Samples:
    """Seconds, by what they are of. ``beside``: delays of sweeps beside reads over those without."""

    reads: defaultdict[tuple[int, int], list[float]] = field(
        default_factory=lambda: defaultdict(list)
    )
    copies: defaultdict[int, list[float]] = field(default_factory=lambda: defaultdict(list))
    kernels: defaultdict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    beside: list[float] = field(default_factory=list)


def profile_pack(
    pack: Pack,
    device: Device,
    iterations: int = DEFAULT_ITERATIONS,
    progress: Progress = lambda done, total: None,
    doing: Callable[[str], None] = lambda what: None,
    disk: Disk = REAL_DISK,
) -> Profile:
    """Measure ``pack`` on ``device``: ``iterations`` sweeps of each size of chunks, in up to three rounds.

    ``doing`` is called with what comes next. ``disk``: what weights are read from.

    Raises:
        LoaderError: weights.bin cannot be read. DeviceError: a kernel cannot be loaded or fails.
    """
    before = ProcessorTimes.now()
    doing("how the device works best")
    tuning = _choose_tuning(pack, device)
    program = prepare(pack, device)
    samples = _Samples()
    with file_reads(pack, disk) as reads:
        meter = _Meter(program, device, reads, samples)
        rounds = min(_ROUNDS, iterations)
        steps = [_share(iterations, rounds, turn) for turn in range(rounds)]
        levels = chunk_levels(program)
        done, total = 0, rounds * (len(levels) + 1) + len(ORDERS)
        for turn, sweeps in enumerate(steps):
            doing(f"reads and copies, round {turn + 1} of {rounds}")
            meter.measure_transfers(turn)
            done += 1
            progress(done, total)
            doing(f"kernels, round {turn + 1} of {rounds}")
            meter.measure_rows()
            for position in range(len(levels)):
                # The order rotates: what runs after a cold neighbour would always pay for it.
                level = levels[(position + turn) % len(levels)]
                meter.measure_kernels(level, sweeps, beside=level == levels[turn % len(levels)])
                done += 1
                progress(done, total)
    profile = _summary(pack, device, samples, tuning, disk)
    overlaps = {}
    with closing(ReadPool()) as pool:
        doing("phases of regions")
        factor = phases_factor(program, profile, device, pool)
        loop = Distribution.of(loop_seconds(typical_plan(program, "auto", device)))
        profile = profile.model_copy(update={"phases": factor, "loop": loop})
        doing("launches of several steps")
        launches = measure_launches(program, profile, device, pool, iterations)
        outside = Distribution.of(launches.outside)
        beside = {"launch": launches.seconds, "whole": launches.whole, "outside": outside}
        profile = profile.model_copy(update=beside)
        for name in ORDERS:
            doing(f"kernels beside reads, as {name}")
            overlaps[name] = measure_overlap(
                program, name, profile, device, pool, iterations, disk=disk
            )
            done += 1
            progress(done, total)
    others = others_share(before, ProcessorTimes.now(), os.cpu_count() or 1)
    return profile.model_copy(update={"overlaps": overlaps, "others": others})


def _share(iterations: int, rounds: int, turn: int) -> int:
    return iterations * (turn + 1) // rounds - iterations * turn // rounds


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


class _Meter:
    """Adds measurements of ``program`` to ``samples``."""

    def __init__(
        self, program: Program, device: Device, reads: FileReads, samples: _Samples
    ) -> None:
        self._program = program
        self._device = device
        self._reads = reads
        self._samples = samples
        self._inputs = random_inputs(program)

    def measure_transfers(self, turn: int) -> None:
        """Measure one round of all rows of the tables."""
        samples, reads = self._samples, self._reads
        for n_bytes in sizes(reads.n_bytes):
            for depth in DEPTHS:
                samples.reads[n_bytes, depth] += reads.row(n_bytes, depth, turn)
        with (
            closing(self._device.allocate("staging", reads.buffer.n_bytes)) as source,
            closing(self._device.allocate("own", reads.buffer.n_bytes)) as target,
        ):
            copied = Copies(self._program.pack, self._device, source, target)
            for n_bytes in sizes(sum(span.length for span in self._program.spans)):
                samples.copies[n_bytes] += copied.seconds(n_bytes)

    def measure_kernels(self, chunk_bytes: int, sweeps: int, beside: bool) -> None:
        """Measure every kernel in chunks of up to ``chunk_bytes``, weights in memory."""
        choice = Choice(chunk_bytes=chunk_bytes)
        plan = make_plan(self._program, ARCHITECTURES["pre"], choice=choice)
        with opened(self._program, plan, self._device, self._reads.pool) as engine:
            runs = measured_sweeps(engine, self._inputs)
            next(runs)  # the first one touches all memory
            for _ in range(sweeps):
                sweep = next(runs)
                self._add_kernels(plan, sweep.events)
                if beside:
                    self._measure_beside(runs, sweep.delay_seconds)

    def measure_rows(self) -> None:
        """Measure every row operator once more."""
        kernels = RowKernels(self._program, self._device)
        groups = group_seconds(self._program, self._device, self._reads.pool)
        for key, seconds in chain(kernels.seconds(), kernels.first_calls(), groups):
            self._samples.kernels[key].append(seconds)

    def _add_kernels(self, plan: Plan, events: list[TraceEvent]) -> None:
        served = services(plan.stages, events, plan.choice.depth)[-1]
        for piece, service in zip(plan.steps, served, strict=True):
            if service is not None and isinstance(piece, PreparedPiece):
                self._samples.kernels[piece_key(piece)].append(service.seconds)

    def _measure_beside(self, runs: Iterator[Measured], quiet_seconds: float) -> None:
        """Run a sweep while a thread reads without a pause."""
        ended = threading.Event()
        n_bytes = max(sizes(self._reads.n_bytes), default=PAGE_BYTES)

        def read() -> None:
            turn = 0
            while not ended.is_set():
                for _ in self._reads.row(n_bytes, _BESIDE_DEPTH, turn):
                    pass
                turn += 1

        if self._reads.n_bytes < n_bytes:
            return
        thread = threading.Thread(target=read, name="beside")
        thread.start()
        try:
            sweep = next(runs)
        finally:
            ended.set()
            thread.join()
        self._samples.beside.append(sweep.delay_seconds / quiet_seconds)


def _summary(pack: Pack, device: Device, samples: _Samples, tuning: Tuning, disk: Disk) -> Profile:
    of = Distribution.of
    return Profile(
        manifest=manifest_checksum(pack),
        machine=this_machine(pack.weights_path, device, disk),
        date=datetime.now(UTC).isoformat(timespec="seconds"),  # noqa: TID251  a date
        reads=tuple(
            ReadTime(n_bytes=n_bytes, depth=depth, seconds=of(seconds))
            for (n_bytes, depth), seconds in samples.reads.items()
        ),
        copies=tuple(
            CopyTime(n_bytes=n_bytes, seconds=of(seconds))
            for n_bytes, seconds in samples.copies.items()
        ),
        kernels={key: of(seconds) for key, seconds in samples.kernels.items()},
        slowdown=_excess(samples.beside),
        outside=of([0.0]),  # of whole requests, which come last
        tuning=tuning,
    )


def _excess(ratios: list[float]) -> float:
    """Return by how much the middle one of ``ratios`` is above 1; 0 where it is not."""
    return max(median(ratios) - 1.0, 0.0) if ratios else 0.0
