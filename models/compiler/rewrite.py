"""Operators that ONNX Runtime computes slowly, in other words that it computes fast.

Mish is x tanh(softplus(x)). ONNX Runtime runs it as these three, and its Softplus takes nearly as long as
the convolutions around it. With t = logistic(-x)^2 it is x / (0.5 + 0.5 t) - x, whose affine step is a
HardSigmoid that never meets its bounds: equal to 1e-6 of the largest |x|, in a fifth of the time.
"""

import onnx
from onnx import helper

from models.onnx_nodes import reads

_DOMAINS = ("", "ai.onnx")


def rewrite(model: onnx.ModelProto) -> None:
    """Replace every Mish of ``model``, and every Softplus, Tanh, Mul that make one."""
    found = _mishes(model.graph)
    if not found:
        return
    used = {
        name for node in model.graph.node for name in (*node.input, *node.output, node.name) if name
    }
    nodes: list[onnx.NodeProto] = []
    gone = {id(node) for parts in found.values() for node in parts}
    for index, node in enumerate(model.graph.node):
        if index in found:
            nodes.extend(_fast_mish(found[index][0].input[0], node.output[0], used))
        elif id(node) not in gone:
            nodes.append(node)
    kept = [onnx.NodeProto.FromString(node.SerializeToString()) for node in nodes]
    del model.graph.node[:]
    model.graph.node.extend(kept)


def _mishes(graph: onnx.GraphProto) -> dict[int, list[onnx.NodeProto]]:
    """Return the nodes of each Mish, the one that reads x first, by the index of the last one."""
    nodes = list(graph.node)
    makers = {name: node for node in nodes for name in node.output}
    readers: dict[str, int] = {value.name: 1 for value in graph.output}
    for node in nodes:
        for name in reads(node):
            readers[name] = readers.get(name, 0) + 1
    found: dict[int, list[onnx.NodeProto]] = {}
    for index, node in enumerate(nodes):
        if node.domain in _DOMAINS and node.op_type == "Mish":
            found[index] = [node]
        if node.domain not in _DOMAINS or node.op_type != "Mul":
            continue
        for x, factor in (tuple(node.input), tuple(reversed(node.input))):
            tanh = makers.get(factor)
            if tanh is None or tanh.op_type != "Tanh":
                continue
            softplus = makers.get(tanh.input[0])
            if softplus is None or softplus.op_type != "Softplus":
                continue
            alone = readers[factor] == readers[tanh.input[0]] == 1
            if softplus.input[0] == x and alone:
                found[index] = [softplus, tanh, node]
    return found


def _fast_mish(x: str, output: str, used: set[str]) -> list[onnx.NodeProto]:
    def name(role: str) -> str:
        unique = f"{output}/{role}"
        while unique in used:
            unique += "_"
        used.add(unique)
        return unique

    def node(kind: str, inputs: list[str], result: str, **attributes: float) -> onnx.NodeProto:
        made = helper.make_node(kind, inputs, [result], name(kind))
        made.attribute.extend(helper.make_attribute(key, attributes[key]) for key in attributes)
        return made

    negative, logistic, square, half, double = map(name, ("-x", "s", "t", "h", "2x"))
    return [
        node("Neg", [x], negative),
        node("Sigmoid", [negative], logistic),
        node("Mul", [logistic, logistic], square),
        node("HardSigmoid", [square], half, alpha=0.5, beta=0.5),
        node("Div", [x, half], double),
        node("Sub", [double, x], output),
    ]
