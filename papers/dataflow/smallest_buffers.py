"""The smallest buffers with which an iteration completes: by search, or by a heuristic with a bound.

Each block of a graph is searched as far as ``NODES`` capacities go. Where that is not enough, an
iteration is run once, and whenever it is stuck the cheapest room lets it go on; then each buffer, the
largest first, is lowered as far as the others as they are allow.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from heapq import heappop, heappush

from papers.dataflow.csdf import DataflowGraph
from papers.dataflow.firing import FiringState, downstream_last


@dataclass(frozen=True, slots=True)
class Buffers:
    """Capacities in tokens, None: as many as there are; their memory ``size``, and what none is below.

    ``searched``: capacities that a search tried.
    """

    capacities: tuple[int | None, ...]
    size: int
    lower_bound: int
    searched: int = 0

    @property
    def proven(self) -> bool:
        """Whether no smaller ones let the graph run."""
        return self.size == self.lower_bound


# A graph in parts whose smallest buffers do not depend on each other.
#
# Two parts that have one actor in common never wait for each other in a circle: a way that leaves a part
# at that actor comes back to the same actor, whose own firings are in order anyway. So the parts are
# those that stay connected whichever actor is taken away: each edge of a chain, each residual block.


@dataclass(frozen=True, slots=True)
class GraphBlock:
    """Channels ``channels`` of a graph, and they alone as ``graph`` with the actors at their ends.

    ``counts``: firings of each of its actors in an iteration.
    """

    graph: DataflowGraph
    channels: tuple[int, ...]
    counts: tuple[int, ...]


def blocks(graph: DataflowGraph, counts: Sequence[int]) -> list[GraphBlock]:
    """Return the parts of ``graph``; every channel is in one of them."""
    found = [sorted(channels) for channels in _two_connected(graph)]
    return [_part(graph, channels, counts) for channels in sorted(found)]


def _part(graph: DataflowGraph, channels: Sequence[int], counts: Sequence[int]) -> GraphBlock:
    """Return ``channels`` of ``graph`` and the actors at their ends."""
    chosen = [graph.channels[number] for number in channels]
    actors = sorted({end for channel in chosen for end in (channel.source, channel.target)})
    number = {actor: place for place, actor in enumerate(actors)}
    moved = tuple(
        replace(channel, source=number[channel.source], target=number[channel.target])
        for channel in chosen
    )
    alone = DataflowGraph(graph.name, tuple(graph.actors[actor] for actor in actors), moved)
    return GraphBlock(alone, tuple(channels), tuple(counts[actor] for actor in actors))


def _two_connected(graph: DataflowGraph) -> Iterator[list[int]]:
    """Yield the channels of each part (Hopcroft and Tarjan 1973, without recursion).

    Channels from an actor to itself are parts of their own; those between the same two actors are together.
    """
    ends = [(channel.source, channel.target) for channel in graph.channels]
    yield from ([number] for number, (one, other) in enumerate(ends) if one == other)
    walk = _Walk(len(graph.actors), ends)
    for start in range(len(graph.actors)):
        if not walk.depth[start]:
            yield from walk.parts(start)


class _Walk:
    """A walk that goes deep first: ``depth`` of each actor, 0 where it has not been."""

    def __init__(self, actors: int, ends: Sequence[tuple[int, int]]) -> None:
        self.depth = [0] * actors
        self._lowest = [
            0
        ] * actors  # the least depth that channels from below an actor lead back to
        self._ends = ends
        self._beside: list[list[int]] = [[] for _ in range(actors)]
        for number, (one, other) in enumerate(ends):
            if one != other:
                self._beside[one].append(number)
                self._beside[other].append(number)

    def parts(self, start: int) -> Iterator[list[int]]:
        """Yield the parts that are connected with ``start``."""
        seen: list[int] = []
        used: set[int] = set()
        stack = [(start, -1, iter(self._beside[start]))]
        self.depth[start] = self._lowest[start] = 1
        while stack:
            actor, reached_by, channels = stack[-1]
            number = next((item for item in channels if item not in used), -1)
            if number >= 0:
                used.add(number)
                seen.append(number)
                other = sum(self._ends[number]) - actor
                if self.depth[other]:
                    self._lowest[actor] = min(self._lowest[actor], self.depth[other])
                else:
                    self.depth[other] = self._lowest[other] = self.depth[actor] + 1
                    stack.append((other, number, iter(self._beside[other])))
                continue
            stack.pop()
            if stack and self._ends_part(stack[-1][0], actor):
                first = seen.index(reached_by)
                yield seen[first:]
                del seen[first:]

    def _ends_part(self, parent: int, actor: int) -> bool:
        """Take back what was found below ``actor``; return whether nothing leads above ``parent``."""
        self._lowest[parent] = min(self._lowest[parent], self._lowest[actor])
        return self._lowest[actor] >= self.depth[parent]


# The smallest buffers with which an iteration completes: a search over capacities, and bounds of it.
#
# From the smallest that each buffer could have alone, an iteration is run until it is stuck. Whatever
# capacities let it go on give *some* stuck actor that has its tokens the room that it lacks: one
# successor for each such actor. The search takes the smallest sum first, so the first that completes is
# the smallest there is, and while it has not come to its end no buffers are smaller than what it would
# try next.

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
            rooms = _lowered(graph, counts, rooms, number, order)
        found.append(rooms[number])
    return found


def _lowered(
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


# Small buffers of graphs of any size, with a bound that says how far they may be from the smallest.

#: Capacities of a block that are tried before it counts as large.
NODES = 1000
#: Firings that each step may take in a block: the search, the bounds before it, lowering after it.
_MOST_FIRINGS = 1_500_000


def small_buffers(graph: DataflowGraph, counts: Sequence[int], nodes: int = NODES) -> Buffers:
    """Return the smallest buffers found of a graph that does not stop (papers/dataflow/consistency.py)."""
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
        pair = _part(block.graph, beside, block.counts)
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
        rooms = _lowered(graph, counts, lower, channel, order)
    return rooms
