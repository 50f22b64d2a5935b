"""Products of matrices."""

import math

from pipeline.devices.cuda.call import Call
from pipeline.devices.cuda.calls.layouts import broadcast
from pipeline.devices.cuda.calls.matrix import Addend, Factors, fully_connected, multiply
from pipeline.devices.cuda.lowering.errors import UnsuitedError
from pipeline.devices.cuda.lowering.handlers.activation import fused_activation
from pipeline.devices.cuda.lowering.handlers.base import Handler
from pipeline.devices.cuda.lowering.node import Node
from pipeline.devices.cuda.lowering.scope import Scope


def _gemm(node: Node, scope: Scope) -> list[Call]:
    """Gemm, and FusedGemm: alpha * A B + beta * C; weights that lie by rows have a kernel of their own."""
    a, b, c, y = node.input(0), node.input(1), node.optional(2), node.output
    transposed = bool(node.attribute("transA", 0)), bool(node.attribute("transB", 0))
    rows, depth = _turned(scope.shape(a), transposed[0])
    columns = _turned(scope.shape(b), transposed[1])[1]
    scale, bias_scale = (float(node.attribute(name, 1.0)) for name in ("alpha", "beta"))
    strides = None if c is None else broadcast(scope.shape(c), (rows, columns))
    bias = None if c is None else scope.read(c)
    pointers = scope.read(a), scope.read(b), scope.write(y)
    then = fused_activation(node)
    if transposed == (False, True) and (strides is None or strides == (0, 1)):
        return [
            fully_connected(
                *pointers,
                bias,
                images=rows,
                depth=depth,
                outputs=columns,
                scale=scale,
                bias_scale=bias_scale,
                activated=then,
            )
        ]
    addend = None
    if bias is not None and strides is not None:
        addend = Addend(bias, (0, strides[0], strides[1]), bias_scale)
    factors = Factors(rows, columns, depth, 1, transposed)
    return [multiply(*pointers, factors, addend=addend, scale=scale, activated=then)]


def _turned(shape: tuple[int, ...], transposed: bool) -> tuple[int, int]:
    first, second = shape
    return (second, first) if transposed else (first, second)


def _matmul(node: Node, scope: Scope) -> list[Call]:
    """MatMul: a vector is a matrix of one row or column; the axes before the last two are a batch."""
    a, b, y = node.input(0), node.input(1), node.output
    left, right = scope.shape(a), scope.shape(b)
    left = (1, *left) if len(left) == 1 else left
    right = (*right, 1) if len(right) == 1 else right
    pointers = scope.read(a), scope.read(b), scope.write(y)
    return [multiply(*pointers, _factors(left, right))]


def _factors(left: tuple[int, ...], right: tuple[int, ...]) -> Factors:
    """Return the product as kernels take it.

    Raises:
        UnsuitedError: the batches broadcast along some axes only.
    """
    rows, depth, columns = left[-2], left[-1], right[-1]
    batches = math.prod(left[:-2]), math.prod(right[:-2])
    if batches[1] == 1:
        return Factors(batches[0] * rows, columns, depth)
    strides = rows * depth, depth * columns
    if batches[0] == 1:
        return Factors(rows, columns, depth, batches[1], strides=(0, strides[1]))
    if [n for n in left[:-2] if n > 1] == [n for n in right[:-2] if n > 1]:
        return Factors(rows, columns, depth, batches[0], strides=strides)
    raise UnsuitedError(f"batches {list(left[:-2])} and {list(right[:-2])}")


OPERATORS: dict[str, Handler] = {"Gemm": _gemm, "MatMul": _matmul}
MICROSOFT_OPERATORS: dict[str, Handler] = {"FusedGemm": _gemm}
