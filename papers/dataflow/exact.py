"""The smallest buffers with which an iteration completes: a search over capacities, and bounds of it.

From the smallest that each buffer could have alone, an iteration is run until it is stuck. Whatever
capacities let it go on give *some* stuck actor that has its tokens the room that it lacks: one successor
for each such actor. The search takes the smallest sum first, so the first that completes is the smallest
there is, and while it has not come to its end no buffers are smaller than what it would try next.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heappop, heappush

from papers.dataflow.csdf import DataflowGraph
from papers.dataflow.firing import FiringState, downstream_last

Rooms = list[int | None]


@dataclass(frozen=True, slots=True)
class FoundCapacities:
    """``capacities``: the smallest, None where the search was ended; none has less than ``bound``."""

    capacities: tuple[int | None, ...] | None
    bound: int
    searched: int


def search(
    graph: DataflowGraph,
    counts: Sequence[int],
    nodes: int,
    start: Sequence[int | None] | None = None,
) -> FoundCapacities:
    """Search for the smallest capacities, trying at most ``nodes``.

    ``counts``: firings of an iteration, which must come to its end where buffers have no limit. ``start``:
    what no capacities are below, that of ``alone`` where it is not given.
    """
    order = downstream_last(graph)
    start = alone(graph, counts) if start is None else start
    waiting = [(graph.size(start), 0, tuple(start), FiringState(graph, start, counts))]
    seen = {tuple(start)}
    numbers = 0
    for tried in range(1, nodes + 1):
        size, _, capacities, state = heappop(waiting)
        for _ in state.run(order):
            pass
        raises = [item.room for item in state.stuck() if not item.tokens]
        if not raises:
            return FoundCapacities(capacities, size, tried)
        for rooms in raises:
            raised = list(capacities)
            for channel, room in rooms:
                raised[channel] = room
            if tuple(raised) not in seen:
                seen.add(tuple(raised))
                numbers += 1
                after = state.with_capacities(raised)
                heappush(waiting, (graph.size(raised), numbers, tuple(raised), after))
    return FoundCapacities(None, waiting[0][0], nodes)


def alone(graph: DataflowGraph, counts: Sequence[int]) -> Rooms:
    """Return the least that each buffer needs where all others have no limit: no capacities are below."""
    found: Rooms = []
    order = downstream_last(graph)
    for number, channel in enumerate(graph.channels):
        rooms: Rooms = [None] * len(graph.channels)
        if channel.token_size:
            rooms[number] = max(channel.initial, *channel.production, *channel.consumption)
            rooms = lowered(graph, counts, rooms, number, order)
        found.append(rooms[number])
    return found


def lowered(
    graph: DataflowGraph, counts: Sequence[int], rooms: Rooms, channel: int, order: Sequence[int]
) -> Rooms:
    """Return ``rooms`` with the least for ``channel``, from what it has there, that completes an iteration.

    Some capacity for it must do so beside the others.
    """
    rooms = list(rooms)
    state = FiringState(graph, rooms, counts)
    while True:
        for _ in state.run(order):
            pass
        stuck = [item for item in state.stuck() if not item.tokens]
        if not stuck:
            return rooms
        needed = [room for item in stuck for number, room in item.room if number == channel]
        rooms[channel] = min(needed)
        state = state.with_capacities(rooms)
