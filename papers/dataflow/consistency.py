"""Whether a graph goes on for ever: how often actors fire until all is as it was, and what stops them."""

import math
from collections.abc import Iterator, Sequence
from fractions import Fraction

from papers.dataflow.csdf import Channel, DataflowError, DataflowGraph, path
from papers.dataflow.firing import FiringState, downstream_last

#: Firings of an iteration that anything here executes.
MOST_FIRINGS = 2_000_000
_MOST_SHOWN = 10**15


def repetitions(graph: DataflowGraph) -> tuple[int, ...]:
    """Return how many cycles of all its phases each actor makes in an iteration, the least there is.

    Raises:
        DataflowError: there is none, with the cycle of actors that contradict each other; or an iteration
            has more than ``MOST_FIRINGS``.
    """
    rates: dict[int, Fraction] = {}
    cycles = [0] * len(graph.actors)
    for start in range(len(graph.actors)):
        if start in rates:
            continue
        connected = _connected(graph, start)
        rates |= connected
        unit = math.lcm(*(rate.denominator for rate in connected.values()))
        counts = {actor: int(rate * unit) for actor, rate in connected.items()}
        common = math.gcd(*counts.values())
        for actor, count in counts.items():
            cycles[actor] = count // common
    total = sum(count * actor.phases for count, actor in zip(cycles, graph.actors, strict=True))
    if total > MOST_FIRINGS:
        raise DataflowError(
            f"{graph.name}: an iteration has {_shown(total)} firings, more than {MOST_FIRINGS:,}"
        )
    return tuple(cycles)


def _shown(count: int) -> str:
    """Return ``count``; of very many that they are."""
    return f"{count:,}" if count < _MOST_SHOWN else f"{_MOST_SHOWN:,} and more"


def _connected(graph: DataflowGraph, start: int) -> dict[int, Fraction]:
    """Return the rates of all that is connected with actor ``start``, whose own is 1."""
    rates, reached_from = {start: Fraction(1)}, {start: start}
    open_actors = [start]
    while open_actors:
        actor = open_actors.pop()
        for channel, other, factor in _neighbours(graph, actor):
            rate = rates[actor] * factor
            if other not in rates:
                rates[other], reached_from[other] = rate, actor
                open_actors.append(other)
            elif rates[other] != rate:
                cycle = path(graph, _cycle(reached_from, actor, other))
                raise DataflowError(
                    f"{graph.name}: inconsistent at channel {channel.name!r}: around {cycle} "
                    f"rates ask {graph.actors[other].name!r} to fire {_times(rates[other], rate)}"
                )
    return rates


def _times(one: Fraction, other: Fraction) -> str:
    ratio = str(other / one)
    return f"{ratio if len(ratio) < 24 else 'many'} times as often as it does"


def _neighbours(graph: DataflowGraph, actor: int) -> Iterator[tuple[Channel, int, Fraction]]:
    for number in graph.outgoing[actor]:
        channel = graph.channels[number]
        yield channel, channel.target, _ratio(channel)
    for number in graph.incoming[actor]:
        channel = graph.channels[number]
        yield channel, channel.source, 1 / _ratio(channel)


def _ratio(channel: Channel) -> Fraction:
    return Fraction(sum(channel.production), sum(channel.consumption))


def _cycle(reached_from: dict[int, int], one: int, other: int) -> list[int]:
    """Return the actors between two, on the ways by which they were reached."""
    ways = []
    for end in (one, other):
        way = [end]
        while reached_from[way[-1]] != way[-1]:
            way.append(reached_from[way[-1]])
        ways.append(way)
    first, second = ways
    common = next(actor for actor in first if actor in second)
    back = second[: second.index(common)]
    return [*first[: first.index(common) + 1], *reversed(back), one]


# Whether a graph whose buffers have no limits ever stops, and around which cycle.


def firings(graph: DataflowGraph) -> tuple[int, ...]:
    """Return how often each actor fires in an iteration of ``graph``, which comes to its end.

    Raises:
        DataflowError: it is inconsistent, or it stops: each actor of a cycle waits for the one before.
    """
    cycles = repetitions(graph)
    counts = tuple(n * actor.phases for n, actor in zip(cycles, graph.actors, strict=True))
    state = FiringState(graph, [None] * len(graph.channels), counts)
    for _ in state.run(downstream_last(graph)):
        pass
    cycle = _waiting_cycle(state, counts)
    if cycle:
        raise DataflowError(
            f"{graph.name}: deadlocks: each of {path(graph, cycle)} waits for tokens "
            "of the one before"
        )
    return counts


def _waiting_cycle(state: FiringState, counts: Sequence[int]) -> list[int]:
    """Return the actors of a cycle in which none can fire, the first again at the end; empty: complete."""
    waits_for = {
        stuck.actor: state.graph.channels[stuck.tokens[0]].source for stuck in state.stuck()
    }
    if not waits_for:
        assert list(counts) == state.fired
        return []
    actor = min(waits_for)
    way: list[int] = []
    while actor not in way:
        way.append(actor)
        actor = waits_for[actor]
    cycle = way[way.index(actor) :]
    return [actor, *reversed(cycle[1:]), actor]
