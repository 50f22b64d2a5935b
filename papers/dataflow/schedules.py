"""Schedules: the order in which actors fire in an iteration, what lives meanwhile, and an arena for it."""

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate

from papers.dataflow.csdf import Capacities, DataflowError, DataflowGraph, shortened
from papers.dataflow.firing import FiringState, downstream_last
from pipeline.planning.arena import plan_arena
from pipeline.program.lives import Lifetime


@dataclass(frozen=True, slots=True)
class Moment:
    """A firing: the actor, and the tokens that each channel holds or has claimed while it does."""

    actor: int
    held: tuple[int, ...]


def schedule(graph: DataflowGraph, counts: Sequence[int], capacities: Capacities) -> list[int]:
    """Return the actors that fire in an iteration within ``capacities``, which let it complete.

    The actor furthest down comes first.
    """
    order = list(FiringState(graph, capacities, counts).run(downstream_last(graph)))
    assert len(order) == sum(counts)
    return order


def moments(
    graph: DataflowGraph, counts: Sequence[int], capacities: Capacities, order: Iterable[int]
) -> Iterator[Moment]:
    """Fire in ``order`` and yield each moment.

    Raises:
        DataflowError: an actor has not the tokens or the room to fire, or fires too often or too rarely.
    """
    state = FiringState(graph, capacities, counts)
    for actor in order:
        fired = state.fired[actor]
        if not state.may_fire(actor):
            raise DataflowError(f"{graph.name}: {_refusal(state, actor, counts)}")
        tokens = [*state.tokens]
        for number in graph.outgoing[actor]:
            rates = graph.channels[number].production
            tokens[number] += rates[fired % len(rates)]
        state.fire(actor)
        yield Moment(actor, tuple(tokens))
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


# The memory of a schedule: what lives at once, and an arena in which all that lives has a place.
#
# Tokens that one firing puts into a channel are one thing with one life: from when room for it is claimed
# until the firing that takes the last of it has ended. Whole buffers have lives, too, and side by side
# they take no more than their sum; the smaller of the two arenas counts.


@dataclass(frozen=True, slots=True)
class TokenLife:
    """``size`` of memory during the firings [start, end) of an iteration."""

    size: int
    start: int
    end: int


def _peak(lives: Sequence[TokenLife]) -> int:
    """Return the most that lives at once."""
    changes = [0] * (max((life.end for life in lives), default=0) + 1)
    for life in lives:
        changes[life.start] += life.size
        changes[life.end] -= life.size
    return max(accumulate(changes), default=0)


def _token_lives(
    graph: DataflowGraph, capacities: Capacities, order: Sequence[int]
) -> list[list[TokenLife]]:
    """Return, by channel, the lives of what firings of ``order``, a schedule of an iteration, put down.

    A channel with tokens from the iteration before is one thing that lives all the time.
    """
    lives: list[list[TokenLife]] = [[] for _ in graph.channels]
    queues: list[deque[tuple[int, int]]] = [deque() for _ in graph.channels]
    for number, moment, taken, put in _changes(graph, order):
        size, queue = graph.channels[number].token_size, queues[number]
        if not size or graph.channels[number].initial:
            continue
        if put:
            queue.append((put, moment))
        left = taken
        while left:
            tokens, start = queue.popleft()
            used = min(tokens, left)
            left -= used
            if used < tokens:
                queue.appendleft((tokens - used, start))
            lives[number].append(TokenLife(used * size, start, moment + 1))
    for number, life in enumerate(_buffer_lives(graph, capacities, order)):
        lives[number] += [life] * bool(graph.channels[number].initial)
    return lives


def joined(lives: Sequence[TokenLife], count: int) -> list[TokenLife]:
    """Return ``lives``, ``count`` after each other as one that lives as long as any of them."""
    return [
        TokenLife(
            sum(life.size for life in lives[first : first + count]),
            min(life.start for life in lives[first : first + count]),
            max(life.end for life in lives[first : first + count]),
        )
        for first in range(0, len(lives), count)
    ]


def _buffer_lives(
    graph: DataflowGraph, capacities: Capacities, order: Sequence[int]
) -> list[TokenLife]:
    """Return the lives of whole buffers, by channel: from the first token to the last."""
    first = [len(order)] * len(graph.channels)
    last = [0] * len(graph.channels)
    for number, moment, taken, put in _changes(graph, order):
        if taken or put:
            first[number] = min(first[number], moment)
            last[number] = moment + 1
    return [
        TokenLife(channel.token_size * (room or 0), *((0, len(order)) if channel.initial else span))
        for channel, room, span in zip(
            graph.channels, capacities, zip(first, last, strict=True), strict=True
        )
    ]


def _changes(graph: DataflowGraph, order: Sequence[int]) -> Iterator[tuple[int, int, int, int]]:
    """Yield, for each firing and channel at its actor: channel, moment, tokens taken, tokens put."""
    fired = [0] * len(graph.actors)
    for moment, actor in enumerate(order):
        phase = fired[actor] % graph.actors[actor].phases
        fired[actor] += 1
        for number in graph.incoming[actor]:
            yield number, moment, graph.channels[number].consumption[phase], 0
        for number in graph.outgoing[actor]:
            yield number, moment, 0, graph.channels[number].production[phase]


# One arena for the buffers of a CSDF schedule, instead of memory for each.

# So many things are placed each by itself; of more, some of a channel that follow each other together.
_MOST_PLACED = 3000


@dataclass(frozen=True, slots=True)
class DataflowArena:
    """``size``: of the arena, no more than the buffers' sum; ``live``: the most that lives at once."""

    size: int
    live: int


def dataflow_arena(
    graph: DataflowGraph, capacities: Capacities, order: Sequence[int]
) -> DataflowArena:
    """Return an arena for ``order``, a schedule of an iteration within ``capacities``."""
    tokens = _token_lives(graph, capacities, order)
    count = -(-sum(map(len, tokens)) // _MOST_PLACED)
    fewer = [life for of_channel in tokens for life in joined(of_channel, max(count, 1))]
    size = min(_placed(fewer), _placed(_buffer_lives(graph, capacities, order)))
    return DataflowArena(size, _peak([life for of_channel in tokens for life in of_channel]))


def _placed(lives: Sequence[TokenLife]) -> int:
    return plan_arena(
        [Lifetime(life.size, life.start, life.end, alignment=1) for life in lives]
    ).n_bytes
