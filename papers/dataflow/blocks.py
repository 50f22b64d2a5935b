"""A graph in parts whose smallest buffers do not depend on each other.

Two parts that have one actor in common never wait for each other in a circle: a way that leaves a part at
that actor comes back to the same actor, whose own firings are in order anyway. So the parts are those that
stay connected whichever actor is taken away: each edge of a chain, each residual block.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from papers.dataflow.csdf import DataflowGraph


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
    return [part(graph, channels, counts) for channels in sorted(found)]


def part(graph: DataflowGraph, channels: Sequence[int], counts: Sequence[int]) -> GraphBlock:
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
