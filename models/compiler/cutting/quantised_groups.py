"""Quantised layers that run as one piece: what is between them never lies in a plan.

Which they are says models/compiler/cutting/quantised_nodes.py: every task of several nodes is a group. A
device with kernels for these (pipeline/devices/integers) makes some channels of some rows at a time, with
the same bits; ONNX Runtime runs their nodes one after the other.
"""

import math
from collections.abc import Collection

from models.compiler.analysis.fused import Fused, FusedNodes
from models.compiler.analysis.graph import Graph
from models.compiler.cutting.quantised_nodes import FoundTask, longest_task
from models.graphs.nodes import made
from models.network.operators.quantised import QuantisedTask

#: Operators that had better be pieces of their own: kernels know each of them alone.
ALONE = frozenset(("QLinearConv", "QGemm", "QLinearGlobalAveragePool"))
# What a task of several nodes begins with.
_LAYERS = frozenset(("QLinearConv", "QGemm"))
_FIRST = _LAYERS | {"QLinearConcat", "QuantizeLinear"}


def quantised_groups(graph: Graph, most_weights: float = math.inf) -> Fused:
    """Return the groups of ``graph``, whose nodes follow each other, by first node; no two share one.

    ``most_weights``: bytes that a convolution in a group has at most, since all of them are there at once;

    """
    found = _tasks(graph, most_weights)
    return {first: FusedNodes(first, item.end, _added(item)) for first, item in found.items()}


def _tasks(graph: Graph, most_weights: float = math.inf) -> dict[int, FoundTask]:
    """Return the tasks of several nodes by first node."""
    found: dict[int, FoundTask] = {}
    index = 0
    while index < len(graph.nodes):
        is_first = graph.nodes[index].op_type in _FIRST
        task = longest_task(graph, index, most_weights) if is_first else None
        if task is not None and task.end > index + 1:
            found[index] = task
            index = task.end
        else:
            index += 1
    return found


def _added(found: FoundTask) -> str | None:
    """Return what is added to the layer of a group that is no bottleneck; its sum may lie over it."""
    over = found.task.over
    return None if over is None else found.names[over]


def edges(graph: Graph, groups: Fused) -> set[int]:
    """Return the nodes before which a piece ends: around groups, and around kernels that are alone."""
    alone = (index for index, node in enumerate(graph.nodes) if node.op_type in ALONE)
    inside = {index for group in groups.values() for index in range(group.first, group.end)}
    lone = {edge for index in alone if index not in inside for edge in (index, index + 1)}
    return lone | {edge for group in groups.values() for edge in (group.first, group.end)}


def before_tables(graph: Graph) -> frozenset[str]:
    """Return the values behind which a table may stand: of dense layers, or their maxima."""
    bottlenecks = {
        index
        for first, group in _tasks(graph).items()
        if isinstance(group.task, QuantisedTask) and group.task.depthwise >= 0
        for index in range(first, group.end)
    }
    found = set()
    for index, node in enumerate(graph.nodes):
        is_layer = node.op_type in _LAYERS and index not in bottlenecks
        read = longest_task(graph, index) if is_layer else None
        if read is None or not isinstance(read.task, QuantisedTask):
            continue
        if read.task.addition is None and read.task.depthwise < 0:
            found.add(graph.nodes[read.end - 1].output[0])
    return frozenset(found)


def grouped(graph: Graph, groups: Fused) -> frozenset[str]:
    """Return what the nodes of ``groups`` make."""
    return frozenset(
        name
        for group in groups.values()
        for node in graph.nodes[group.first : group.end]
        for name in made(node)
    )


def kept_whole(
    groups: Fused, elided: Collection[int], placed: Collection[str], graph: Graph
) -> Fused:
    """Return those of ``groups`` with a kernel for each node and nothing inside that lies elsewhere."""
    return {
        first: group for first, group in groups.items() if _is_whole(group, elided, placed, graph)
    }


def _is_whole(
    group: FusedNodes, elided: Collection[int], placed: Collection[str], graph: Graph
) -> bool:
    nodes = range(group.first, group.end)
    inner = (name for index in nodes[:-1] for name in made(graph.nodes[index]))
    return not any(index in elided for index in nodes) and not any(name in placed for name in inner)
