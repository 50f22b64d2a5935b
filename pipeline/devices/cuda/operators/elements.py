"""Launches of kernels/elementwise.cu: functions of each element, arithmetic with broadcasting.

A result may lie in the memory of an input of the result's own shape: every thread reads its element and
then writes it. Of other kernels only those of batch norms and, for what they add, convolutions do so.
"""

import math
from collections.abc import Sequence

import numpy as np

from models.network.activations import Activation
from models.network.node import NamedTensor, UnsuitedError
from models.network.operators.movement import broadcast_strides
from models.network.operators.reading import Combine, Map
from pipeline.devices.cuda.call import KernelLaunch
from pipeline.devices.cuda.operators.launches import activation_arguments, collapse, per_element
from pipeline.devices.cuda.scope import Scope
from pipeline.devices.cuda.sources import enumerators

#: The numbers of arithmetic in the kernel.
ARITHMETIC = enumerators("elementwise.cu", "Arithmetic")


def mapped(it: Map, scope: Scope) -> list[KernelLaunch]:
    """Return the launch of a function of each element."""
    return [_activated(it.x, it.y, it.function, scope)]


def combined(it: Combine, scope: Scope) -> list[KernelLaunch]:
    """Return the launches that join operands, one or more, from the left."""
    if it.kind not in ARITHMETIC:
        raise UnsuitedError(f"no kernel has {it.kind}")
    left, *others = it.operands
    if not others:
        return [_activated(left, it.y, it.activation, scope)]
    calls = []
    for right in others[:-1]:
        joined = scope.temporary(np.broadcast_shapes(left.shape, right.shape))
        calls.append(_joined(Combine(kind=it.kind, operands=(left, right), y=joined), scope))
        left = joined
    last = Combine(kind=it.kind, operands=(left, others[-1]), y=it.y, activation=it.activation)
    return [*calls, _joined(last, scope)]


def _activated(
    x: NamedTensor, y: NamedTensor, activation: Activation | None, scope: Scope
) -> KernelLaunch:
    count, end = math.prod(y.shape), activation_arguments(activation)
    pointers = scope.read(x), scope.write(y)
    return per_element("elementwise", "activate_elements", count, *pointers, count, *end)


def _joined(it: Combine, scope: Scope) -> KernelLaunch:
    """Return the launch for two operands, by the kernel for how they broadcast."""
    (a, b), shape = it.operands, it.y.shape
    count = math.prod(shape)
    pointers = scope.read(a), scope.read(b), scope.write(it.y)
    end = (ARITHMETIC.index(it.kind), *activation_arguments(it.activation))
    counts = math.prod(a.shape), math.prod(b.shape)
    if counts == (count, count):
        return per_element("elementwise", "binary", count, *pointers, count, *end)
    for left, other in ((0, b), (1, a)):
        parts = _period(other.shape, shape)
        if counts[left] == count and parts is not None:
            places = (*pointers[1::-1], pointers[2]) if left else pointers
            numbers = (count, *parts, left)
            return per_element("elementwise", "binary_periodic", count, *places, *numbers, *end)
    layout = collapse(shape, *(broadcast_strides(each.shape, shape) for each in it.operands))
    packed = (layout.rank, *layout.numbers)
    return per_element("elementwise", "binary_broadcast", count, *pointers, packed, count, *end)


def _period(shape: Sequence[int], target: Sequence[int]) -> tuple[int, int] | None:
    """Return how many neighbours share an element and how many elements come in turn, if so."""
    layout = collapse(target, broadcast_strides(shape, target))
    steps = layout.strides[0]
    moving = [axis for axis, step in enumerate(steps) if step]
    if not moving:
        return 1, 1
    if len(moving) > 1:
        return None
    # What is inside the moving axis is one axis at most, joined: all its strides are 0.
    return math.prod(layout.sizes[: moving[0]]), layout.sizes[moving[0]]
