"""An order of nodes in which less has to be kept at once.

A graph's own order is any that its maker wrote. Where a node makes less than it reads, and nothing reads
that again, the sooner it runs the better: a route that waits for the neck of a detector then waits as what
the neck makes of it. Where a node makes more than it reads, such as the projection of a shortcut, it can
wait until somebody wants that. Results are the same: every node reads the same values.
"""

from dataclasses import replace

from models.compiler.analysis.graph import Graph
from models.graphs.nodes import made, reads


def with_less_kept(graph: Graph) -> Graph:
    """Return ``graph``, which has no regions yet, with nodes moved where that keeps less."""
    order = list(range(len(graph.nodes)))
    for index in range(len(graph.nodes)):
        _move_up(graph, order, index)
    for index in reversed(range(len(graph.nodes))):
        _move_down(graph, order, index)
    return replace(graph, nodes=tuple(graph.nodes[index] for index in order))


def _sizes(graph: Graph, index: int) -> tuple[str, str, int] | None:
    """Return what a node of one tensor each reads and makes, and by how much that is more; else None."""
    node = graph.nodes[index]
    names, results = [name for name in reads(node) if name not in graph.constants], made(node)
    if len(set(names)) != 1 or len(results) != 1:
        return None
    source, result = names[0], results[0]
    if source not in graph.values or result not in graph.values or source in graph.inputs:
        return None
    return source, result, graph.values[result].n_bytes - graph.values[source].n_bytes


def _move_up(graph: Graph, order: list[int], index: int) -> None:
    """Move a node that shrinks what it alone still needs to behind all others that touch that."""
    found = _sizes(graph, index)
    if found is None or found[2] >= 0 or found[0] in graph.outputs:
        return
    source, place = found[0], order.index(index)
    touching = [
        position
        for position, other in enumerate(order)
        if other != index
        and (source in reads(graph.nodes[other]) or source in made(graph.nodes[other]))
    ]
    if touching and max(touching) + 1 < place:
        order.insert(max(touching) + 1, order.pop(place))


def _move_down(graph: Graph, order: list[int], index: int) -> None:
    """Move a node that makes more than it reads to in front of who wants that first."""
    found = _sizes(graph, index)
    if found is None or found[2] <= 0 or found[1] in graph.outputs:
        return
    place = order.index(index)
    readers = [
        position for position, other in enumerate(order) if found[1] in reads(graph.nodes[other])
    ]
    if readers and min(readers) > place + 1:
        order.insert(min(readers) - 1, order.pop(place))
