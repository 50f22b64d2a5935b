"""Nodes that cannot be streamed, and regions of what must run with them as one resident piece.

A node is opaque when it has subgraphs, when a value or constant that it touches has no place in the
arena or in weights.bin, or when ONNX Runtime takes its weights only as constants. Opaque nodes that pass
such values to each other share a region; so does every node between two of them. Execution order is
changed so that each region is one run of nodes.
"""

import graphlib
from collections.abc import Mapping
from dataclasses import replace

import onnx
from onnx import TensorProto

from models.compiler.analysis.graph import Graph, OpaqueRegion, members_of
from models.graphs.nodes import label, made, reads, subgraphs


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


def name(node: onnx.NodeProto) -> str:
    """Return what messages call ``node``."""
    return f"node {label(node)!r} ({node.op_type})"


def _opaque(graph: Graph, node: onnx.NodeProto, refused: Mapping[str, str]) -> str | None:
    """Return why ``node`` is opaque ("": only because of a node before it), None if it is not."""
    if any(subgraphs(node)):
        return "control flow"
    if node.output and made(node)[0] in refused:
        return refused[made(node)[0]]
    loose = [item for item in reads(node) if item in graph.loose]
    for item in reads(node):
        if item in graph.tensors:
            kind = TensorProto.DataType.Name(graph.tensors[item].data_type)
            return f"constant {item!r} has type {kind.lower()}"
        if item in graph.inputs and item in graph.loose:
            return graph.loose[item].reason
    for item in made(node):
        if item in graph.loose:
            return "" if loose else graph.loose[item].reason
    return "" if loose else None


def _joined(graph: Graph) -> list[int]:
    """Return the group of each node: the lowest index among those that share a loose value."""
    groups = list(range(len(graph.nodes)))

    def find(index: int) -> int:
        while groups[index] != index:
            index = groups[index]
        return index

    for maker, reader, item in graph.passed():
        if item in graph.loose:
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
