"""Small buffers of graphs of any size, with a bound that says how far they may be from the smallest.

Each block of a graph is searched (exact.py) as far as ``NODES`` capacities go. Where that is not enough, an
iteration is run once, and whenever it is stuck the cheapest room lets it go on; then each buffer, the
largest first, is lowered as far as the others as they are allow.
"""

from collections.abc import Sequence

from papers.dataflow.blocks import GraphBlock, blocks, part
from papers.dataflow.buffers import Buffers
from papers.dataflow.csdf import DataflowGraph
from papers.dataflow.exact import Rooms, alone, lowered, search
from papers.dataflow.firing import FiringState, downstream_last

#: Capacities of a block that are tried before it counts as large.
NODES = 1000
#: Firings that each step may take in a block: the search, the bounds before it, lowering after it.
_MOST_FIRINGS = 1_500_000


def small_buffers(graph: DataflowGraph, counts: Sequence[int], nodes: int = NODES) -> Buffers:
    """Return the smallest buffers found of a graph that does not stop (papers/dataflow/deadlock.py)."""
    capacities: Rooms = [None] * len(graph.channels)
    bound = searched = 0
    for block in blocks(graph, counts):
        least = _least(block)
        most = max(min(nodes, _affordable(block)), 1)
        found = search(block.graph, block.counts, most, least)
        rooms = greedy(block, least) if found.capacities is None else [*found.capacities]
        for channel, room in zip(block.channels, rooms, strict=True):
            capacities[channel] = room
        bound += found.bound
        searched += found.searched
    return Buffers(tuple(capacities), graph.size(capacities), bound, searched)


def _affordable(block: GraphBlock) -> int:
    """Return how many times an iteration of ``block`` may be run."""
    return _MOST_FIRINGS // max(sum(block.counts), 1)


def _least(block: GraphBlock) -> Rooms:
    """Return what no capacities of ``block`` are below; in a large one each channel is seen by itself."""
    if len(block.channels) <= _affordable(block):
        return alone(block.graph, block.counts)
    least: Rooms = []
    ends = [{channel.source, channel.target} for channel in block.graph.channels]
    for number, actors in enumerate(ends):
        beside = [other for other, of_other in enumerate(ends) if of_other <= actors]
        pair = part(block.graph, beside, block.counts)
        least.append(alone(pair.graph, pair.counts)[beside.index(number)])
    return least


def greedy(block: GraphBlock, least: Rooms) -> Rooms:
    """Return capacities with which ``block`` completes an iteration; none are below ``least``."""
    graph, order = block.graph, downstream_last(block.graph)
    rooms = [*least]
    state = FiringState(graph, rooms, block.counts)
    while True:
        for _ in state.run(order):
            pass
        ways = [item.room for item in state.stuck() if not item.tokens]
        if not ways:
            return _trimmed(block, rooms, least)
        for channel, room in min(ways, key=lambda way: _price(graph, rooms, way)):
            rooms[channel] = room
        state = state.with_capacities(rooms)


def _price(graph: DataflowGraph, rooms: Rooms, way: Sequence[tuple[int, int]]) -> int:
    """Return the memory that raising ``rooms`` takes."""
    return sum(
        graph.channels[channel].token_size * (room - (rooms[channel] or 0)) for channel, room in way
    )


def _trimmed(block: GraphBlock, rooms: Rooms, least: Rooms) -> Rooms:
    """Return ``rooms``, none of which can be lowered alone, or as many as may be tried."""
    graph, counts = block.graph, block.counts
    order = downstream_last(graph)
    above = [
        channel.token_size * ((room or 0) - (low or 0))
        for channel, room, low in zip(graph.channels, rooms, least, strict=True)
    ]
    wide = [number for number in range(len(above)) if above[number]]
    for channel in sorted(wide, key=lambda number: -above[number])[: _affordable(block)]:
        lower = [*rooms]
        lower[channel] = least[channel]
        rooms = lowered(graph, counts, lower, channel, order)
    return rooms
