"""Activations that are computed with the dense layer in front of them, chunk by chunk.

An activation whose kernel reads an element again after it has written it (Gelu) cannot lie over what it
reads. Behind a dense layer on tokens both are the largest values of a network. So the layer's chunks run
it: of what the layer makes there is a chunk at a time, which ONNX Runtime allocates.
"""

from models.compiler.analysis.node_groups import Fused, FusedNodes
from models.graphs.graph import Graph
from models.network.catalogue import traits_of
from models.network.names import Op
from models.runtime.kernels import kernel_of

#: Below this a value of its own costs less than what sessions of two nodes take.
MIN_BYTES = 256 << 10
#: The layer behind an activation has about as many weights as the one in front. A larger value takes more
#: than both, which are there at once where groups of channels run (docs/explanation/rows.md).
_LAYERS = 2
_IMAGE, _ROWS = 4, 2


def activation_groups(graph: Graph) -> Fused:
    """Return the dense layers on tokens that an activation follows, with it, by the layer's node."""
    return {
        index: FusedNodes(index, index + 2, None)
        for index in range(len(graph.nodes) - 1)
        if _is_dense(graph, index) and _is_activation(graph, index + 1)
    }


def _is_dense(graph: Graph, index: int) -> bool:
    """Return whether node ``index`` is a dense layer on tokens that only the next node reads."""
    layer = graph.nodes[index]
    value = graph.values.get(layer.output) if len(layer.made) == 1 else None
    if value is None or not traits_of(layer.operator).computes(Op.Conv):
        return False
    weights = graph.constants.get(layer.inputs[1])
    return (
        weights is not None
        and weights.shape[_ROWS:] == (1, 1)
        and len(value.shape) == _IMAGE
        and value.shape[_ROWS] == 1
        and MIN_BYTES <= value.n_bytes <= _LAYERS * weights.nbytes
        and graph.readers.get(layer.output) == [index + 1]
        and layer.output not in graph.outputs
        and graph.region(index) is None
    )


def _is_activation(graph: Graph, index: int) -> bool:
    """Return whether node ``index`` makes each element of one, whatever chunk it is in, elsewhere."""
    node, kernel = graph.nodes[index], kernel_of(graph.nodes[index].operator)
    return (
        len(node.inputs) == len(node.made) == 1
        and traits_of(node.operator).function is not None
        and graph.values.get(node.output) == graph.values.get(node.inputs[0])
        and kernel is not None
        and kernel.is_even
        and not kernel.writes_over
        and graph.region(index) is None
    )
