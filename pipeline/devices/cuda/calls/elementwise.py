"""Launches of kernels/elementwise.cu.

A result may lie in the memory of an input of the result's own shape: every thread reads its element and
then writes it. This holds for no other kernel of this package.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

from pipeline.devices.cuda.call import Call, Pointer
from pipeline.devices.cuda.calls.activation import Activated
from pipeline.devices.cuda.calls.launches import per_element
from pipeline.devices.cuda.calls.layouts import broadcast, collapse


class Unary(IntEnum):
    """As in the kernel; these are not fused into others, as activations are."""

    ABS = 0
    NEG = 1
    SQRT = 2
    RECIPROCAL = 3
    LOG = 4
    ERF = 5
    FLOOR = 6
    CEIL = 7
    #: To even where it is a half.
    ROUND = 8
    SIGN = 9
    SOFTSIGN = 10


class Binary(IntEnum):
    """As in the kernel."""

    ADD = 0
    SUB = 1
    MUL = 2
    DIV = 3
    POW = 4
    MIN = 5
    MAX = 6
    #: The right operand is the slope below zero.
    PRELU = 7


@dataclass(frozen=True)
class Operand:
    """A contiguous float32 tensor."""

    pointer: Pointer
    shape: tuple[int, ...]


def activate(x: Pointer, y: Pointer, count: int, activated: Activated) -> Call:
    """Return the launch of an activation on ``count`` float32.

    Raises:
        ValueError: there are none, or more than kernels can count.
    """
    return per_element("elementwise", "activate_elements", count, x, y, count, *activated.tail)


def unary(x: Pointer, y: Pointer, count: int, operation: Unary) -> Call:
    """Return the launch of ``operation`` on ``count`` float32.

    Raises:
        ValueError: there are none, or more than kernels can count.
    """
    return per_element("elementwise", "unary", count, x, y, count, int(operation))


def binary(
    operation: Binary, a: Operand, b: Operand, y: Operand, activated: Activated | None = None
) -> Call:
    """Return the launch of ``operation`` on ``a`` and ``b``, and of an activation on the result.

    ``y`` has the shape that both broadcast to.

    Raises:
        ValueError: too many elements, or more than six axes that cannot be joined.
    """
    count = math.prod(y.shape)
    end = (int(operation), *(activated or Activated()).tail)
    if math.prod(a.shape) == math.prod(b.shape) == count:
        pointers = (a.pointer, b.pointer, y.pointer)
        return per_element("elementwise", "binary", count, *pointers, count, *end)
    for one, other, left in ((a, b, 0), (b, a, 1)):
        parts = _period(other.shape, y.shape)
        if math.prod(one.shape) == count and parts is not None:
            pointers = (one.pointer, other.pointer, y.pointer)
            numbers = (count, *parts, left)
            return per_element("elementwise", "binary_periodic", count, *pointers, *numbers, *end)
    layout = collapse(y.shape, broadcast(a.shape, y.shape), broadcast(b.shape, y.shape))
    packed = (layout.rank, *layout.numbers)
    pointers = (a.pointer, b.pointer, y.pointer)
    return per_element("elementwise", "binary_broadcast", count, *pointers, packed, count, *end)


def _period(shape: Sequence[int], target: Sequence[int]) -> tuple[int, int] | None:
    """Return how many neighbours share an element and how many elements come in turn, if so."""
    layout = collapse(target, broadcast(shape, target))
    steps = layout.strides[0]
    moving = [axis for axis, step in enumerate(steps) if step]
    if not moving:
        return 1, 1
    if len(moving) > 1:
        return None
    # What is inside the moving axis is one axis at most, joined: all its strides are 0.
    return math.prod(layout.sizes[: moving[0]]), layout.sizes[moving[0]]
