"""Launches of kernels/resize.cu: planes of another size, by tables of what to read."""

import math

import numpy as np
from numpy.typing import NDArray

from models.network.node import NamedTensor, UnsuitedError
from models.network.operators.reading import Resize
from models.network.operators.resizing import Resized
from pipeline.devices.cuda.call import DevicePointer, KernelLaunch
from pipeline.devices.cuda.operators.launches import per_element
from pipeline.devices.cuda.scope import Scope


def resized(it: Resize, scope: Scope) -> list[KernelLaunch]:
    """Return the launch that resizes the last one or two axes.

    Raises:
        UnsuitedError: others change, too, or elements are no 32-bit floats.
    """
    if it.x.dtype != "float32":
        raise UnsuitedError(f"input 0 is {it.x.dtype}, not float32")
    if not it.of_planes:
        raise UnsuitedError(f"more than two axes: {list(it.x.shape)} to {list(it.y.shape)}")
    same = Resized(np.zeros((1, 1), np.int32))
    rows, columns = (same, *it.axes)[-2:]
    if rows.weights is None and columns.weights is None:
        return [pick(it.x, it.y, rows.indices, columns.indices, scope)]
    count = math.prod(it.y.shape)
    tables = (*_tables(rows, scope), *_tables(columns, scope))
    taps = (rows.indices.shape[1], columns.indices.shape[1])
    pointers = scope.read(it.x), scope.write(it.y), *tables
    numbers = (*_planes(it.x), *_planes(it.y), *taps, count)
    return [per_element("resize", "interpolate", count, *pointers, *numbers)]


def pick(
    x: NamedTensor,
    y: NamedTensor,
    rows: NDArray[np.int32],
    columns: NDArray[np.int32],
    scope: Scope,
    fill: float = 0.0,
) -> KernelLaunch:
    """Return the launch that takes one element for each result.

    Args:
        x: float32 planes.
        y: float32 results.
        rows: of each row of a result the one that it is; negative: ``fill``.
        columns: of each column.
        scope: where they lie.
        fill: what is outside.

    Raises:
        UnsuitedError: there is nothing to compute, or too much.
    """
    count = math.prod(y.shape)
    tables = scope.table(rows.reshape(-1)), scope.table(columns.reshape(-1))
    pointers = scope.read(x), scope.write(y), *tables
    numbers = (*_planes(x), *_planes(y), count, fill)
    return per_element("resize", "pick", count, *pointers, *numbers)


def _planes(value: NamedTensor) -> tuple[int, int]:
    height, width = (1, *value.shape)[-2:]
    return height, width


def _tables(axis: Resized, scope: Scope) -> tuple[DevicePointer, DevicePointer]:
    weights = axis.weights
    if weights is None:
        weights = np.ones(axis.indices.shape, np.float32)
    return scope.table(axis.indices), scope.table(weights)
