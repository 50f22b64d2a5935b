"""The memory of a schedule: what lives at once, and an arena in which all that lives has a place.

Tokens that one firing puts into a channel are one thing with one life: from when room for it is claimed
until the firing that takes the last of it has ended. Whole buffers have lives, too, and side by side they
take no more than their sum; the smaller of the two arenas counts.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate

from pipeline.dataflow.csdf import Capacities, Graph


@dataclass(frozen=True, slots=True)
class Life:
    """``size`` of memory during the firings [start, end) of an iteration."""

    size: int
    start: int
    end: int


def peak(lives: Sequence[Life]) -> int:
    """Return the most that lives at once."""
    changes = [0] * (max((life.end for life in lives), default=0) + 1)
    for life in lives:
        changes[life.start] += life.size
        changes[life.end] -= life.size
    return max(accumulate(changes), default=0)


def token_lives(graph: Graph, order: Sequence[int]) -> list[Life]:
    """Return the lives of what each firing of ``order``, a schedule of an iteration, puts down.

    Initial tokens, and what is left for the next iteration, live all the time.
    """
    lives: list[Life] = []
    queues: list[deque[tuple[int, int]]] = [
        deque([(channel.initial, 0)] * (channel.initial > 0)) for channel in graph.channels
    ]
    for number, moment, taken, put in _changes(graph, order):
        size, queue = graph.channels[number].token_size, queues[number]
        if put:
            queue.append((put, moment))
        left = taken
        while left:
            tokens, start = queue.popleft()
            used = min(tokens, left)
            left -= used
            if used < tokens:
                queue.appendleft((tokens - used, start))
            if size:
                lives.append(Life(used * size, start, moment + 1))
    for channel, queue in zip(graph.channels, queues, strict=True):
        lives += [Life(tokens * channel.token_size, 0, len(order)) for tokens, _ in queue]
    return lives


def buffer_lives(graph: Graph, capacities: Capacities, order: Sequence[int]) -> list[Life]:
    """Return the lives of whole buffers, by channel: from the first token to the last."""
    first = [len(order)] * len(graph.channels)
    last = [0] * len(graph.channels)
    for number, moment, taken, put in _changes(graph, order):
        if taken or put:
            first[number] = min(first[number], moment)
            last[number] = moment + 1
    return [
        Life(channel.token_size * (room or 0), *((0, len(order)) if channel.initial else span))
        for channel, room, span in zip(
            graph.channels, capacities, zip(first, last, strict=True), strict=True
        )
    ]


def _changes(graph: Graph, order: Sequence[int]) -> Iterator[tuple[int, int, int, int]]:
    """Yield, for each firing and channel at its actor: channel, moment, tokens taken, tokens put."""
    fired = [0] * len(graph.actors)
    for moment, actor in enumerate(order):
        phase = fired[actor] % graph.actors[actor].phases
        fired[actor] += 1
        for number in graph.incoming[actor]:
            yield number, moment, graph.channels[number].consumption[phase], 0
        for number in graph.outgoing[actor]:
            yield number, moment, 0, graph.channels[number].production[phase]
