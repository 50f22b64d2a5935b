"""What the first call of a row operator in a sweep takes beside its time: all that it uses is far away.

Row operators are measured call after call, so weights and kernel lie in the caches. In a region that is so
from the second phase on. Between two calls here other memory is written, as other kernels do in a sweep.
"""

import time
from collections.abc import Iterator
from statistics import median

import numpy as np
from numpy.typing import NDArray

from models.packs.records.rows import RowOperator
from pipeline.devices.base import Device, Launch
from pipeline.devices.pack_kernels import PackKernels
from pipeline.measuring.engines import cache_bytes
from pipeline.profiles.row_kernels import first_key, measured_rows
from pipeline.program.boxes.box import Interval
from pipeline.program.program import Program

_REPEATS = 3
# More than the caches of one core, where several share a large one.
_MOST_BYTES = 8 << 20


class FirstCalls:
    """Measures the row operators of ``program`` on few rows; those that are alike once."""

    def __init__(self, program: Program, device: Device) -> None:
        self._program = program
        self._kernels = PackKernels(program, device)
        self._others = np.zeros(min(cache_bytes(), _MOST_BYTES), np.uint8)

    def seconds(self) -> Iterator[tuple[str, float]]:
        """Yield times by key, one of each operator."""
        alike: dict[tuple[object, ...], float] = {}
        for number, item in enumerate(self._program.row_operators):
            weights = tuple(operand.shape for operand in item.weights)
            shapes = tuple(self._shape(taken.row_value, 1) for taken in item.inputs)
            chain = item.elementwise if number in self._program.row_chains else None
            like = (chain, item.graph, weights, shapes)
            if like not in alike:
                alike[like] = self._measured(number, item)
            yield first_key(number), alike[like]

    def _measured(self, number: int, item: RowOperator) -> float:
        rows = measured_rows(self._program.row_values[item.output], item)[0]
        inputs = [
            self._ones(taken.row_value, len(Interval(0, rows).through(taken.window)))
            for taken in item.inputs
        ]
        weights = [np.ones(operand.shape, operand.dtype) for operand in item.weights]
        output = self._ones(item.output, rows)
        launch = self._kernels.row_operator(number, item.graph, [*inputs, *weights], output)
        launch()
        near, far = [], []
        for _ in range(_REPEATS):
            self._others += 1
            far.append(_timed(launch))
            near.append(_timed(launch))
        return max(median(far) - median(near), 0.0)

    def _ones(self, row_value: int, rows: int) -> NDArray[np.float32]:
        return np.ones(self._shape(row_value, rows), np.float32)

    def _shape(self, row_value: int, rows: int) -> tuple[int, ...]:
        _, channels, _, width = self._program.row_values[row_value].shape
        return (1, channels, rows, width)


def _timed(launch: Launch) -> float:
    began = time.perf_counter()
    launch()
    return time.perf_counter() - began
