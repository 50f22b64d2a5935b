"""Quantised tasks as the library's structures: without addresses, then placed in memory."""

import ctypes
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import numpy as np
from numpy.typing import NDArray

from models.network.operators.quantised import (
    Concatenation,
    Quantised,
    QuantisedAverage,
    QuantisedLayer,
    QuantisedTask,
    Scaling,
    Sum,
)
from models.network.windows import Windows
from pipeline.devices.interface.native import CTYPES, FLIP

_ScaledStruct, _LayerStruct, _AdditionStruct, _PictureStruct, _JoinedStruct, _PoolStruct = (
    CTYPES.structures[name] for name in ("scaled", "layer", "addition", "picture", "joined", "pool")
)


class TaskStruct(ctypes.Structure):
    """`struct task`."""

    _fields_ = CTYPES.structures["task"]._fields_


class AverageStruct(ctypes.Structure):
    """`struct average`."""

    _fields_ = CTYPES.structures["average"]._fields_


# Constants, tasks and their places.

_ALIGNMENT = 16

#: The addresses of tensors, by number.
Places = Sequence[int]


def constant_bytes(found: Quantised, n_inputs: int) -> int:
    """Return how many bytes constants take beside the graph of ``found``, a piece of ``n_inputs``."""
    return sum(map(_aligned, _moved(found, n_inputs)))


def constants_in(graph: bytes, found: Quantised, n_inputs: int) -> tuple[object, Places]:
    """Return the addresses of the constants of ``found``, and what has to be kept for them.

    Bytes are read where they lie in ``graph``. Larger numbers lie anywhere there: they are in a block of
    their own.
    """
    sizes = _moved(found, n_inputs)
    starts = [*accumulate(map(_aligned, sizes), initial=0)]
    block, graph_bytes = np.empty(starts[-1], np.uint8), np.frombuffer(graph, np.uint8)
    first, first_of_graph = block.ctypes.data, graph_bytes.ctypes.data
    addresses = []
    for start, place, size in zip(starts, found.constants, sizes, strict=False):
        block[start : start + size] = graph_bytes[place : place + size]
        addresses.append(first + start if size else first_of_graph + place)
    return (block, graph), addresses


def _moved(found: Quantised, n_inputs: int) -> list[int]:
    """Return the bytes of each constant that is numbers of several bytes, else 0."""
    sizes = [0] * len(found.constants)
    for tensor in found.tensors():
        if tensor.number >= n_inputs and np.dtype(tensor.dtype).itemsize > 1:
            sizes[tensor.number - n_inputs] = tensor.n_bytes
    return sizes


def _aligned(n_bytes: int) -> int:
    return -(-n_bytes // _ALIGNMENT) * _ALIGNMENT


def unplaced(found: QuantisedTask, parts: int) -> TaskStruct:
    """Return ``found`` without addresses, in ``parts`` parts; groups and rows are yet to be chosen."""
    task = TaskStruct(
        n_layers=len(found.layers),
        depthwise=found.depthwise,
        first_row=0,
        end_row=found.result.shape[1],
        n_parts=parts,
        n_places=parts,
    )
    for at, layer in enumerate(found.layers):
        task.layers[at] = _layer(layer)
    if found.pool is not None:
        task.pool = _pool(found.pool)
    # Only whether there are others counts before they are bound.
    if found.addition is not None:
        task.addition = _AdditionStruct(other=1)
    if found.joined is not None:
        task.joined = _JoinedStruct(count=len(found.joined.parts))
    if found.rectangle is not None:
        task.picture = _PictureStruct(planes=1, made=_scaled(found.rectangle.made, ()))
    return task


def place(task: TaskStruct, found: QuantisedTask, places: Places, made: int) -> None:
    """Write the addresses of all but the source into ``task``, whose result is to lie at ``made``."""
    task.made = made
    task.table = None if found.table is None else places[found.table.values]
    for at, layer in enumerate(found.layers):
        layer_struct = task.layers[at]
        layer_struct.weights = places[layer.weights]
        layer_struct.bias = None if layer.bias is None else places[layer.bias]
        layer_struct.given, layer_struct.weight, layer_struct.made = (
            _scaled(each, places) for each in (layer.given, layer.weight, layer.made)
        )
    if found.rectangle is not None:
        task.picture.made = _scaled(found.rectangle.made, places)
    if found.joined is not None:
        task.joined = _joined(found.joined, places)
    if found.addition is not None:
        task.addition = _addition(found.addition, places)


def point(
    task: TaskStruct,
    found: QuantisedTask,
    source: NDArray[Any],
    first_row: int = 0,
    first_column: int = 0,
) -> None:
    """Have ``task`` read ``source``; of planes it has what lies from that row and that column on."""
    if found.rectangle is None:
        task.given = source.ctypes.data
        return
    _, _, rows, columns = source.shape
    task.picture.planes = source.ctypes.data
    task.picture.plane, task.picture.line = rows * columns, columns
    task.picture.first_line = first_row - found.rectangle.first_row
    task.picture.first_column = found.rectangle.first_column - first_column


def placed_average(found: QuantisedAverage, places: Places, made: int) -> AverageStruct:
    """Return ``found`` on ``places``, whose result is to lie at ``made``."""
    return AverageStruct(
        given=places[found.source],
        made=made,
        source=_scaled(found.given, places),
        target=_scaled(found.made, places),
        channels=found.channels,
        pixels=found.pixels,
    )


def _addition(of: Sum, places: Places) -> ctypes.Structure:
    return _AdditionStruct(
        *(_scaled(each, places) for each in (of.first, of.second, of.made)),
        places[of.other],
        of.over,
    )


def _joined(of: Concatenation, places: Places) -> ctypes.Structure:
    joined = _JoinedStruct(count=len(of.parts), made=_scaled(of.made, places))
    for at, part in enumerate(of.parts):
        joined.channels[at] = part.channels
        joined.parts[at] = places[part.source]
        joined.given[at] = _scaled(part.given, places)
    return joined


def _scaled(of: Scaling, places: Places) -> ctypes.Structure:
    flip = FLIP if of.signed else 0
    if not places:
        return _ScaledStruct(flip=flip)
    return _ScaledStruct(places[of.scale], places[of.zero], flip)


def _pool(of: Windows) -> ctypes.Structure:
    rows, columns = of.axes
    made_height, made_width = of.result
    return _PoolStruct(
        kernel_y=rows.kernel,
        kernel_x=columns.kernel,
        stride_y=rows.stride,
        stride_x=columns.stride,
        above=rows.before,
        left=columns.before,
        made_height=made_height,
        made_width=made_width,
    )


def _layer(of: QuantisedLayer) -> ctypes.Structure:
    rows, columns = of.windows.axes
    (height, width), (made_height, made_width) = of.windows.size, of.windows.result
    return _LayerStruct(
        given=_scaled(of.given, ()),
        weight=_scaled(of.weight, ()),
        made=_scaled(of.made, ()),
        scales_apart=of.scales_apart,
        zeros_apart=of.zeros_apart,
        by_inputs=of.by_inputs,
        depthwise=of.depthwise,
        channels=of.channels,
        filters=of.filters,
        kernel_y=rows.kernel,
        kernel_x=columns.kernel,
        stride_y=rows.stride,
        stride_x=columns.stride,
        step_y=rows.dilation,
        step_x=columns.dilation,
        above=rows.before,
        left=columns.before,
        height=height,
        width=width,
        made_height=made_height,
        made_width=made_width,
    )
