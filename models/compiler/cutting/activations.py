"""Activations and turned layouts that are computed along with a dense layer.

An activation whose kernel reads an element again after it has written it (Gelu) cannot lie over what it
reads. Behind a dense layer on tokens both are the largest values of a network. So the layer's chunks run
it: of what the layer makes there is a chunk at a time, which ONNX Runtime allocates.
"""

from typing import Any

from numpy.typing import NDArray

from models.compiler.analysis.node_groups import Fused, FusedNodes
from models.graphs.graph import Graph
from models.network.catalogue import traits_of
from models.network.fields import Array
from models.network.names import Op
from models.network.node import Node
from models.network.operators.convolution import ADDEND
from models.runtime.kernels import kernel_of

#: Below this a value of its own costs less than what sessions of two nodes take.
MIN_BYTES = 256 << 10
#: The layer behind an activation has about as many weights as the one in front. A larger value takes more
#: than both, which are there at once where groups of channels run (docs/explanation/rows.md).
_LAYERS = 2
_IMAGE, _SAMPLES, _ROWS = 4, 3, 2


def activation_groups(graph: Graph) -> Fused:
    """Return the dense layers on tokens that an activation follows, with it, by the layer's node."""
    return {
        index: FusedNodes(index, index + 2, None)
        for index in range(len(graph.nodes) - 1)
        if _is_dense(graph, index) and _is_activation(graph, index + 1)
    }


def _is_dense(graph: Graph, index: int) -> bool:
    """Return whether node ``index`` is a layer on tokens, or samples, that only the next node reads."""
    layer = graph.nodes[index]
    value = graph.values.get(layer.output) if len(layer.made) == 1 else None
    if value is None or not traits_of(layer.operator).computes(Op.Conv):
        return False
    weights = graph.constants.get(layer.inputs[1])
    return (
        weights is not None
        and value.n_bytes >= MIN_BYTES
        and (_is_of_tokens(value, weights) or (len(value.shape) == _SAMPLES))
        and graph.readers.get(layer.output) == [index + 1]
        and layer.output not in graph.outputs
        and graph.region(index) is None
    )


def _is_of_tokens(value: Array, weights: NDArray[Any]) -> bool:
    """Return whether ``value`` is an image of one line that a dense layer of ``weights`` makes."""
    return (
        weights.shape[_ROWS:] == (1, 1)
        and len(value.shape) == _IMAGE
        and value.shape[_ROWS] == 1
        and value.n_bytes <= _LAYERS * weights.nbytes
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


def launches_of_groups(graph: Graph, chunk_bytes: int, groups: Fused) -> Fused:
    """Return layers of groups with a node that turns or maps their tokens, by the first of both.

    Each has ``chunk_bytes`` of weights at most, and none is in one of ``groups``.
    """
    if not any(traits_of(node.operator).access == "attention" for node in graph.nodes):
        return {}
    free = set(range(len(graph.nodes)))
    free -= {index for group in groups.values() for index in range(group.first, group.end)}
    launches: dict[int, FusedNodes] = {}
    for index in range(len(graph.nodes) - 1):
        if {index, index + 1} <= free and _is_launch(graph, index, chunk_bytes):
            launches[index] = FusedNodes(index, index + 2, None)
            free -= {index, index + 1}
    return launches


def _is_launch(graph: Graph, index: int, chunk_bytes: int) -> bool:
    """Return whether node ``index`` and the next are a layer of a group and what it turns or maps."""
    first, second = graph.nodes[index : index + 2]
    value = graph.values.get(first.output) if len(first.made) == len(second.made) == 1 else None
    if (
        value is None
        or value.n_bytes < MIN_BYTES
        or first.output in graph.outputs
        or graph.readers.get(first.output) != [index + 1]
        or any(graph.region(node) is not None for node in (index, index + 1))
    ):
        return False
    if second.operator == Op.ReorderOutput:
        return _is_of_group(graph, first, chunk_bytes)
    is_before = first.operator == Op.ReorderInput or _is_activation(graph, index)
    is_sum = len(second.inputs) > ADDEND and second.inputs[0] == first.output
    return is_before and is_sum and _is_of_group(graph, second, chunk_bytes)


def _is_of_group(graph: Graph, layer: Node, chunk_bytes: int) -> bool:
    """Return whether ``layer`` is a dense one whose weights are no more than a chunk."""
    traits = traits_of(layer.operator)
    weights = graph.constants.get(layer.inputs[1]) if len(layer.inputs) > 1 else None
    return (
        traits.computes(Op.Conv)
        and traits.is_blocked
        and weights is not None
        and weights.shape[_ROWS:] == (1, 1)
        and weights.nbytes <= chunk_bytes
    )
