"""Operators that ONNX Runtime computes slowly, in other words that it computes fast.

Mish is x tanh(softplus(x)). ONNX Runtime runs it as these three, and its Softplus takes nearly as long as
the convolutions around it. With y = -x and t = logistic(y)^2 it is y - y / (0.5 + 0.5 t), whose affine step
is a HardSigmoid that never meets its bounds: equal to 1e-6 of the largest |x|, in a fifth of the time. What
makes x makes -x instead where it can, a convolution or batch norm with weights of the other sign.
"""

import math

import onnx
from onnx import helper, numpy_helper

from models.graphs.file import reference
from models.graphs.nodes import node_of, reads, replace_nodes
from models.network.activations import Activation
from models.network.patterns import activations_in

_DOMAINS = ("", "ai.onnx")
# Inputs whose sign is that of the result.
_SIGNED = {"Conv": (1, 2), "BatchNormalization": (1, 2)}


def rewrite(model: onnx.ModelProto) -> None:
    """Replace every Mish of ``model``, and every Softplus, Tanh, Mul that make one."""
    found = mishes(model.graph)
    if not found:
        return
    used = {
        name for node in model.graph.node for name in (*node.input, *node.output, node.name) if name
    }
    nodes: list[onnx.NodeProto] = []
    gone = {id(node) for parts in found.values() for node in parts}
    makers = {name: node for node in model.graph.node for name in node.output}
    negated = {
        parts[0].input[0]: index
        for index, parts in found.items()
        if _can_negate(model.graph, makers.get(parts[0].input[0]), parts)
    }
    for index, node in enumerate(model.graph.node):
        if index in found:
            x = found[index][0].input[0]
            nodes.extend(_fast_mish(x, node.output[0], x in negated, used))
        elif negated.keys() & set(node.output):
            nodes.extend(_negated(node, used))
        elif id(node) not in gone:
            nodes.append(node)
    replace_nodes(model, nodes)


def mishes(graph: onnx.GraphProto) -> dict[int, list[onnx.NodeProto]]:
    """Return the nodes of each Mish, the one that reads x first, by the index of the last one."""
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
    found = {
        # Where the operator set of the file is older than Mish, nobody has checked the node.
        index: [node]
        for index, node in enumerate(nodes)
        if (node.op_type, len(node.input), len(node.output)) == ("Mish", 1, 1)
        and node.domain in _DOMAINS
    }
    plain = [node_of(node, {}) for node in nodes]
    for item in activations_in(plain, kept, numbers.get):
        if item.activation == Activation("mish", 1.0):
            found[item.nodes[-1]] = [nodes[index] for index in item.nodes]
    return found


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


def _fast_mish(x: str, output: str, is_negative: bool, used: set[str]) -> list[onnx.NodeProto]:
    def node(kind: str, inputs: list[str], result: str, **attributes: float) -> onnx.NodeProto:
        made = helper.make_node(kind, inputs, [result], _unique(f"{output}/{kind}", used))
        made.attribute.extend(helper.make_attribute(key, attributes[key]) for key in attributes)
        return made

    y, logistic, square, half, double = (
        _unique(f"{output}/{role}", used) for role in ("-x", "s", "t", "h", "2y")
    )
    before = [] if is_negative else [node("Neg", [x], y)]
    y = x if is_negative else y
    return [
        *before,
        node("Sigmoid", [y], logistic),
        node("Mul", [logistic, logistic], square),
        node("HardSigmoid", [square], half, alpha=0.5, beta=0.5),
        node("Div", [y, half], double),
        node("Sub", [y, double], output),
    ]
