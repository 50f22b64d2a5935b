"""Operators that compute nothing: each output is planes of what they read, outside of the blocked layout.

A region copies these planes, or reads them where they lie. One node, or the three of a channel shuffle.
"""

from collections.abc import Mapping, Sequence

import onnx

from models.compiler.analysis.alias import RESHAPES
from models.compiler.analysis.graph import Graph
from models.graphs.nodes import attributes

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
    """Return the axis of a Slice and what it takes there; None of several axes, of none or every other."""
    given = [graph.constants.get(name) for name in node.input[1:]]
    numbers = [int(item.flat[0]) for item in given if item is not None and item.size == 1]
    if len(numbers) != len(given) or not 3 <= len(given) <= 4:
        return None
    first, end, axis, *steps = numbers
    shape = graph.array(node.input[0]).shape
    if steps not in ([], [1]):
        return None
    places = range(shape[axis])[first:end]
    return (axis % len(shape), places) if places else None


def shuffled(graph: Graph, node: onnx.NodeProto, readers: Sequence[int]) -> Mapping[str, Parts]:
    """Return the planes that a channel shuffle puts together, by what they are reshaped to again.

    It is Reshape, Transpose and Reshape (ShuffleNet); ``node``: the second, the only one with a kernel;
    ``readers``: of its output.
    """
    before = next((item for item in graph.nodes if node.input[0] in item.output), None)
    after = graph.nodes[readers[0]] if len(readers) == 1 else None
    ends = [item for item in (before, after) if item is not None and item.op_type in RESHAPES]
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
