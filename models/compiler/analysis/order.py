"""Execution orders that keep groups of nodes together: what runs as one piece is one run of nodes."""

from collections.abc import Sequence

from models.compiler.analysis.graph import Graph
from models.graphs.nodes import made, reads, stable_order

#: The node that makes a value, one that reads it, its name.
Edge = tuple[int, int, str]


def edges_of(graph: Graph) -> list[Edge]:
    """Return who makes and who reads each value that passes between nodes."""
    makers = {item: index for index, node in enumerate(graph.nodes) for item in made(node)}
    return [
        (makers[item], index, item)
        for index, node in enumerate(graph.nodes)
        for item in dict.fromkeys(reads(node))
        if item in makers
    ]


def dependencies(edges: Sequence[Edge], groups: Sequence[int]) -> dict[int, set[int]]:
    """Return, for each group, the groups that it needs; ``groups[i]`` is the group of node i."""
    needs: dict[int, set[int]] = {group: set() for group in groups}
    for maker, reader, _ in edges:
        if groups[maker] != groups[reader]:
            needs[groups[reader]].add(groups[maker])
    return needs


def ordered(edges: Sequence[Edge], groups: Sequence[int]) -> list[int]:
    """Return the nodes in an order that keeps groups together and otherwise changes little."""
    members: dict[int, list[int]] = {}
    for index, group in enumerate(groups):
        members.setdefault(group, []).append(index)
    order = stable_order(dependencies(edges, groups))
    return [index for group in order for index in members[group]]
