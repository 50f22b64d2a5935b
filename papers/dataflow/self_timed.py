"""Self-timed execution: each actor has a core and fires as soon as it has tokens and room (as in SDF3).

A graph whose buffers have limits comes back to a state that it was in; what happens in between repeats.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from papers.dataflow.csdf import Capacities, DataflowError, DataflowGraph

_ENDLESS = 1 << 62
#: Moments at which somebody starts or ends before an execution counts as too long.
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
    """Who is firing, until when, and the tokens and free room of channels."""

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
        """Return all that decides what comes, but the time."""
        phases = tuple(map(self.phase, range(len(self.fired))))
        left = tuple(None if end is None else end - self.now for end in self.ends)
        return phases, left, tuple(self.tokens), tuple(self.room)

    def start(self, room_before: Sequence[int]) -> bool:
        """Start whoever can; return whether anyone did. ``room_before``: when nobody had ended yet."""
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
        """Go on to when somebody ends, and let all end who do; return whether there was anyone."""
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
        """Return the channels without room for the next firing of somebody."""
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
