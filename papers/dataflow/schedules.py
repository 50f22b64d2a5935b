"""Schedules: the order in which actors fire in an iteration, one at a time, and what lives meanwhile."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from papers.dataflow.csdf import Capacities, DataflowError, DataflowGraph
from papers.dataflow.firing import FiringState, downstream_last
from papers.dataflow.naming import shortened


@dataclass(frozen=True, slots=True)
class Moment:
    """A firing: who fires, and the tokens that each channel holds or has claimed while it does."""

    actor: int
    held: tuple[int, ...]


def schedule(graph: DataflowGraph, counts: Sequence[int], capacities: Capacities) -> list[int]:
    """Return who fires in an iteration within ``capacities``, which let it complete.

    Who is furthest down comes first.
    """
    order = list(FiringState(graph, capacities, counts).run(downstream_last(graph)))
    assert len(order) == sum(counts)
    return order


def moments(
    graph: DataflowGraph, counts: Sequence[int], capacities: Capacities, order: Iterable[int]
) -> Iterator[Moment]:
    """Fire in ``order`` and yield each moment.

    Raises:
        DataflowError: someone has not the tokens or the room to fire, or fires too often or too rarely.
    """
    state = FiringState(graph, capacities, counts)
    for actor in order:
        fired = state.fired[actor]
        if not state.may_fire(actor):
            raise DataflowError(f"{graph.name}: {_refusal(state, actor, counts)}")
        held = [*state.tokens]
        for number in graph.outgoing[actor]:
            rates = graph.channels[number].production
            held[number] += rates[fired % len(rates)]
        state.fire(actor)
        yield Moment(actor, tuple(held))
    for actor, count in enumerate(counts):
        if state.fired[actor] != count:
            name = shortened(graph.actors[actor].name)
            raise DataflowError(
                f"{graph.name}: {name} fires {state.fired[actor]} times in an iteration, not {count}"
            )


def _refusal(state: FiringState, actor: int, counts: Sequence[int]) -> str:
    graph = state.graph
    name = shortened(graph.actors[actor].name)
    fired = state.fired[actor]
    if fired >= counts[actor]:
        return f"{name} fires more than {counts[actor]} times in an iteration"
    why = state.why(actor)
    if why.tokens:
        channel = graph.channels[why.tokens[0]]
        rate = channel.consumption[fired % len(channel.consumption)]
        held = state.tokens[why.tokens[0]]
        return (
            f"firing {fired} of {name} takes {rate} tokens from {shortened(channel.name)}, "
            f"where {held} are"
        )
    number, room = why.room[0]
    return f"firing {fired} of {name} needs room for {room} in {shortened(graph.channels[number].name)}"
