"""Activations that ONNX Runtime computes slowly, as models/network/patterns.py writes them.

Mish is x tanh(softplus(x)). ONNX Runtime runs it as these three, and its Softplus takes nearly as long as
the convolutions around it. With y = -x and t = logistic(y)^2 it is y - y / (0.5 + 0.5 t), whose affine step
is a HardSigmoid that never meets its bounds: equal to 1e-6 of the largest |x|, in a fifth of the time. What
makes x makes -x instead where it can, a convolution or batch norm with weights of the other sign.
"""

import functools
from typing import Any

import numpy as np

from models.compiler.optimising.by_onnx import element_types
from models.graphs.graph import Graph
from models.graphs.rewriter import Rewriter
from models.network.activations import Activation
from models.network.catalogue import traits_of
from models.network.catalogue.functions import activation_of
from models.network.names import Op
from models.network.node import Node
from models.network.patterns import REWRITTEN, FoundOperator, Pattern, activations_in


class RewriteActivations(Rewriter):
    """Replaces every activation, of one node or several, that has another form."""

    def __init__(self, graph: Graph) -> None:
        super().__init__(graph)
        activations = rewritable(graph).values()
        # By what each makes: what it is, and of which value.
        self._found = {
            parts[-1].output: (activation, parts[0].inputs[0]) for activation, parts in activations
        }
        self._gone = {name for _, parts in activations for node in parts for name in node.made}
        self._negated = {
            parts[0].inputs[0]
            for activation, parts in activations
            if activation.kind == "mish" and self._can_negate(parts)
        }

    def replaced(self, node: Node) -> list[Node] | None:
        output = next(iter(node.made), "")
        if output in self._found:
            return self._written(*self._found[output], output)
        if not self._negated.isdisjoint(node.outputs):
            return self._negative(node)
        return [] if output in self._gone else None

    def _can_negate(self, parts: list[Node]) -> bool:
        """Return whether weights alone say the sign of what nothing but the Mish ``parts`` reads."""
        x = parts[0].inputs[0]
        maker = self.makers.get(x)
        signed = [] if maker is None or maker.domain else _signed(maker)
        if maker is None or not signed or x in self.outputs:
            return False
        own = {name for part in parts for name in part.made}
        return (
            all(maker.inputs[position] in self.constants for position in signed)
            and len(maker.made) == 1
            and all(own.issuperset(reader.made) for reader in self.readers[x])
        )

    def _negative(self, maker: Node) -> list[Node]:
        """Return nodes that make what ``maker`` makes, negative; ONNX Runtime folds constants."""
        inputs, nodes = list(maker.inputs), []
        for position in _signed(maker):
            name = self.fresh(f"{maker.output}/-{position}")
            nodes.append(self.node(Op.Neg, [maker.inputs[position]], [name], name))
            inputs[position] = name
        return [*nodes, maker.replaced(inputs)]

    def _written(self, activation: Activation, x: str, output: str) -> list[Node]:
        """Return nodes that make ``output``, the ``activation`` of ``x``, each part of it once."""
        nodes: list[Node] = []

        def node(kind: Op, *inputs: str, **given: Any) -> str:
            name = self.fresh(f"{output}/{kind}")
            nodes.append(self.node(kind, inputs, [name], name, **given))
            return name

        def written(pattern: Pattern) -> str:
            if isinstance(pattern, FoundOperator):
                if pattern not in known:
                    inputs = [written(operand) for operand in pattern.operands]
                    known[pattern] = node(pattern.operator, *inputs, **dict(pattern.numbers))
            elif pattern != "x":
                number = activation.alpha if isinstance(pattern, str) else pattern
                return node(Op.Constant, value=np.array(number, np.float32))
            return known[pattern]

        is_negative = activation.kind != "mish" or x in self._negated
        known: dict[Pattern, str] = {"x": x if is_negative else node(Op.Neg, x)}
        written(REWRITTEN[activation.kind])
        return [*nodes[:-1], nodes[-1].replaced(outputs=[output])]


def _signed(node: Node) -> list[int]:
    """Return which inputs of ``node`` are there and carry the sign of the result."""
    operands = map(traits_of(node.operator).operand, range(len(node.inputs)))
    return [
        position
        for position, operand in enumerate(operands)
        if operand is not None and operand.carries_sign and node.inputs[position]
    ]


def rewritable(graph: Graph) -> dict[int, tuple[Activation, list[Node]]]:
    """Return activations that have another form, and their nodes, the one that reads x first.

    By the index of the last one.
    """
    numbers = {
        name: float(array.item())
        for name, array in graph.constants.items()
        if array.dtype == np.float32 and array.size == 1
    }
    captured = {name for node in graph.nodes for body in node.bodies for name in body.captured}
    types = functools.cache(lambda: element_types(graph))
    activations = {}
    for index, node in enumerate(graph.nodes):
        # Where the operator set of the file is older than Mish, the checker has not seen the node.
        alone = activation_of(node.operator, node.inputs, node.attributes, numbers.get)
        if alone is None or not _is_rewritten(alone) or len(node.outputs) != 1:
            continue
        # The numbers in a form are 32-bit floats.
        if not _has_numbers(REWRITTEN[alone.kind]) or types().get(node.inputs[0]) == "float32":
            activations[index] = alone, [node]
    for item in activations_in(graph.nodes, captured.union(graph.outputs), numbers.get):
        if _is_rewritten(item.activation):
            nodes = [graph.nodes[index] for index in item.nodes]
            activations[item.nodes[-1]] = item.activation, nodes
    return activations


def _is_rewritten(activation: Activation) -> bool:
    """Return whether it has another form, which is of positive numbers; a Mish of -x is in it."""
    return activation.kind in REWRITTEN and activation.alpha > 0


def _has_numbers(pattern: Pattern) -> bool:
    """Return whether ``pattern`` has constants, or parameters of the activation."""
    if isinstance(pattern, FoundOperator):
        return any(map(_has_numbers, pattern.operands))
    return pattern != "x"
