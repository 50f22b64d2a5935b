"""Measuring row operators: each on few rows and on many, with the pack's weights, and copies of rows.

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

from models.packs.records.pieces import Operand
from models.packs.records.row_parts import RowOperator
from models.packs.storing import read_span
from pipeline.devices.base import Block, Device, DeviceError, Launch
from pipeline.devices.device_memory import Memory
from pipeline.devices.pack_kernels import PackKernels
from pipeline.measuring.engines import cache_bytes
from pipeline.profiles.row_kernels import (
    MEASURED_COPIES,
    copy_key,
    first_key,
    measured_rows,
    row_key,
)
from pipeline.program.boxes.box import Interval
from pipeline.program.program import Program

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
        other memory is written, as other kernels do in a sweep. On a GPU it is taken for nothing.
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
        chain = item.elementwise if number in self._program.row_chains else None
        shapes = (self._program.row_values[taken.row_value].shape for taken in item.inputs)
        weights = (operand.shape for operand in item.weights)
        output = self._program.row_values[item.output]
        return (chain, item.graph, rows, *shapes, *weights, output.shape)

    def _measured(self, number: int, item: RowOperator, rows: int) -> list[float]:
        held = sum(math.prod(shape) * _DRAWN.itemsize for shape in self._shapes(item, rows))
        count = min(-(-_STRIPS_BYTES // held), _REPEATS)
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
        held = self._on_device([*weights, *drawn * count], stack)
        shared, rest = held[: len(weights)], iter(held[len(weights) :])
        found = []
        for _ in range(count):
            *inputs, output = islice(rest, len(shapes))
            found.append(self._kernels.row_operator(number, item.graph, [*inputs, *shared], output))
        return found

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
        held, parts = 0, []
        for span in spans:  # weights of a layer in chunks go on in the next one
            if held >= end:
                break
            parts.append(read_span(self._program.pack.weights_path, span))
            held += span.length
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
            held = self._on_device([rows, rows[:, :1]] * _REPEATS, stack)
            blocks = [Block(array, planes, range(1), all_of) for array in held]
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
