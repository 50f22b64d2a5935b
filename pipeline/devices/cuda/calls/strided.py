"""Launches of kernels/strided.cu: copies between layouts."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from pipeline.devices.cuda.call import Call, Pointer
from pipeline.devices.cuda.calls.launches import MAX_ELEMENTS, per_element
from pipeline.devices.cuda.calls.layouts import collapse, contiguous

ITEM_BYTES = (1, 2, 4, 8)
_BYTES_A_THREAD = 16


@dataclass(frozen=True)
class View:
    """Elements of a tensor at ``pointer``: the first is ``offset`` elements behind it.

    ``strides`` count elements, one for each axis; they may be negative, and where the view is read 0.
    """

    pointer: Pointer
    strides: tuple[int, ...]
    offset: int = 0


def whole(pointer: Pointer, shape: Sequence[int]) -> View:
    """Return a view of all of a contiguous tensor."""
    return View(pointer, contiguous(shape))


def copy(shape: Sequence[int], source: View, target: View, item_bytes: int) -> Call:
    """Return the launch that copies ``source`` to ``target``, which must not overlap it.

    Args:
        shape: of both views, at least one element.
        source: what to read.
        target: what to write, every element once.
        item_bytes: of an element: 1, 2, 4 or 8.

    Raises:
        ValueError: too many elements, or more than six axes that cannot be joined.
    """
    count = math.prod(shape)
    begin = source.pointer.moved(source.offset * item_bytes)
    end = target.pointer.moved(target.offset * item_bytes)
    layout = collapse(shape, source.strides, target.strides)
    if count == 1 or layout.strides == ((1,), (1,)):
        return copy_bytes(begin, end, count * item_bytes)
    numbers = (layout.rank, *layout.numbers)
    return per_element("strided", f"copy_strided_{item_bytes}", count, begin, end, numbers, count)


def copy_bytes(source: Pointer, target: Pointer, n_bytes: int) -> Call:
    """Return the launch that copies ``n_bytes`` in a row.

    Raises:
        ValueError: there are none, or more than kernels can count.
    """
    if n_bytes > MAX_ELEMENTS:
        raise ValueError(f"{n_bytes} bytes")
    threads = -(-n_bytes // _BYTES_A_THREAD)
    return per_element("strided", "copy_bytes", threads, source, target, n_bytes)


def gather(
    x: Pointer, y: Pointer, indices: Pointer, shape: Sequence[int], axis: int, chosen: int
) -> Call:
    """Return the launch that takes places of one axis of a contiguous tensor, elements of 4 bytes.

    Args:
        x: the tensor, of ``shape``.
        y: the result: the same, but ``chosen`` long along ``axis``.
        indices: int32 [chosen], none of them negative.
        shape: of ``x``.
        axis: not negative.
        chosen: how many places.

    Raises:
        ValueError: the result is empty or too large.
    """
    inner = math.prod(shape[axis + 1 :])
    count = math.prod(shape[:axis]) * chosen * inner
    return per_element("strided", "gather", count, x, y, indices, count, shape[axis], chosen, inner)


def fill(y: Pointer, count: int, value: float) -> Call:
    """Return the launch that writes ``value`` to ``count`` float32.

    Raises:
        ValueError: there are none, or more than kernels can count.
    """
    return per_element("strided", "fill", count, y, count, float(value))
