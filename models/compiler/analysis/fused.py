"""Fused pieces: an operator and what a GPU computes in the same kernel, next to each other in order.

models/graphs/fusion.py says which these are: an activation of several nodes, the activation behind a
convolution, a residual that is added to it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from models.compiler.analysis.graph import Graph
from models.compiler.analysis.order import edges_of, ordered
from models.graphs.fusion import Fusion, Surroundings, fused_with
from models.graphs.nodes import reads
from models.network.operators.convolution import CONVOLUTIONS
from models.network.operators.matrix import GEMMS


@dataclass(frozen=True)
class FusedNodes:
    """Nodes [first, end) of a graph; ``residual`` is the value that they add, if any."""

    first: int
    end: int
    residual: str | None


# Operators that choose before what is behind them does.
_FIRST = (*CONVOLUTIONS, *GEMMS)

#: By their first node.
Fused = Mapping[int, FusedNodes]


def with_fused(graph: Graph) -> tuple[Graph, Fused]:
    """Return ``graph`` with fused nodes one behind the other, and where they are.

    Nodes of regions keep together and are not fused. Execution order changes little: a convolution waits
    for the residual that it adds.
    """
    fusions = _fusions(graph)
    groups = list(range(len(graph.nodes)))
    for region in graph.regions:
        groups[region.first : region.end] = [region.first] * (region.end - region.first)
    for first, fusion in fusions.items():
        for index in fusion.nodes:
            groups[index] = first
    # Only the last node of a group makes what others read, and all lead to it: groups are on no circle.
    order = ordered(edges_of(graph), groups)
    place = {index: position for position, index in enumerate(order)}
    regions = (
        replace(region, first=place[region.first], end=place[region.end - 1] + 1)
        for region in graph.regions
    )
    moved = replace(
        graph,
        nodes=tuple(graph.nodes[index] for index in order),
        regions=tuple(sorted(regions, key=lambda region: region.first)),
    )
    fused = (
        FusedNodes(place[first], place[first] + len(fusion.nodes), fusion.residual)
        for first, fusion in fusions.items()
    )
    return moved, {item.first: item for item in fused}


def _fusions(graph: Graph) -> dict[int, Fusion]:
    """Return the fusions of ``graph`` by first node; no two have a node in common."""
    readers = graph.readers
    taken = {index for region in graph.regions for index in range(region.first, region.end)}
    kept = {*graph.outputs, *(name for index in taken for name in reads(graph.nodes[index]))}
    found: dict[int, Fusion] = {}
    for index in _heads(graph):
        if index in taken:
            continue
        node = graph.nodes[index]

        def shape(name: str, own: Sequence[str] = node.input) -> tuple[int, ...] | None:
            # What is convolved is read whole by every chunk: it cannot be a range of channels, too.
            return graph.values[name].shape if name in graph.values and name not in own else None

        # As if it came last: what it adds will be made before it.
        around = Surroundings([*graph.nodes, node], readers, kept, shape, graph.constants.get)
        fusion = fused_with(around, len(graph.nodes))
        if fusion is not None:
            found[index] = replace(fusion, nodes=(index, *fusion.nodes[1:]))
            taken.update(found[index].nodes)
            kept.update(name for other in found[index].nodes for name in reads(graph.nodes[other]))
    return found


def _heads(graph: Graph) -> list[int]:
    """Return all nodes in the order in which they choose what they are fused with.

    Of two convolutions the later one gets their sum: then nothing has to move.
    """
    indices = range(len(graph.nodes))
    return sorted(
        indices,
        key=lambda index: (0, -index) if graph.nodes[index].op_type in _FIRST else (1, index),
    )
