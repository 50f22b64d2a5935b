"""Measuring what runs in parts: row operators on few rows and many, groups of channels, phases.

Each run takes other memory of the device than the one before, as much in all as the strips of a region:
what a kernel finds in the caches there is not what it left itself.
"""

import math
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, closing
from itertools import cycle, islice
from statistics import median
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loader.pool.pool import ReadPool
from models.packs.records.pieces import Operand
from models.packs.records.row_parts import RowOperator
from models.packs.storing import read_span
from pipeline.devices.base import Block, Device, DeviceError, Launch
from pipeline.devices.device_memory import Memory
from pipeline.devices.pack_kernels import KernelCall, PackKernels
from pipeline.execution.opened import opened
from pipeline.measuring.sweeps import cache_bytes, measured_sweeps, random_inputs
from pipeline.planning.make import make_plan
from pipeline.planning.plan import Choice
from pipeline.planning.rows.region_edges import group_regions
from pipeline.planning.rows.variants import Variant, find_variants
from pipeline.planning.rows.walk import QUICK
from pipeline.profiles.profile import Profile
from pipeline.profiles.times import (
    MEASURED_COPIES,
    copy_key,
    first_key,
    group_key,
    measured_rows,
    row_key,
)
from pipeline.program.boxes.box import Interval
from pipeline.program.program import PreparedPiece, Program
from pipeline.program.region_plan import Region, RegionError
from pipeline.program.steps import Phase, Step, planned_region, row_network
from pipeline.schedule.architectures import ARCHITECTURES
from pipeline.schedule.trace import TraceEvent
from pipeline.timing.durations import services

_REPEATS = 7
_FIRST_CALLS = 3
# Of one operator in one round: large ones are measured less often.
_ENOUGH_SECONDS = 0.01
_STRIPS_BYTES = 1 << 20
# Drawing as many numbers as kernels are given would take longer than these.
_DRAWN = np.random.default_rng(0).standard_normal(1 << 16, np.float32)
# A copy of rows is of so many planes.
_COPIED_PLANES = 16
# More than the caches of one core, where several share a large one.
_MOST_BYTES = 8 << 20
_ALIGNMENT = 256
_MOST_SECONDS = 60


