"""The smallest buffers at full throughput: with them an iteration takes as long as without limits.

Each actor has a core of its own (``self_timed``), so without limits the busiest actor decides, or a cycle.
A larger buffer makes nothing slower, and only one that held an actor up can make anything faster: those
are raised, by the least step that can matter, the smallest sum first.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from heapq import heappop, heappush

from papers.dataflow.csdf import Capacities, Channel, DataflowError, DataflowGraph
from papers.dataflow.firing import downstream_last
from papers.dataflow.smallest_buffers import Buffers, alone

# Self-timed execution: each actor has a core and fires as soon as it has tokens and room (as in SDF3).
#
# A graph whose buffers have limits comes back to a state that it was in; what happens in between repeats.

_ENDLESS = 1 << 62
#: Moments at which an actor starts or ends before an execution counts as too long.
_MOST_MOMENTS = 200_000


@dataclass(frozen=True, slots=True)
class Steady:
    """``period``: time of an iteration, None: it stops. ``held_up``: channels that lacked room.

    ``moments``: how long it took to find out.
    """

    period: Fraction | None
    held_up: frozenset[int]
    moments: int = 0


class _Cores:
    """The actors that fire, until when, and the tokens and free room of channels."""

    def __init__(self, graph: DataflowGraph, capacities: Capacities) -> None:
        self.graph = graph
        self.now = 0
        self.fired = [0] * len(graph.actors)
        self.ends: list[int | None] = [None] * len(graph.actors)
        self.tokens = [channel.initial for channel in graph.channels]
        self.room = [
            _ENDLESS if capacity is None else capacity - channel.initial
            for capacity, channel in zip(capacities, graph.channels, strict=True)
        ]
        self.held_up: set[int] = set()

    def phase(self, actor: int) -> int:
        return self.fired[actor] % self.graph.actors[actor].phases

    def state(self) -> tuple[object, ...]:
        """Return the state that the rest of the execution depends on, without the time."""
        phases = tuple(map(self.phase, range(len(self.fired))))
        left = tuple(None if end is None else end - self.now for end in self.ends)
        return phases, left, tuple(self.tokens), tuple(self.room)

    def start(self, room_before: Sequence[int]) -> bool:
        """Start all actors that can; return whether one did. ``room_before``: when none had ended yet."""
        started = False
        for actor, end in enumerate(self.ends):
            if end is None and self._can_start(actor):
                phase = self.phase(actor)
                for number in self.graph.incoming[actor]:
                    self.tokens[number] -= self.graph.channels[number].consumption[phase]
                for number in self.graph.outgoing[actor]:
                    rate = self.graph.channels[number].production[phase]
                    if rate > room_before[number]:
                        self.held_up.add(number)
                    self.room[number] -= rate
                self.ends[actor] = self.now + self.graph.actors[actor].times[phase]
                started = True
        return started

    def _can_start(self, actor: int) -> bool:
        phase, channels = self.phase(actor), self.graph.channels
        return all(
            self.tokens[n] >= channels[n].consumption[phase] for n in self.graph.incoming[actor]
        ) and all(self.room[n] >= channels[n].production[phase] for n in self.graph.outgoing[actor])

    def end(self) -> bool:
        """Go on to the next end, and end all actors that end then; return whether there was one."""
        running = [end for end in self.ends if end is not None]
        if not running:
            return False
        self.now = min(running)
        for actor, end in enumerate(self.ends):
            if end == self.now:
                phase = self.phase(actor)
                for number in self.graph.incoming[actor]:
                    self.room[number] += self.graph.channels[number].consumption[phase]
                for number in self.graph.outgoing[actor]:
                    self.tokens[number] += self.graph.channels[number].production[phase]
                self.fired[actor] += 1
                self.ends[actor] = None
        return True

    def waiting_for_room(self) -> set[int]:
        """Return the channels without room for the next firing of an actor."""
        return {
            number
            for actor in range(len(self.ends))
            for number in self.graph.outgoing[actor]
            if self.graph.channels[number].production[self.phase(actor)] > self.room[number]
        }


def self_timed(graph: DataflowGraph, counts: Sequence[int], capacities: Capacities) -> Steady:
    """Execute ``graph`` until it repeats itself; ``counts``: firings of an iteration.

    A moment is one at which firings end, and others may start.

    Channels without a capacity must not fill up for ever. Every time is above 0.

    Raises:
        DataflowError: a time is 0, or it does not repeat itself soon.
    """
    for actor in graph.actors:
        if min(actor.times) < 1:
            raise DataflowError(f"{graph.name}: a phase of {actor.name!r} takes no time")
    cores = _Cores(graph, capacities)
    seen: dict[tuple[object, ...], tuple[int, int]] = {}
    room_before = list(cores.room)
    for moment in range(_MOST_MOMENTS):
        cores.start(room_before)
        state = cores.state()
        if state in seen:
            then, fired = seen[state]
            iterations = Fraction(cores.fired[0] - fired, counts[0])
            return Steady((cores.now - then) / iterations, frozenset(cores.held_up), moment)
        seen[state] = cores.now, cores.fired[0]
        room_before = list(cores.room)
        if not cores.end():
            return Steady(None, frozenset(cores.waiting_for_room()), moment)
    raise DataflowError(
        f"{graph.name}: does not repeat itself within {_MOST_MOMENTS:,} moments in which firings end"
    )


# The smallest buffers with the shortest period.

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
