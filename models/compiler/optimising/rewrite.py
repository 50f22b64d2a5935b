"""Activations that ONNX Runtime computes slowly, as models/network/patterns.py writes them.

Mish is x tanh(softplus(x)). ONNX Runtime runs it as these three, and its Softplus takes nearly as long as
the convolutions around it. With y = -x and t = logistic(y)^2 it is y - y / (0.5 + 0.5 t), whose affine step
is a HardSigmoid that never meets its bounds: equal to 1e-6 of the largest |x|, in a fifth of the time. What
makes x makes -x instead where it can, a convolution or batch norm with weights of the other sign.
"""

import math
from typing import Any

import onnx
from onnx import helper, numpy_helper

from models.graphs.file import reference
from models.graphs.nodes import node_of, reads, replace_nodes
from models.network.activations import Activation, activation_of
from models.network.patterns import REWRITTEN, Made, Pattern, activations_in

_DOMAINS = ("", "ai.onnx")
# Inputs whose sign is that of the result.
_SIGNED = {"Conv": (1, 2), "BatchNormalization": (1, 2)}


def rewrite(model: onnx.ModelProto) -> None:
    """Replace every activation of ``model``, of one node or several, that has another form."""
    found = rewritable(model.graph)
    if not found:
        return
    used = {
        name for node in model.graph.node for name in (*node.input, *node.output, node.name) if name
    }
    nodes: list[onnx.NodeProto] = []
    gone = {id(node) for _, parts in found.values() for node in parts}
    makers = {name: node for node in model.graph.node for name in node.output}
    negated = {
        parts[0].input[0]
        for activation, parts in found.values()
        if activation.kind == "mish"
        and _can_negate(model.graph, makers.get(parts[0].input[0]), parts)
    }
    for index, node in enumerate(model.graph.node):
        if index in found:
            activation, (first, *_) = found[index]
            written = _Written(nodes, node.output[0], used)
            x = first.input[0]
            if activation.kind == "mish" and x not in negated:
                x = written.node("Neg", x)
            written.activation(activation, x)
        elif not negated.isdisjoint(node.output):
            nodes.extend(_negated(node, used))
        elif id(node) not in gone:
            nodes.append(node)
    replace_nodes(model, nodes)


def rewritable(graph: onnx.GraphProto) -> dict[int, tuple[Activation, list[onnx.NodeProto]]]:
    """Return activations that have another form, and their nodes, the one that reads x first.

    By the index of the last one.
    """
    nodes = list(graph.node)
    numbers = {
        tensor.name: float(numpy_helper.to_array(tensor).item())
        for tensor in graph.initializer
        if tensor.data_type == onnx.TensorProto.FLOAT
        and math.prod(tensor.dims) == 1
        and reference(tensor) is None
    }
    captured = {name for node in nodes for name in reads(node) if name not in node.input}
    kept = captured | {value.name for value in graph.output}
    plain = [node_of(node, {}) for node in nodes]
    found = {}
    for index, node in enumerate(plain):
        # Where the operator set of the file is older than Mish, nobody has checked the node.
        alone = activation_of(node.operator, node.inputs, node.attributes, numbers.get)
        if alone is not None and _is_rewritten(alone) and len(node.outputs) == 1:
            found[index] = alone, [nodes[index]]
    for item in activations_in(plain, kept, numbers.get):
        if _is_rewritten(item.activation):
            found[item.nodes[-1]] = item.activation, [nodes[index] for index in item.nodes]
    return found


def _is_rewritten(activation: Activation) -> bool:
    """Return whether it has another form, which is of positive numbers; a Mish of -x is in it."""
    return activation.kind in REWRITTEN and activation.alpha > 0


def _can_negate(
    graph: onnx.GraphProto, maker: onnx.NodeProto | None, parts: list[onnx.NodeProto]
) -> bool:
    """Return whether ``maker`` has constant weights and nothing but the Mish ``parts`` reads its result."""
    if maker is None or maker.domain not in _DOMAINS or maker.op_type not in _SIGNED:
        return False
    x = maker.output[0]
    constants = {tensor.name for tensor in graph.initializer}
    signed = [maker.input[i] for i in _SIGNED[maker.op_type] if maker.input[i : i + 1]]
    own = {id(part) for part in parts}
    elsewhere = any(x in reads(node) and id(node) not in own for node in graph.node)
    return (
        set(filter(None, signed)) <= constants
        and len([*filter(None, maker.output)]) == 1
        and not elsewhere
        and all(x != value.name for value in graph.output)
    )


def _negated(maker: onnx.NodeProto, used: set[str]) -> list[onnx.NodeProto]:
    """Return nodes that make what ``maker`` makes, negative; ONNX Runtime folds constants."""
    negative = onnx.NodeProto()
    negative.CopyFrom(maker)
    nodes = []
    for position in _SIGNED[maker.op_type]:
        if not any(maker.input[position : position + 1]):
            continue
        name = _unique(f"{maker.output[0]}/-{position}", used)
        nodes.append(helper.make_node("Neg", [maker.input[position]], [name], name))
        negative.input[position] = name
    return [*nodes, negative]


def _unique(name: str, used: set[str]) -> str:
    while name in used:
        name += "_"
    used.add(name)
    return name


class _Written:
    """Appends to ``nodes`` what makes ``output``."""

    def __init__(self, nodes: list[onnx.NodeProto], output: str, used: set[str]) -> None:
        self._nodes = nodes
        self._output = output
        self._used = used
        self._made: dict[Pattern, str] = {}

    def activation(self, activation: Activation, x: str) -> None:
        """Write ``activation`` of ``x``."""
        self._made = {"x": x}
        self._write(REWRITTEN[activation.kind], activation.alpha)
        self._nodes[-1].output[0] = self._output

    def node(self, kind: str, *inputs: str, **attributes: Any) -> str:
        """Add a node; return the name of what it makes, and its own."""
        name = _unique(f"{self._output}/{kind}", self._used)
        made = helper.make_node(kind, inputs, [name], name)
        made.attribute.extend(helper.make_attribute(key, attributes[key]) for key in attributes)
        self._nodes.append(made)
        return name

    def _write(self, pattern: Pattern, alpha: float) -> str:
        """Write what ``pattern`` says, each part once; return the name of it."""
        if isinstance(pattern, Made):
            if pattern not in self._made:
                inputs = [self._write(operand, alpha) for operand in pattern.operands]
                numbers = dict(pattern.numbers)
                self._made[pattern] = self.node(pattern.operator, *inputs, **numbers)
        elif pattern != "x":
            number = alpha if isinstance(pattern, str) else pattern
            tensor = helper.make_tensor("", onnx.TensorProto.FLOAT, (), [number])
            return self.node("Constant", value=tensor)
        return self._made[pattern]