class RowKernels:
    """Measures the row operators of ``program``; those that are alike once."""

    def __init__(self, program: Program, device: Device) -> None:
        self._program = program
        self._device = device
        self._kernels = PackKernels(program, device)

    def seconds(self) -> Iterator[tuple[str, float]]:
        """Yield times by key: one round of all operators, and of copies."""
        alike: dict[tuple[object, ...], list[float]] = {}
        for number, item in enumerate(self._program.row_operators):
            for rows in measured_rows(self._program.row_values[item.output], item):
                like = self._like(number, item, rows)
                if like not in alike:
                    alike[like] = self._measured(number, item, rows)
                yield from ((row_key(number, rows), each) for each in alike[like])
        if self._program.row_operators:
            for n_bytes in MEASURED_COPIES:
                yield from ((copy_key(n_bytes), each) for each in self._copies(n_bytes))

    def first_calls(self) -> Iterator[tuple[str, float]]:
        """Yield by key what the first call of each in a sweep takes beside its time, on few rows.

        All that it uses is far away then; from the second phase of a region on it is not. Between two calls
        other memory is written, as other kernels do in a sweep. On a GPU it counts as zero.
        """
        others = np.zeros(min(cache_bytes(), _MOST_BYTES), np.uint8)
        alike: dict[tuple[object, ...], float] = {}
        for number, item in enumerate(self._program.row_operators):
            rows = measured_rows(self._program.row_values[item.output], item)[0]
            like = self._like(number, item, rows)
            if like not in alike:
                alike[like] = (
                    0.0 if self._device.asynchronous else self._first(number, rows, others)
                )
            yield first_key(number), alike[like]

    def _first(self, number: int, rows: int, others: NDArray[np.uint8]) -> float:
        item = self._program.row_operators[number]
        with ExitStack() as stack:
            (launch,) = self._bound(number, item, rows, 1, stack)
            launch()
            near, far = [], []
            for _ in range(_FIRST_CALLS):
                others += 1
                far.append(_seconds(launch))
                near.append(_seconds(launch))
        return max(median(far) - median(near), 0.0)

    def _like(self, number: int, item: RowOperator, rows: int) -> tuple[object, ...]:
        shapes = (self._program.row_values[taken.row_value].shape for taken in item.inputs)
        weights = (operand.shape for operand in item.weights)
        output = self._program.row_values[item.output]
        kernel = self._program.row_kernels[number]
        return (kernel, item.graph, rows, *shapes, *weights, output.shape)

    def _measured(self, number: int, item: RowOperator, rows: int) -> list[float]:
        strips_bytes = sum(math.prod(shape) * _DRAWN.itemsize for shape in self._shapes(item, rows))
        count = min(-(-_STRIPS_BYTES // strips_bytes), _REPEATS)
        with ExitStack() as stack:
            launches = self._bound(number, item, rows, count, stack)
            for launch in launches:
                launch()
            return self._repeated(launches)

    def _shapes(self, item: RowOperator, rows: int) -> list[tuple[int, ...]]:
        """Return the shapes of its inputs, then of its output, where it makes so many ``rows``."""
        lengths = [len(Interval(0, rows).through(taken.window)) for taken in item.inputs]
        values = [taken.row_value for taken in item.inputs]
        return [
            (1, channels, length, width)
            for value, length in zip([*values, item.output], [*lengths, rows], strict=True)
            for _, channels, _, width in [self._program.row_values[value].shape]
        ]

    def _bound(
        self, number: int, item: RowOperator, rows: int, count: int, stack: ExitStack
    ) -> list[Launch]:
        """Return an operator bound to ``count`` places, with the same weights."""
        shapes = self._shapes(item, rows)
        weights = [self._weights(operand) for operand in item.weights]
        drawn = [np.resize(_DRAWN, shape) for shape in shapes]
        arrays = self._on_device([*weights, *drawn * count], stack)
        shared, rest = arrays[: len(weights)], iter(arrays[len(weights) :])
        launches = []
        for _ in range(count):
            *inputs, output = islice(rest, len(shapes))
            placed = KernelCall(self._program.row_kernels[number], [*inputs, *shared], [output])
            launches.append(self._kernels.bind(placed))
        return launches

    def _on_device(self, arrays: Sequence[NDArray[Any]], stack: ExitStack) -> list[Any]:
        """Return ``arrays`` as kernels find them, until ``stack`` is left."""
        offsets = [0]
        for array in arrays:
            offsets.append(offsets[-1] + -(-array.nbytes // _ALIGNMENT) * _ALIGNMENT)
        memory: Memory = stack.enter_context(closing(self._device.allocate("own", offsets[-1])))
        for offset, array in zip(offsets, arrays, strict=False):
            memory.write(offset, array)
        return [
            memory.array(offset, array.dtype.name, array.shape)
            for offset, array in zip(offsets, arrays, strict=False)
        ]

    def _weights(self, operand: Operand) -> NDArray[Any]:
        end = operand.offset + operand.n_bytes
        spans = islice(self._program.spans, operand.index, None)
        n_bytes, parts = 0, []
        for span in spans:  # weights of a layer in chunks go on in the next one
            if n_bytes >= end:
                break
            parts.append(read_span(self._program.pack.weights_path, span))
            n_bytes += span.length
        content = np.concatenate(parts)[operand.offset : end]
        return content.view(operand.dtype).reshape(operand.shape)

    def _copies(self, n_bytes: int) -> list[float]:
        """Return times of copying ``n_bytes``: a part of each of some planes.

        Every copy takes other memory. Large ones, between strips and where values lie whole, then find
        nothing in the caches, as they do in a region; small ones, of rows that are kept, do.
        """
        elements = n_bytes // (_DRAWN.itemsize * _COPIED_PLANES)
        rows = np.ones((_COPIED_PLANES, 2, elements), np.float32)
        planes, all_of = range(_COPIED_PLANES), range(elements)
        with ExitStack() as stack:
            arrays = self._on_device([rows, rows[:, :1]] * _REPEATS, stack)
            blocks = [Block(array, planes, range(1), all_of) for array in arrays]
            pairs = zip(blocks[::2], blocks[1::2], strict=True)
            return self._repeated([self._device.copier(*pair) for pair in pairs])

    def _repeated(self, launches: Sequence[Launch]) -> list[float]:
        """Return times of ``launches``, in turns, until they are enough."""
        turns = cycle(launches)
        together = _REPEATS if self._device.asynchronous else 1
        times: list[float] = []
        while len(times) < _REPEATS and together * sum(times) < _ENOUGH_SECONDS:
            began = time.perf_counter()
            self._run(islice(turns, together))
            times.append((time.perf_counter() - began) / together)
        return times

    def _run(self, launches: Iterable[Launch]) -> None:
        """Run ``launches`` to their end: an asynchronous device has enqueued them all before.

        Raises:
            DeviceError: one fails, or does not end.
        """
        for launch in launches:
            launch()
        if self._device.asynchronous:
            ended: Future[None] = Future()
            self._device.finish(
                lambda error, _: ended.set_exception(error) if error else ended.set_result(None)
            )
            try:
                ended.result(_MOST_SECONDS)
            except TimeoutError as exc:
                raise DeviceError(f"row operators run for over {_MOST_SECONDS} s") from exc


def _seconds(launch: Launch) -> float:
    began = time.perf_counter()
    launch()
    return time.perf_counter() - began


# Measuring bottlenecks in groups of channels: whole sweeps, in which as many as can run so, alike.

_GROUP_SWEEPS = 2


def group_seconds(program: Program, device: Device, pool: ReadPool) -> Iterator[tuple[str, float]]:
    """Yield times by key of all that plans may choose: a few of each.

    Raises:
        LoaderError: weights.bin cannot be read. DeviceError: a kernel cannot be loaded or fails.
    """
    regions = [region for region in group_regions(program) if _is_possible(program, region)]
    for together in _apart(regions):
        choice = Choice(regions=tuple(sorted(together, key=lambda region: region.first_piece)))
        plan = make_plan(program, ARCHITECTURES["pre"], choice=choice)
        with opened(program, plan, device, pool) as engine:
            runs = measured_sweeps(engine, random_inputs(program))
            next(runs)  # the first one touches all memory
            for sweep in islice(runs, _GROUP_SWEEPS):
                served = services(plan.stages, sweep.events, plan.choice.depth)[-1]
                seconds = dict.fromkeys(together, 0.0)
                for step, service in zip(plan.steps, served, strict=True):
                    if isinstance(step, Phase) and service is not None:
                        seconds[step.region.plan.region] += service.seconds
                for region, took in seconds.items():
                    yield group_key(region), took


def _is_possible(program: Program, region: Region) -> bool:
    try:
        planned_region(program, region)
    except RegionError:
        return False
    return True


def _apart(regions: Iterable[Region]) -> list[list[Region]]:
    """Return ``regions`` in as few lists as share no piece within one."""
    lists: list[list[Region]] = []
    for region in regions:
        for together in lists:
            if all(
                region.end_piece <= other.first_piece or other.end_piece <= region.first_piece
                for other in together
            ):
                together.append(region)
                break
        else:
            lists.append([region])
    return lists


# By how much phases take longer than the operators in them, measured one by one, say.
#
# Between operators that run in turns caches hold what others left, and two cores hand rows to each other.
# How much that is depends on the machine and the network: so regions of both few and many rows are run.
# The whole network is run in the same minute: a machine's speed changes, and phases are compared with
# pieces.

_PHASE_SWEEPS = 5


def phases_factor(program: Program, profile: Profile, device: Device, pool: ReadPool) -> float:
    """Return the factor for ``program``; 1 where nothing runs on rows.

    Raises:
        LoaderError: weights.bin cannot be read. DeviceError: a kernel cannot be loaded or fails.
    """
    variants = [variant for variant in _variants(program, profile) if variant.regions]
    if not variants:
        return 1.0
    chosen = [variants[0], variants[len(variants) // 2], variants[-1]]
    whole = _Run(program, (), profile)
    speed = whole.ratio(PreparedPiece, device, pool)
    runs = (_Run(program, variant.regions, profile) for variant in chosen)
    return median(run.ratio(Phase, device, pool) for run in runs) / speed


def _variants(program: Program, profile: Profile) -> tuple[Variant, ...]:
    network = row_network(program)
    if not network.operators:
        return ()
    times, seconds = profile.row_times(network), profile.piece_seconds(program)
    return find_variants(network, times, seconds, QUICK).found


class _Run:
    """Sweeps of ``program``, weights in memory and ``regions`` on rows, beside what ``profile`` says."""

    def __init__(self, program: Program, regions: tuple[Region, ...], profile: Profile) -> None:
        self._program = program
        choice = Choice(regions=regions)
        self._plan = make_plan(program, ARCHITECTURES["pre"], choice=choice)
        self._said = profile.durations(self._plan).stages[-1]

    def ratio(self, kind: type[Step], device: Device, pool: ReadPool) -> float:
        """Return how long steps of one ``kind`` take over what the profile says."""
        with opened(self._program, self._plan, device, pool) as engine:
            sweeps = measured_sweeps(engine, random_inputs(self._program))
            next(sweeps)
            took = median(self._took(kind, sweep.events) for sweep in islice(sweeps, _PHASE_SWEEPS))
        pairs = zip(self._plan.steps, self._said, strict=True)
        return took / sum(said for step, said in pairs if isinstance(step, kind))

    def _took(self, kind: type[Step], events: list[TraceEvent]) -> float:
        served = services(self._plan.stages, events, self._plan.choice.depth)[-1]
        return sum(
            service.seconds
            for step, service in zip(self._plan.steps, served, strict=True)
            if isinstance(step, kind) and service is not None
        )
