"""Launches of strided.cu and resize.cu: copies between layouts, and planes of another size."""

import math

import numpy as np
from numpy.typing import NDArray

from models.network.node import NamedTensor, UnsuitedError
from models.network.operators.movement import Copy
from models.network.operators.reading import Gather, Movement, Pad, Resize
from models.network.operators.resizing import Resized
from pipeline.devices.cuda.call import DevicePointer, KernelLaunch
from pipeline.devices.cuda.operators.launches import MAX_ELEMENTS, collapse, per_element
from pipeline.devices.cuda.scope import Scope
from pipeline.devices.interface.cuda import packed

# Launches of kernels/resize.cu: planes of another size, by tables of what to read.


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
        return [_pick(it.x, it.y, rows.indices, columns.indices, scope)]
    count = math.prod(it.y.shape)
    tables = (*_tables(rows, scope), *_tables(columns, scope))
    taps = (rows.indices.shape[1], columns.indices.shape[1])
    pointers = scope.read(it.x), scope.write(it.y), *tables
    numbers = (*_planes(it.x), *_planes(it.y), *taps, count)
    return [per_element("resize", "interpolate", count, *pointers, *numbers)]


def _pick(
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


# Launches of kernels/strided.cu: copies between layouts, which movement is made of.

_BYTES_A_THREAD = 16
#: Of an element of the kernel for places in any order.
_WORD_BYTES = 4


def moved(it: Movement, scope: Scope) -> list[KernelLaunch]:
    """Return the launches of copies in equal steps."""
    return [copied(each, scope) for each in it.copies]


def copied(it: Copy, scope: Scope) -> KernelLaunch:
    """Return the launch of a copy; ``x`` and ``y`` do not overlap.

    Raises:
        UnsuitedError: too many elements, or more than six axes that cannot be joined.
    """
    item_bytes, count = it.x.item_bytes, math.prod(it.sizes)
    source = scope.read(it.x).moved(it.start * item_bytes)
    target = scope.write(it.y).moved(it.place * item_bytes)
    layout = collapse(it.sizes, it.read, it.written)
    if count == 1 or layout.strides == ((1,), (1,)):
        return copy_bytes(source, target, count * item_bytes)
    read, written = layout.strides
    members = packed(
        "CopyLayout", rank=layout.rank, sizes=layout.sizes, source=read, target=written
    )
    function = f"copy_strided_{item_bytes}"
    return per_element("strided", function, count, source, target, members, count)


def copy_bytes(source: DevicePointer, target: DevicePointer, n_bytes: int) -> KernelLaunch:
    """Return the launch that copies ``n_bytes`` in a row.

    Raises:
        UnsuitedError: there are none, or more than kernels can count.
    """
    if n_bytes > MAX_ELEMENTS:
        raise UnsuitedError(f"{n_bytes} bytes")
    threads = -(-n_bytes // _BYTES_A_THREAD)
    return per_element("strided", "copy_bytes", threads, source, target, n_bytes)


def gathered(it: Gather, scope: Scope) -> list[KernelLaunch]:
    """Return the launches of a Gather: a copy for places in equal steps, a table for others."""
    copies = list(it.copies())
    length, chosen = it.x.shape[it.axis], len(it.places)
    words, rest = divmod(math.prod(it.x.shape[it.axis + 1 :]) * it.x.item_bytes, _WORD_BYTES)
    if len(copies) == 1 or rest:
        return [copied(each, scope) for each in copies]
    count = math.prod(it.x.shape[: it.axis]) * chosen * words
    pointers = scope.read(it.x), scope.write(it.y), scope.table(np.array(it.places, np.int32))
    numbers = (count, length, chosen, words)
    return [per_element("strided", "gather", count, *pointers, *numbers)]


def padded(it: Pad, scope: Scope) -> list[KernelLaunch]:
    """Return the launches of a Pad: a table of what each place of a plane shows, or a copy into a constant.

    Raises:
        UnsuitedError: more than two axes have around them what is inside.
    """
    pads = list(zip(it.before, it.behind, strict=True))
    if not any(any(pad) for pad in pads[:-2]):
        shape = (1, *it.x.shape)
        planes = [(0, 0), *pads][-2:]
        rows, columns = (
            _sources(length, *pad, it.mode) for length, pad in zip(shape[-2:], planes, strict=True)
        )
        return [_pick(it.x, it.y, rows, columns, scope, it.value)]
    if it.mode != "constant":
        raise UnsuitedError(f"{it.mode} around more than two axes")
    count = math.prod(it.y.shape)
    filled = per_element("strided", "fill", count, scope.write(it.y), count, it.value)
    return [filled, copied(it.kept(), scope)]


def _sources(length: int, before: int, behind: int, mode: str) -> NDArray[np.int32]:
    """Return, for each place of a padded axis, the place it shows; -1: a constant."""
    places = np.arange(-before, length + behind)
    if mode == "constant":
        places[(places < 0) | (places >= length)] = -1
    elif mode == "edge":
        places = places.clip(0, length - 1)
    elif mode == "wrap":
        places %= length
    elif length > 1:
        period = 2 * (length - 1)
        places = np.abs((places + length - 1) % period - (length - 1))
    else:
        places[:] = 0
    return places.astype(np.int32)
