"""Measuring row operators: each on few rows and on many, with the pack's weights.

Each run takes other memory than the one before, as much in all as the strips of a region: what a kernel
finds in the caches there is not what it left itself.
"""

import time
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from models.packs.records.pieces import Operand
from models.packs.records.rows import RowOperator
from models.packs.storing import read_span
from pipeline.devices.base import Device, Launch
from pipeline.devices.pack_kernels import PackKernels
from pipeline.profiles.row_kernels import (
    MEASURED_COPIES,
    copy_key,
    measured_rows,
    row_key,
)
from pipeline.program.boxes.box import Interval
from pipeline.program.program import Program

_REPEATS = 7
# Of one operator in one round: large ones are measured less often.
_ENOUGH_SECONDS = 0.01
_STRIPS_BYTES = 1 << 20
_DRAWN = 1 << 16
# A copy of rows is of so many planes.
_COPIED_PLANES = 16


class RowKernels:
    """Measures the row operators of ``program``; those that are alike once."""

    def __init__(self, program: Program, device: Device) -> None:
        self._program = program
        self._kernels = PackKernels(program, device)
        # Drawing as many as kernels are given would take longer than these.
        self._numbers = np.random.default_rng(0).standard_normal(_DRAWN, np.float32)
        self._kept: list[Any] = []

    def seconds(self) -> Iterator[tuple[str, float]]:
        """Yield times by key: one round of all operators, and of copies."""
        alike: dict[tuple[object, ...], list[float]] = {}
        for number, item in enumerate(self._program.row_operators):
            for rows in measured_rows(self._program.row_values[item.output], item):
                chain = item.elementwise if number in self._program.row_chains else None
                like = (chain, *self._like(item, rows))
                if like not in alike:
                    alike[like] = self._measured(number, item, rows)
                yield from ((row_key(number, rows), each) for each in alike[like])
        if self._program.row_operators:
            for n_bytes in MEASURED_COPIES:
                yield from ((copy_key(n_bytes), each) for each in _copies(n_bytes))

    def _like(self, item: RowOperator, rows: int) -> tuple[object, ...]:
        shapes = (self._program.row_values[taken.row_value].shape for taken in item.inputs)
        weights = (operand.shape for operand in item.weights)
        output = self._program.row_values[item.output]
        return (item.graph, rows, *shapes, *weights, output.shape)

    def _measured(self, number: int, item: RowOperator, rows: int) -> list[float]:
        weights = [self._weights(operand) for operand in item.weights]
        launches: list[Launch] = []
        held = 0
        while not launches or (held < _STRIPS_BYTES and len(launches) < _REPEATS):
            inputs = [
                self._filled(taken.row_value, len(Interval(0, rows).through(taken.window)))
                for taken in item.inputs
            ]
            output = self._filled(item.output, rows)
            kernel = self._kernels.row_operator(number, item.graph, [*inputs, *weights], output)
            launches.append(kernel)
            held += sum(array.nbytes for array in (*inputs, output))
            self._kept.append((inputs, output))  # kernels have their addresses only
        for launch in launches:
            launch()
        times = _repeated(launches)
        self._kept.clear()
        return times

    def _filled(self, row_value: int, rows: int) -> NDArray[Any]:
        _, channels, _, width = self._program.row_values[row_value].shape
        return np.resize(self._numbers, (1, channels, rows, width))

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


def _copies(n_bytes: int) -> list[float]:
    """Return times of copying ``n_bytes``: a part of each of some planes.

    Every copy takes other memory. Large ones, between strips and where values lie whole, then find nothing
    in the caches, as they do in a region; small ones, of rows that are kept, do.
    """
    elements = n_bytes // (4 * _COPIED_PLANES)
    sources = np.ones((_REPEATS, _COPIED_PLANES, 2, elements), np.float32)
    targets = np.ones((_REPEATS, _COPIED_PLANES, 1, elements), np.float32)

    def copy(turn: int) -> Launch:
        source, target = sources[turn, :, :1], targets[turn]
        return lambda: np.copyto(target, source)

    return _repeated([copy(turn) for turn in range(_REPEATS)])


def _repeated(launches: Sequence[Launch]) -> list[float]:
    """Return times of ``launches``, in turns, until they are enough."""
    times: list[float] = []
    while len(times) < _REPEATS and sum(times) < _ENOUGH_SECONDS:
        began = time.perf_counter()
        launches[len(times) % len(launches)]()
        times.append(time.perf_counter() - began)
    return times
