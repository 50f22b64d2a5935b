"""Operators on each element: activations, arithmetic with broadcasting."""

import math

import numpy as np
from onnx import helper

from models.graphs.activations import function_of
from pipeline.devices.cuda.call import Call
from pipeline.devices.cuda.calls.activation import Activated
from pipeline.devices.cuda.calls.elementwise import (
    Binary,
    Operand,
    Unary,
    activate,
    binary,
    unary,
)
from pipeline.devices.cuda.lowering.errors import UnsuitedError
from pipeline.devices.cuda.lowering.handlers.activation import activated, fused_activation
from pipeline.devices.cuda.lowering.handlers.base import Handler
from pipeline.devices.cuda.lowering.node import Node
from pipeline.devices.cuda.lowering.scope import Scope

# Before this opset the shape of the second operand said nothing about where it belongs.
_BROADCASTS = 7


def _activation(node: Node, scope: Scope) -> list[Call]:
    """One activation, of one node or of several."""
    x, y = node.input(0), node.output
    count = math.prod(scope.shape(x))
    then = fused_activation(node)
    if node.fusion is None:
        proto = helper.make_node(
            node.operator, node.inputs, node.outputs, domain=node.domain, **node.attributes
        )
        function = function_of(proto, scope.constant)
        if function is None:
            raise UnsuitedError("bounds that are not constant")
        then = activated(function)
    return [activate(scope.read(x), scope.write(y), count, then)]


def _unary(operation: Unary) -> Handler:
    def handle(node: Node, scope: Scope) -> list[Call]:
        x, y = node.input(0), node.output
        count = math.prod(scope.shape(x))
        return [unary(scope.read(x), scope.write(y), count, operation)]

    return handle


def _folded(operation: Binary) -> Handler:
    """Return a handler that joins inputs, one or more, from the left."""

    def handle(node: Node, scope: Scope) -> list[Call]:
        if node.opset < _BROADCASTS and node.attribute("broadcast"):
            raise UnsuitedError(f"broadcasting of opset {node.opset}")
        names = [name for name in node.inputs if name]
        operands = [Operand(scope.read(name), scope.shape(name)) for name in names]
        y = Operand(scope.write(node.output), scope.shape(node.output))
        if len(operands) == 1:
            return [activate(operands[0].pointer, y.pointer, math.prod(y.shape), Activated())]
        calls = []
        left = operands[0]
        for position, right in enumerate(operands[1:], 2):
            last = position == len(operands)
            shape = np.broadcast_shapes(left.shape, right.shape)
            result = y if last else Operand(scope.scratch(4 * math.prod(shape)), shape)
            then = fused_activation(node) if last else None
            calls.append(binary(operation, left, right, result, then))
            left = result
        return calls

    return handle


_ACTIVATIONS = (
    *("Clip", "Elu", "Exp", "Gelu", "HardSigmoid", "HardSwish", "LeakyRelu", "Mish", "Relu"),
    *("Sigmoid", "Softplus", "Swish", "Tanh"),
)
_UNARY = {
    "Abs": Unary.ABS,
    "Ceil": Unary.CEIL,
    "Erf": Unary.ERF,
    "Floor": Unary.FLOOR,
    "Log": Unary.LOG,
    "Neg": Unary.NEG,
    "Reciprocal": Unary.RECIPROCAL,
    "Round": Unary.ROUND,
    "Sign": Unary.SIGN,
    "Softsign": Unary.SOFTSIGN,
    "Sqrt": Unary.SQRT,
}
_BINARY = {
    "Add": Binary.ADD,
    "Div": Binary.DIV,
    "Max": Binary.MAX,
    "Min": Binary.MIN,
    "Mul": Binary.MUL,
    "PRelu": Binary.PRELU,
    "Pow": Binary.POW,
    "Sub": Binary.SUB,
    "Sum": Binary.ADD,
}
OPERATORS: dict[str, Handler] = {
    **dict.fromkeys(_ACTIVATIONS, _activation),
    **{name: _unary(operation) for name, operation in _UNARY.items()},
    **{name: _folded(operation) for name, operation in _BINARY.items()},
}
MICROSOFT_OPERATORS: dict[str, Handler] = dict.fromkeys(("Gelu", "QuickGelu"), _activation)
