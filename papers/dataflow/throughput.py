"""The smallest buffers at full throughput: with them an iteration takes as long as without limits.

Each actor has a core of its own (self_timed.py), so without limits the busiest actor decides, or a cycle.
A larger buffer makes nothing slower, and only one that held somebody up can make anything faster: those
are raised, by the least step that can matter, the smallest sum first.
"""

import math
from collections.abc import Sequence
from fractions import Fraction
from heapq import heappop, heappush

from papers.dataflow.buffers import Buffers
from papers.dataflow.csdf import Channel, DataflowError, DataflowGraph
from papers.dataflow.exact import alone
from papers.dataflow.firing import downstream_last
from papers.dataflow.self_timed import self_timed

#: Firings of all executions together, of an iteration each, that a search may take.
_MOST_FIRINGS = 2_000_000
#: Moments of all executions, times what is looked at in each: actors and channels. About a minute.
_MOST_WORK = 40_000_000


def full_throughput(
    graph: DataflowGraph, counts: Sequence[int], nodes: int | None = None
) -> Buffers:
    """Return the smallest buffers at full throughput of a graph without cycles of several actors.

    ``nodes``: capacities that are tried at most; None: as many as take about a minute.

    Raises:
        DataflowError: it has such cycles, or ``nodes`` are not enough to find them.
    """
    nodes = max(_MOST_FIRINGS // max(sum(counts), 1), 1) if nodes is None else nodes
    period = shortest_period(graph, counts)
    bounded = [bool(channel.token_size) for channel in graph.channels]
    start = tuple(alone(graph, counts))
    steps = [_step(channel) for channel in graph.channels]
    waiting, seen = [(graph.size(start), start)], {start}
    left = _MOST_WORK // (len(graph.actors) + len(graph.channels))
    tried = 0
    while tried < nodes and left > 0:
        tried += 1
        size, capacities = heappop(waiting)
        steady = self_timed(graph, counts, capacities)
        left -= steady.moments
        if steady.period is not None and steady.period <= period:
            return Buffers(capacities, size, size, tried)
        for channel in steady.held_up:
            if bounded[channel]:
                raised = list(capacities)
                raised[channel] = (raised[channel] or 0) + steps[channel]
                if tuple(raised) not in seen:
                    seen.add(tuple(raised))
                    heappush(waiting, (graph.size(raised), tuple(raised)))
    raise DataflowError(
        f"{graph.name}: {tried:,} capacities were not enough to find those of full throughput"
    )


def shortest_period(graph: DataflowGraph, counts: Sequence[int]) -> Fraction:
    """Return the time of an iteration where buffers have no limits: that of the busiest actor.

    Raises:
        DataflowError: there are cycles of several actors.
    """
    place = {actor: number for number, actor in enumerate(downstream_last(graph))}
    for channel in graph.channels:
        if place[channel.target] < place[channel.source]:
            raise DataflowError(
                f"{graph.name}: channel {channel.name!r} closes a cycle; full throughput is known "
                "of graphs without"
            )
    work = [
        Fraction(sum(actor.times) * count, actor.phases)
        for actor, count in zip(graph.actors, counts, strict=True)
    ]
    return max(work)


def _step(channel: Channel) -> int:
    """Return what every number of tokens in ``channel`` is a multiple of, apart from the initial ones."""
    return math.gcd(*channel.production, *channel.consumption)
