"""Firings one after the other: what may fire, and how an iteration ends: complete, or stuck.

Whatever may fire may fire later as well, so the order does not matter: with given capacities either every
order completes an iteration, or none does. Here the actor furthest down fires first: that holds least.
"""

from collections.abc import Iterator, Sequence
from copy import copy
from dataclasses import dataclass
from heapq import heappop, heappush

from papers.dataflow.csdf import Capacities, DataflowGraph

# More than any buffer holds: of channels without a capacity.
_ENDLESS = 1 << 62


@dataclass(frozen=True, slots=True)
class Stuck:
    """An actor that cannot fire: ``tokens`` it waits for by channel, ``room`` its channels must have."""

    actor: int
    tokens: tuple[int, ...]
    room: tuple[tuple[int, int], ...]


class FiringState:
    """Tokens in the channels of ``graph``, and how often each actor has fired.

    ``limits``: firings that each actor may make in all.
    """

    def __init__(self, graph: DataflowGraph, capacities: Capacities, limits: Sequence[int]) -> None:
        self.graph = graph
        self.fired = [0] * len(graph.actors)
        self.tokens = [channel.initial for channel in graph.channels]
        self._capacities = [_ENDLESS if room is None else room for room in capacities]
        self._limits = limits
        self._incoming = [
            [(number, graph.channels[number].consumption) for number in numbers]
            for numbers in graph.incoming
        ]
        self._outgoing = [
            [(number, graph.channels[number].production) for number in numbers]
            for numbers in graph.outgoing
        ]
        self._neighbours = [self._around(actor) for actor in range(len(graph.actors))]

    def _around(self, actor: int) -> list[int]:
        """Return the actors that may be able to fire when ``actor`` has."""
        channels = self.graph.channels
        beside = {channels[number].target for number in self.graph.outgoing[actor]}
        beside |= {channels[number].source for number in self.graph.incoming[actor]}
        return sorted(beside | {actor})

    def with_capacities(self, capacities: Capacities) -> "FiringState":
        """Return the same state with other capacities: what was fired could be fired with larger ones."""
        other = copy(self)
        other.fired, other.tokens = [*self.fired], [*self.tokens]
        other._capacities = [_ENDLESS if room is None else room for room in capacities]
        return other

    def may_fire(self, actor: int) -> bool:
        fired, tokens = self.fired[actor], self.tokens
        if fired >= self._limits[actor]:
            return False
        for number, rates in self._incoming[actor]:
            if tokens[number] < rates[fired % len(rates)]:
                return False
        for number, rates in self._outgoing[actor]:
            rate = rates[fired % len(rates)]
            if rate and tokens[number] + rate > self._capacities[number]:
                return False
        return True

    def fire(self, actor: int) -> None:
        """Fire ``actor``, which may."""
        fired, tokens = self.fired[actor], self.tokens
        for number, rates in self._incoming[actor]:
            tokens[number] -= rates[fired % len(rates)]
        for number, rates in self._outgoing[actor]:
            tokens[number] += rates[fired % len(rates)]
        self.fired[actor] = fired + 1

    def run(self, order: Sequence[int]) -> Iterator[int]:
        """Fire until no actor may, those first that come last in ``order``; yield each actor that fires."""
        rank = {actor: -place for place, actor in enumerate(order)}
        waiting = [(rank[actor], actor) for actor in order]
        waiting.sort()
        queued = set(order)
        while waiting:
            _, actor = heappop(waiting)
            queued.discard(actor)
            if not self.may_fire(actor):
                continue
            self.fire(actor)
            yield actor
            for other in self._neighbours[actor]:
                if other not in queued:
                    queued.add(other)
                    heappush(waiting, (rank[other], other))

    def stuck(self) -> list[Stuck]:
        """Return the actors that have firings left, and why they cannot fire."""
        return [
            self.why(actor)
            for actor, limit in enumerate(self._limits)
            if self.fired[actor] < limit and not self.may_fire(actor)
        ]

    def why(self, actor: int) -> Stuck:
        fired, tokens = self.fired[actor], self.tokens
        missing = tuple(
            number
            for number, rates in self._incoming[actor]
            if tokens[number] < rates[fired % len(rates)]
        )
        room = tuple(
            (number, tokens[number] + rates[fired % len(rates)])
            for number, rates in self._outgoing[actor]
            if rates[fired % len(rates)]
            and tokens[number] + rates[fired % len(rates)] > self._capacities[number]
        )
        return Stuck(actor, missing, room)


def downstream_last(graph: DataflowGraph) -> list[int]:
    """Return the actors in topological order, sources first; each cycle is cut somewhere."""
    order: list[int] = []
    state = [0] * len(graph.actors)  # 1: its targets are being ordered, 2: done
    for start in range(len(graph.actors)):
        stack = [start]
        while stack:
            actor = stack[-1]
            if state[actor]:
                stack.pop()
                if state[actor] == 1:
                    state[actor] = 2
                    order.append(actor)
                continue
            state[actor] = 1
            targets = [graph.channels[number].target for number in graph.outgoing[actor]]
            stack.extend(target for target in targets if not state[target])
    return order[::-1]
