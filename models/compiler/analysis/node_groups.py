"""Nodes that run as one piece: regions that cannot be streamed, and what a GPU fuses.

A node is opaque when it has subgraphs, when a value or constant that it touches has no place in the
arena or in weights.bin, or when ONNX Runtime takes its weights only as constants. Opaque nodes that pass
such values to each other share a region; so does every node between two of them. Execution order is
changed so that each region is one run of nodes.
"""

import graphlib
from collections.abc import Mapping
from dataclasses import dataclass, replace

from models.graphs.fusion import Fusion, Surroundings, fusions
from models.graphs.graph import Graph, OpaqueRegion, has_dtype, members_of
from models.graphs.writer import word_of
from models.network.catalogue import traits_of
from models.network.names import Op
from models.network.node import Node


def with_regions(graph: Graph, refused: Mapping[str, str]) -> Graph:
    """Return ``graph`` with its regions, nodes reordered where it has any.

    ``refused``: reasons of further opaque nodes, by their first output.
    """
    opaque = {
        index: reason
        for index, node in enumerate(graph.nodes)
        if (reason := _opaque(graph, node, refused)) is not None
    }
    if not opaque:
        return graph
    groups = _without_cycles(graph, _joined(graph))
    regions = (
        OpaqueRegion(
            nodes[0],
            nodes[-1] + 1,
            tuple(f"{name(graph.nodes[i])}: {opaque[i]}" for i in nodes if opaque.get(i)),
        )
        for nodes in members_of(groups).values()
        if any(index in opaque for index in nodes)
    )
    return replace(graph, regions=tuple(regions)).reordered(graph.order(groups))


def name(node: Node) -> str:
    """Return what messages call ``node``."""
    return f"node {node.label!r} ({node.op_type})"


def _opaque(graph: Graph, node: Node, refused: Mapping[str, str]) -> str | None:
    """Return why ``node`` is opaque ("": only because of a node before it), None if it is not."""
    if node.bodies:
        return "control flow"
    if node.outputs and node.made[0] in refused:
        return refused[node.made[0]]
    dynamic = [item for item in node.reads if item in graph.dynamic]
    for item in node.reads:
        if item in graph.constants and not has_dtype(graph.constants[item]):
            return f"constant {item!r} has type {word_of(graph.constants[item])}"
        if item in graph.inputs and item in graph.dynamic:
            return graph.dynamic[item].reason
    for item in node.made:
        if item in graph.dynamic:
            return "" if dynamic else graph.dynamic[item].reason
    return "" if dynamic else None


def _joined(graph: Graph) -> list[int]:
    """Return the group of each node: the lowest index among those that share a dynamic value."""
    groups = list(range(len(graph.nodes)))

    def find(index: int) -> int:
        while groups[index] != index:
            index = groups[index]
        return index

    for maker, reader, item in graph.passed():
        if item in graph.dynamic:
            one, other = sorted((find(reader), find(maker)))
            groups[other] = one
    return [find(index) for index in range(len(groups))]


def _without_cycles(graph: Graph, groups: list[int]) -> list[int]:
    """Join groups that cannot run one after the other: each needs something of the other."""
    while True:
        try:
            graphlib.TopologicalSorter(graph.needs(groups)).prepare()
        except graphlib.CycleError as exc:
            cycle = set(exc.args[1])
            groups = [min(cycle) if group in cycle else group for group in groups]
        else:
            return groups


# Fused pieces: an operator and what a GPU computes in the same kernel, next to each other in order.
#
# models/graphs/fusion.py says which these are: an activation of several nodes, the activation behind a
# convolution, a residual that is added to it.


@dataclass(frozen=True)
class FusedNodes:
    """Nodes [first, end) of a graph; ``residual`` is the value that they add, if any."""

    first: int
    end: int
    residual: str | None


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
    order = graph.order(groups)
    place = {index: position for position, index in enumerate(order)}
    fused = (
        FusedNodes(place[first], place[first] + len(fusion.nodes), fusion.addend)
        for first, fusion in fusions.items()
    )
    return graph.reordered(order), {item.first: item for item in fused}


def _fusions(graph: Graph) -> dict[int, Fusion]:
    """Return the fusions of ``graph`` by first node; no two have a node in common."""
    captured = {name for node in graph.nodes for name in node.reads if name not in node.inputs}

    def may_add(index: int, name: str) -> bool:
        # What is convolved is read whole by every chunk: it cannot be a range of channels, too. What is
        # added elsewhere will be made before the convolution.
        return name not in graph.nodes[index].inputs

    around = Surroundings(graph.nodes, {*graph.outputs, *captured}, graph.known, may_add)
    return fusions(around, _heads(graph))


def _heads(graph: Graph) -> list[int]:
    """Return the nodes outside of regions in the order in which they choose what they are fused with.

    Of two convolutions the later one gets their sum: then nothing has to move.
    """
    indices = (index for index in range(len(graph.nodes)) if graph.region(index) is None)
    return sorted(
        indices,
        key=lambda index: (0, -index) if _is_layer(graph.nodes[index]) else (1, index),
    )


def _is_layer(node: Node) -> bool:
    record = traits_of(node.operator)
    return record.computes(Op.Conv) or record.computes(Op.Gemm)
