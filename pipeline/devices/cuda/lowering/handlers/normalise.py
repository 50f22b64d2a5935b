"""Operators that scale numbers by other numbers: norms, softmax."""

import math

from pipeline.devices.cuda.call import Call, Pointer
from pipeline.devices.cuda.calls.normalise import (
    Channels,
    Response,
    Statistics,
    batch_normalise,
    group_normalise,
    response_normalise,
)
from pipeline.devices.cuda.calls.softmax import softmax
from pipeline.devices.cuda.lowering.errors import UnsuitedError
from pipeline.devices.cuda.lowering.handlers.activation import fused_activation
from pipeline.devices.cuda.lowering.handlers.base import Handler, axis_of
from pipeline.devices.cuda.lowering.node import Node
from pipeline.devices.cuda.lowering.scope import Scope

# Before this opset a softmax saw its input as a matrix, cut in two at its axis.
_SOFTMAX_OF_ONE_AXIS = 13
# Before this one GroupNormalization had a scale for each group instead of each channel.
_SCALE_OF_CHANNELS = 21


def _channels(shape: tuple[int, ...]) -> Channels:
    """Return [N, C, ...] as kernels take it."""
    return Channels(math.prod(shape), shape[1], math.prod(shape[2:]))


def _batch_norm(node: Node, scope: Scope) -> list[Call]:
    node.require("training_mode", 0)
    node.require("spatial", 1)
    x, y = node.input(0), node.output
    names = [node.input(position) for position in range(1, 5)]
    shape, epsilon = _channels(scope.shape(x)), node.attribute("epsilon", 1e-5)
    if any(scope.shape(name) != (shape.channels,) for name in names):
        raise UnsuitedError("statistics of other shapes")
    then = fused_activation(node)
    statistics = Statistics(*map(scope.read, names))
    return [batch_normalise(scope.read(x), scope.write(y), statistics, shape, epsilon, then)]


def _parameters(node: Node, scope: Scope, length: int) -> tuple[Pointer | None, Pointer | None]:
    """Return where scale and bias lie, ``length`` numbers each; None where they are left out."""
    names = (node.optional(1), node.optional(2))
    for name in names:
        if name is not None and math.prod(scope.shape(name)) != length:
            raise UnsuitedError(f"parameters {list(scope.shape(name))}, not {length} of them")
    scale, bias = (None if name is None else scope.read(name) for name in names)
    return scale, bias


def _instance_norm(node: Node, scope: Scope) -> list[Call]:
    x, y = node.input(0), node.output
    shape = _channels(scope.shape(x))
    parameters = _parameters(node, scope, shape.channels)
    epsilon = node.attribute("epsilon", 1e-5)
    return [group_normalise(scope.read(x), scope.write(y), parameters, shape, shape.inner, epsilon)]


def _group_norm(node: Node, scope: Scope) -> list[Call]:
    if node.opset < _SCALE_OF_CHANNELS:
        raise UnsuitedError(f"parameters of groups (opset {node.opset})")
    x, y = node.input(0), node.output
    shape = _channels(scope.shape(x))
    length = shape.channels // int(node.attribute("num_groups")) * shape.inner
    parameters = _parameters(node, scope, shape.channels)
    epsilon = node.attribute("epsilon", 1e-5)
    return [group_normalise(scope.read(x), scope.write(y), parameters, shape, length, epsilon)]


def _layer_norm(node: Node, scope: Scope) -> list[Call]:
    """LayerNormalization: each number of a row has its own scale and bias."""
    x, y = node.input(0), node.output
    shape = scope.shape(x)
    length = math.prod(shape[axis_of(node.attribute("axis", -1), len(shape)) :])
    channels = Channels(math.prod(shape), length, 1)
    parameters = _parameters(node, scope, length)
    epsilon = node.attribute("epsilon", 1e-5)
    return [group_normalise(scope.read(x), scope.write(y), parameters, channels, length, epsilon)]


def _response_norm(node: Node, scope: Scope) -> list[Call]:
    x, y = node.input(0), node.output
    alpha, beta, bias = (
        node.attribute(name, default)
        for name, default in (("alpha", 1e-4), ("beta", 0.75), ("bias", 1.0))
    )
    shape = _channels(scope.shape(x))
    response = Response(int(node.attribute("size")), alpha, beta, bias)
    return [response_normalise(scope.read(x), scope.write(y), shape, response)]


def _softmax(logarithm: bool) -> Handler:
    def handle(node: Node, scope: Scope) -> list[Call]:
        x, y = node.input(0), node.output
        shape = scope.shape(x)
        flattens = node.opset < _SOFTMAX_OF_ONE_AXIS
        axis = axis_of(node.attribute("axis", 1 if flattens else -1), len(shape))
        outer, length, inner = shape[:axis], shape[axis : axis + 1], shape[axis + 1 :]
        if flattens:
            length, inner = shape[axis:], ()
        sizes = (math.prod(outer), math.prod(length), math.prod(inner))
        return [softmax(scope.read(x), scope.write(y), *sizes, logarithm)]

    return handle


OPERATORS: dict[str, Handler] = {
    "BatchNormalization": _batch_norm,
    "GroupNormalization": _group_norm,
    "InstanceNormalization": _instance_norm,
    "LRN": _response_norm,
    "LayerNormalization": _layer_norm,
    "LogSoftmax": _softmax(logarithm=True),
    "Softmax": _softmax(logarithm=False),
}
