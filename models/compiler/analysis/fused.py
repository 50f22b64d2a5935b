"""Fused pieces: an operator and what a GPU computes in the same kernel, next to each other in order.

models/graphs/fusion.py says which these are: an activation of several nodes, the activation behind a
convolution, a residual that is added to it.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from models.compiler.analysis.graph import Graph
from models.graphs.fusion import Fusion, Surroundings, fusions
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
    found = _fusions(graph)
    groups = list(range(len(graph.nodes)))
    for region in graph.regions:
        groups[region.first : region.end] = [region.first] * (region.end - region.first)
    for first, fusion in found.items():
        for index in fusion.nodes:
            groups[index] = first
    # Only the last node of a group makes what others read, and all lead to it: groups are on no circle.
    order = graph.order(groups)
    place = {index: position for position, index in enumerate(order)}
    fused = (
        FusedNodes(place[first], place[first] + len(fusion.nodes), fusion.addend)
        for first, fusion in found.items()
    )
    return graph.reordered(order), {item.first: item for item in fused}


def _fusions(graph: Graph) -> dict[int, Fusion]:
    """Return the fusions of ``graph`` by first node; no two have a node in common."""
    nodes = [graph.record(node) for node in graph.nodes]
    captured = {name for node in graph.nodes for name in reads(node) if name not in node.input}

    def may_add(index: int, name: str) -> bool:
        # What is convolved is read whole by every chunk: it cannot be a range of channels, too. What is
        # added elsewhere will be made before the convolution.
        return name not in nodes[index].inputs

    around = Surroundings(nodes, {*graph.outputs, *captured}, graph.known, may_add)
    return fusions(around, _heads(graph))


def _heads(graph: Graph) -> list[int]:
    """Return the nodes outside of regions in the order in which they choose what they are fused with.

    Of two convolutions the later one gets their sum: then nothing has to move.
    """
    indices = (index for index in range(len(graph.nodes)) if graph.region(index) is None)
    return sorted(
        indices,
        key=lambda index: (0, -index) if graph.nodes[index].op_type in _FIRST else (1, index),
    )
