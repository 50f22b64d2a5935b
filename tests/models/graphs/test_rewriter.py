"""Passes over a graph: what they leave, and that nothing holds them."""

import gc
import weakref

from models.graphs.rewriter import Rewriter
from models.graphs.text import from_text
from models.network.fields import Array
from models.network.names import Op
from models.network.node import Node

GRAPH = from_text(
    """<ir_version: 9, opset_import: ["" : 17]> g (float[2] x) => (float[2] y) {
        y = Relu(x)
    }"""
)


class _Negated(Rewriter):
    """Puts two nodes that cancel before each one; adds their values in another order."""

    def replaced(self, node: Node) -> list[Node]:
        assert self.operator(node) is not None
        first, second = self.fresh("first"), self.fresh("second")
        size = self.values[node.inputs[0]]
        self.values |= {second: size, first: size, "unused": Array(dtype="float32", shape=(1,))}
        return [
            self.node(Op.Neg, node.inputs, [first]),
            self.node(Op.Neg, [first], [second]),
            node.replaced([second]),
        ]


def test_values_that_exist_lie_in_the_order_of_ports_and_nodes() -> None:
    graph = _Negated(GRAPH).run()
    assert [*graph.values] == ["x", "y", "first", "second"]


def test_a_pass_goes_with_its_last_reference() -> None:
    """It maps files; what refers to itself would keep them on disk until garbage is collected."""
    before = gc.isenabled()
    gc.disable()
    try:
        rewriter = _Negated(GRAPH)
        rewriter.run()
        reference = weakref.ref(rewriter)
        del rewriter
        assert reference() is None
    finally:
        (gc.enable if before else gc.disable)()
