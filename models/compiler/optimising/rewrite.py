"""Operators that ONNX Runtime computes slowly, in other words that it computes fast.

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
from models.graphs.nodes import copied, made, node_of, reads
from models.graphs.rewriting import Rewriter
from models.network.activations import Activation
from models.network.patterns import activations_in

# Inputs whose sign is that of the result.
_SIGNED = {"Conv": (1, 2), "BatchNormalization": (1, 2)}


class FastMish(Rewriter):
    """Replaces every Mish, and every Softplus, Tanh, Mul that make one."""

    def __init__(self, model: onnx.ModelProto) -> None:
        super().__init__(model)
        found = mishes(model.graph)
        #: What each is of, by what it makes.
        self._mishes = {parts[-1].output[0]: parts[0].input[0] for parts in found.values()}
        self._gone = {name for parts in found.values() for node in parts for name in node.output}
        self._negated = {parts[0].input[0] for parts in found.values() if self._can_negate(parts)}

    def replaced(self, node: onnx.NodeProto) -> list[onnx.NodeProto] | None:
        output = made(node)[0] if made(node) else ""
        if output in self._mishes:
            return self._fast(self._mishes[output], output)
        if not self._negated.isdisjoint(node.output):
            return self._negative(node)
        return [] if output in self._gone else None

    def _can_negate(self, parts: list[onnx.NodeProto]) -> bool:
        """Return whether weights alone say the sign of what nothing but the Mish ``parts`` reads."""
        x = parts[0].input[0]
        maker = self.makers.get(x)
        if maker is None or maker.domain or maker.op_type not in _SIGNED or x in self.outputs:
            return False
        signed = [maker.input[i] for i in _SIGNED[maker.op_type] if maker.input[i : i + 1]]
        own = {name for part in parts for name in part.output}
        return (
            all(name in self.tensors for name in signed if name)
            and len(made(maker)) == 1
            and all(own.issuperset(made(reader)) for reader in self.readers[x])
        )

    def _negative(self, maker: onnx.NodeProto) -> list[onnx.NodeProto]:
        """Return nodes that make what ``maker`` makes, negative; ONNX Runtime folds constants."""
        negative, nodes = copied(maker), []
        for position in _SIGNED[maker.op_type]:
            if any(maker.input[position : position + 1]):
                name = self.fresh(f"{maker.output[0]}/-{position}")
                nodes.append(helper.make_node("Neg", [maker.input[position]], [name], name))
                negative.input[position] = name
        return [*nodes, negative]

    def _fast(self, x: str, output: str) -> list[onnx.NodeProto]:
        def node(kind: str, inputs: list[str], result: str, **given: Any) -> onnx.NodeProto:
            name = self.fresh(f"{output}/{kind}")
            return helper.make_node(kind, inputs, [result], name, **given)

        y, logistic, square, half, double = (
            self.fresh(f"{output}/{role}") for role in ("-x", "s", "t", "h", "2y")
        )
        before = [] if x in self._negated else [node("Neg", [x], y)]
        y = y if before else x
        return [
            *before,
            node("Sigmoid", [y], logistic),
            node("Mul", [logistic, logistic], square),
            node("HardSigmoid", [square], half, alpha=0.5, beta=0.5),
            node("Div", [y, half], double),
            node("Sub", [y, double], output),
        ]


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
        if (node.op_type, len(node.input), len(node.output)) == ("Mish", 1, 1) and not node.domain
    }
    plain = [node_of(node, {}) for node in nodes]
    for item in activations_in(plain, kept, numbers.get):
        if item.activation == Activation("mish", 1.0):
            found[item.nodes[-1]] = [nodes[index] for index in item.nodes]
    return found
