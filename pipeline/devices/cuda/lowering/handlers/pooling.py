"""Pools with a window, in one or two spatial axes."""

import math

from pipeline.devices.cuda.call import Call
from pipeline.devices.cuda.calls.pooling import Pool, average_pool, max_pool
from pipeline.devices.cuda.lowering.errors import UnsuitedError
from pipeline.devices.cuda.lowering.handlers.base import Handler
from pipeline.devices.cuda.lowering.handlers.windows import planar
from pipeline.devices.cuda.lowering.node import Node
from pipeline.devices.cuda.lowering.scope import Scope


def _pool(node: Node, scope: Scope) -> tuple[int, Pool]:
    """Return how many planes there are, and the windows on them."""
    node.require("storage_order", 0)
    shape = scope.shape(node.input(0))
    frame = planar(node, node.attribute("kernel_shape"), shape)
    results = scope.shape(node.output)
    if math.prod(results[2:]) != math.prod(frame.result):
        raise UnsuitedError(f"windows give {list(frame.result)}, the output is {list(results)}")
    pool = Pool(
        *frame.size, *frame.result, frame.kernel, frame.strides, frame.pads, frame.dilations
    )
    return math.prod(shape[:2]), pool


def _max(node: Node, scope: Scope) -> list[Call]:
    planes, pool = _pool(node, scope)
    return [max_pool(scope.read(node.input(0)), scope.write(node.output), planes, pool)]


def _average(node: Node, scope: Scope) -> list[Call]:
    planes, pool = _pool(node, scope)
    counts = bool(node.attribute("count_include_pad", 0))
    x, y = scope.read(node.input(0)), scope.write(node.output)
    return [average_pool(x, y, planes, pool, counts)]


OPERATORS: dict[str, Handler] = {"MaxPool": _max, "AveragePool": _average}
