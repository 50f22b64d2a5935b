"""Operators that compute nothing: each output is planes of what they read, outside of the blocked layout.

A region copies these planes, or reads them where they lie. One node, or the three of a channel shuffle.
"""

from collections.abc import Mapping, Sequence

import onnx

from models.compiler.analysis.graph import Graph
from models.graphs.nodes import attributes
from models.network.operators.movement import RESHAPES, Move, strides_of

#: Planes of one value after the other: name, first plane, how many.
Parts = tuple[tuple[str, int, int], ...]

_CHANNELS = 1
_SHUFFLE = [0, 2, 1, 3, 4]


def sliced(graph: Graph, node: onnx.NodeProto) -> Mapping[str, Parts]:
    """Return what a Slice along channels takes, by its output; nothing where it takes anything else."""
    axis, planes = taken(graph, node) or (0, range(0))
    return (
        {node.output[0]: ((node.input[0], planes.start, len(planes)),)} if axis == _CHANNELS else {}
    )


def taken(graph: Graph, node: onnx.NodeProto) -> tuple[int, range] | None:
    """Return the axis of a Slice and what it takes there; None of several axes, or of every other."""
    move = graph.operator(node)
    if not isinstance(move, Move):
        return None
    (copy,) = move.copies
    whole, strides = copy.x.shape, strides_of(copy.x.shape)
    axes = [axis for axis, size in enumerate(copy.sizes) if size != whole[axis]] or [_CHANNELS]
    if len(axes) > 1 or copy.read != strides:
        return None
    first = copy.start // strides[axes[0]]
    return axes[0], range(first, first + copy.sizes[axes[0]])


def shuffled(graph: Graph, node: onnx.NodeProto, readers: Sequence[int]) -> Mapping[str, Parts]:
    """Return the planes that a channel shuffle puts together, by what they are reshaped to again.

    It is Reshape, Transpose and Reshape (ShuffleNet); ``node``: the second, the only one with a kernel;
    ``readers``: of its output.
    """
    maker = graph.makers.get(node.input[0])
    beside = [*([] if maker is None else [maker]), *(readers if len(readers) == 1 else ())]
    ends = [graph.nodes[index] for index in beside if graph.nodes[index].op_type in RESHAPES]
    if (
        attributes(node).get("perm") != _SHUFFLE
        or len(ends) != 2
        or node.output[0] in graph.outputs
    ):
        return {}
    source, result = ends[0].input[0], ends[1].output[0]
    _, groups, channels, height, width = graph.array(node.input[0]).shape
    shape = (1, groups * channels, height, width)
    if any(graph.array(name).shape != shape for name in (source, result)):
        return {}
    return {
        result: tuple(
            (source, group * channels + channel, 1)
            for channel in range(channels)
            for group in range(groups)
        )
    }
