"""Measuring row operators: each on a few rows and on many, with the weights of the pack.

Rows lie in memory that was just written, as in a region, where the operator before made them.
"""

import time
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from models.packs.manifest import Manifest, Operand, RowInput, RowOperator
from models.packs.pack import Pack
from pipeline.devices.base import Device
from pipeline.profiles.row_kernels import MEASURED_COPIES, copy_key, measured_rows, row_key
from pipeline.program.row_ranges import Rows, needed

_REPEATS = 5


class RowKernels:
    """Measures the row operators of ``pack``; those that are alike once."""

    def __init__(self, pack: Pack, device: Device) -> None:
        self._pack = pack
        self._manifest: Manifest = pack.manifest
        self._device = device
        self._generator = np.random.default_rng(0)

    def seconds(self) -> Iterator[tuple[str, float]]:
        """Yield times by key: one round of all operators, and of copies."""
        alike: dict[tuple[object, ...], list[float]] = {}
        for number, item in enumerate(self._manifest.row_operators):
            for rows in measured_rows(self._manifest.row_values[item.output], item):
                like = self._like(item, rows)
                if like not in alike:
                    alike[like] = self._measured(item, rows)
                yield from ((row_key(number, rows), each) for each in alike[like])
        if self._manifest.row_operators:
            for n_bytes in MEASURED_COPIES:
                yield from ((copy_key(n_bytes), each) for each in _copies(n_bytes))

    def _like(self, item: RowOperator, rows: int) -> tuple[object, ...]:
        shapes = (self._manifest.row_values[taken.row_value].shape for taken in item.inputs)
        weights = (operand.shape for operand in item.weights)
        return (item.graph, rows, *shapes, *weights, self._manifest.row_values[item.output].shape)

    def _measured(self, item: RowOperator, rows: int) -> list[float]:
        inputs = [self._rows(taken, rows) for taken in item.inputs]
        output = self._filled(item.output, rows)
        weights = [self._weights(operand) for operand in item.weights]
        kernel = self._device.load(self._pack.graphs[item.graph])
        launch = kernel.bind([*inputs, *weights], [output])
        launch()
        return [_timed(launch) for _ in range(_REPEATS)]

    def _rows(self, taken: RowInput, rows: int) -> NDArray[Any]:
        return self._filled(taken.row_value, len(needed(taken.window, Rows(0, rows))))

    def _filled(self, row_value: int, rows: int) -> NDArray[Any]:
        _, channels, _, width = self._manifest.row_values[row_value].shape
        shape = (1, channels, rows, width)
        return self._generator.standard_normal(shape, np.float32)

    def _weights(self, operand: Operand) -> NDArray[Any]:
        start = self._manifest.spans[operand.index].offset + operand.offset
        with self._pack.weights_path.open("rb") as file:
            file.seek(start)
            return np.frombuffer(file.read(operand.n_bytes), operand.dtype).reshape(operand.shape)


def _copies(n_bytes: int) -> list[float]:
    """Return times of copying rows of ``n_bytes``: a part of each of several planes."""
    planes, elements = 16, n_bytes // 64
    source = np.ones((planes, 2, elements), np.float32)
    target = np.zeros((planes, 1, elements), np.float32)
    rows = source[:, :1]
    return [_timed(lambda: np.copyto(target, rows)) for _ in range(4 * _REPEATS)]


def _timed(launch: Any) -> float:
    began = time.perf_counter()
    launch()
    return time.perf_counter() - began
