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
from models.graphs.nodes import copied, made, new_node, node_of, reads
from models.graphs.rewriting import Rewriter
from models.network.activations import Activation
from models.network.catalogue import traits_of
from models.network.catalogue.functions import activation_of
from models.network.names import Op, op_of
from models.network.patterns import REWRITTEN, FoundOperator, Pattern, activations_in


class RewriteActivations(Rewriter):
    """Replaces every activation, of one node or several, that has another form."""

    def __init__(self, model: onnx.ModelProto) -> None:
        super().__init__(model)
        activations = rewritable(model.graph).values()
        # By what each makes: what it is, and of which value.
        self._found = {
            parts[-1].output[0]: (activation, parts[0].input[0])
            for activation, parts in activations
        }
        self._gone = {name for _, parts in activations for node in parts for name in node.output}
        self._negated = {
            parts[0].input[0]
            for activation, parts in activations
            if activation.kind == "mish" and self._can_negate(parts)
        }

    def replaced(self, node: onnx.NodeProto) -> list[onnx.NodeProto] | None:
        output = made(node)[0] if made(node) else ""
        if output in self._found:
            return self._written(*self._found[output], output)
        if not self._negated.isdisjoint(node.output):
            return self._negative(node)
        return [] if output in self._gone else None

    def _can_negate(self, parts: list[onnx.NodeProto]) -> bool:
        """Return whether weights alone say the sign of what nothing but the Mish ``parts`` reads."""
        x = parts[0].input[0]
        maker = self.makers.get(x)
        signed = [] if maker is None or maker.domain else _signed(maker)
        if maker is None or not signed or x in self.outputs:
            return False
        own = {name for part in parts for name in part.output}
        return (
            all(maker.input[position] in self.tensors for position in signed)
            and len(made(maker)) == 1
            and all(own.issuperset(made(reader)) for reader in self.readers[x])
        )

    def _negative(self, maker: onnx.NodeProto) -> list[onnx.NodeProto]:
        """Return nodes that make what ``maker`` makes, negative; ONNX Runtime folds constants."""
        negative, nodes = copied(maker), []
        for position in _signed(maker):
            name = self.fresh(f"{maker.output[0]}/-{position}")
            nodes.append(new_node(Op.Neg, [maker.input[position]], [name], name))
            negative.input[position] = name
        return [*nodes, negative]

    def _written(self, activation: Activation, x: str, output: str) -> list[onnx.NodeProto]:
        """Return nodes that make ``output``, the ``activation`` of ``x``, each part of it once."""
        nodes: list[onnx.NodeProto] = []

        def node(kind: Op, *inputs: str, **given: Any) -> str:
            name = self.fresh(f"{output}/{kind}")
            nodes.append(new_node(kind, inputs, [name], name, **given))
            return name

        def written(pattern: Pattern) -> str:
            if isinstance(pattern, FoundOperator):
                if pattern not in known:
                    inputs = [written(operand) for operand in pattern.operands]
                    known[pattern] = node(Op(pattern.operator), *inputs, **dict(pattern.numbers))
            elif pattern != "x":
                number = activation.alpha if isinstance(pattern, str) else pattern
                tensor = helper.make_tensor("", onnx.TensorProto.FLOAT, (), [number])
                return node(Op.Constant, value=tensor)
            return known[pattern]

        is_negative = activation.kind != "mish" or x in self._negated
        known: dict[Pattern, str] = {"x": x if is_negative else node(Op.Neg, x)}
        written(REWRITTEN[activation.kind])
        nodes[-1].output[0] = output
        return nodes


def _signed(node: onnx.NodeProto) -> list[int]:
    """Return which inputs of ``node`` are there and carry the sign of the result."""
    operands = map(traits_of(op_of(node)).operand, range(len(node.input)))
    return [
        position
        for position, operand in enumerate(operands)
        if operand is not None and operand.carries_sign and node.input[position]
    ]


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
    activations = {}
    for index, node in enumerate(plain):
        # Where the operator set of the file is older than Mish, the checker has not seen the node.
        alone = activation_of(node.operator, node.inputs, node.attributes, numbers.get)
        if alone is not None and _is_rewritten(alone) and len(node.outputs) == 1:
            activations[index] = alone, [nodes[index]]
    for item in activations_in(plain, kept, numbers.get):
        if _is_rewritten(item.activation):
            activations[item.nodes[-1]] = item.activation, [nodes[index] for index in item.nodes]
    return activations


def _is_rewritten(activation: Activation) -> bool:
    """Return whether it has another form, which is of positive numbers; a Mish of -x is in it."""
    return activation.kind in REWRITTEN and activation.alpha > 0
