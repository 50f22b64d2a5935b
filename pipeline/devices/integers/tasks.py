"""Quantised tasks as the library's structures: without addresses, then placed in memory."""

from collections.abc import Mapping
from typing import Any

from numpy.typing import NDArray

from pipeline.devices.integers.layers import (
    Concatenation,
    Maxima,
    QuantisedAverage,
    QuantisedLayer,
    QuantisedTask,
    Scaling,
    Sum,
)
from pipeline.devices.integers.structures import (
    Addition,
    Average,
    Joined,
    Layer,
    Picture,
    Pool,
    Scaled,
    Task,
)

_FLIP = 0x80

#: What lies in memory, by name.
Places = Mapping[str, Any]


def unplaced(found: QuantisedTask, parts: int) -> Task:
    """Return ``found`` without addresses, in ``parts`` parts; groups and rows are yet to be chosen."""
    task = Task(
        n_layers=len(found.layers),
        depthwise=found.depthwise,
        first_row=0,
        end_row=found.made_rows,
        n_parts=parts,
        n_places=parts,
    )
    for at, layer in enumerate(found.layers):
        task.layers[at] = _layer(layer)
    if found.pool is not None:
        task.pool = _pool(found.pool)
    # Only whether there are others counts before they are bound.
    if found.addition is not None:
        task.addition = Addition(other=1)
    if found.joined is not None:
        task.joined = Joined(count=len(found.joined.parts))
    if found.rectangle is not None:
        task.picture = Picture(planes=1, made=_scaled(found.rectangle.made, {}))
    return task


def place(task: Task, found: QuantisedTask, places: Places) -> None:
    """Write the addresses of all but the source into ``task``."""
    task.made = places[found.result].ctypes.data
    task.table = None if found.table is None else places[found.table].ctypes.data
    for at, layer in enumerate(found.layers):
        held = task.layers[at]
        held.weights = places[layer.weights].ctypes.data
        held.bias = None if layer.bias is None else places[layer.bias].ctypes.data
        held.given, held.weight, held.made = (
            _scaled(each, places) for each in (layer.given, layer.weight, layer.made)
        )
        held.scales_apart = places[layer.weight.scale].size > 1
        held.zeros_apart = places[layer.weight.zero].size > 1
    if found.rectangle is not None:
        task.picture.made = _scaled(found.rectangle.made, places)
    if found.joined is not None:
        task.joined = _joined(found.joined, places)
    if found.addition is not None:
        task.addition = _addition(found.addition, places)


def point(
    task: Task,
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


def placed_average(found: QuantisedAverage, places: Places) -> Average:
    """Return ``found`` on ``places``."""
    return Average(
        given=places[found.source].ctypes.data,
        made=places[found.result].ctypes.data,
        source=_scaled(found.given, places),
        target=_scaled(found.made, places),
        channels=found.channels,
        pixels=found.pixels,
    )


def _addition(of: Sum, places: Places) -> Addition:
    return Addition(
        *(_scaled(each, places) for each in (of.first, of.second, of.made)),
        places[of.other].ctypes.data,
        of.over,
    )


def _joined(of: Concatenation, places: Places) -> Joined:
    joined = Joined(count=len(of.parts), made=_scaled(of.made, places))
    for at, part in enumerate(of.parts):
        joined.channels[at] = part.channels
        joined.parts[at] = places[part.source].ctypes.data
        joined.given[at] = _scaled(part.given, places)
    return joined


def _scaled(of: Scaling, places: Places) -> Scaled:
    flip = _FLIP if of.signed else 0
    if not places:
        return Scaled(flip=flip)
    return Scaled(places[of.scale].ctypes.data, places[of.zero].ctypes.data, flip)


def _pool(of: Maxima) -> Pool:
    rows, columns = of.rows, of.columns
    return Pool(
        kernel_y=rows.kernel,
        kernel_x=columns.kernel,
        stride_y=rows.stride,
        stride_x=columns.stride,
        above=rows.before,
        left=columns.before,
        made_height=rows.made,
        made_width=columns.made,
    )


def _layer(of: QuantisedLayer) -> Layer:
    rows, columns = of.rows, of.columns
    return Layer(
        given=_scaled(of.given, {}),
        weight=_scaled(of.weight, {}),
        made=_scaled(of.made, {}),
        by_inputs=of.by_inputs,
        depthwise=of.depthwise,
        channels=of.channels,
        filters=of.filters,
        kernel_y=rows.kernel,
        kernel_x=columns.kernel,
        stride_y=rows.stride,
        stride_x=columns.stride,
        step_y=rows.step,
        step_x=columns.step,
        above=rows.before,
        left=columns.before,
        height=rows.given,
        width=columns.given,
        made_height=rows.made,
        made_width=columns.made,
    )
