"""Random small CSDF graphs, and what is true of them by trying everything; slow and simple."""

import math
from collections.abc import Iterator, Sequence

from hypothesis import strategies as st

from papers.dataflow.csdf import Actor, Channel, DataflowGraph


@st.composite
def graphs(draw: st.DrawFn, most_actors: int = 4, loops: bool = True) -> DataflowGraph:
    """Draw a consistent, connected graph; with ``loops``, tokens may be too few for its cycles."""
    count = draw(st.integers(2, most_actors))
    cycles = [draw(st.integers(1, 3)) for _ in range(count)]
    actors = tuple(
        Actor(f"a{number}", tuple(draw(st.lists(st.integers(1, 3), min_size=1, max_size=3))))
        for number in range(count)
    )
    ends = [(draw(st.integers(0, target - 1)), target) for target in range(1, count)]
    for _ in range(draw(st.integers(0, 2))):
        one, other = sorted(draw(st.tuples(*[st.integers(0, count - 1)] * 2)))
        back = loops and draw(st.booleans())
        if one != other:
            ends.append((other, one) if back else (one, other))
    channels = []
    for number, (source, target) in enumerate(ends):
        total = math.lcm(cycles[source], cycles[target]) * draw(st.integers(1, 2))
        made = spread(draw, total // cycles[source], actors[source].phases)
        taken = spread(draw, total // cycles[target], actors[target].phases)
        initial = draw(st.integers(0, total)) if target < source else draw(st.integers(0, 1))
        size = draw(st.sampled_from([1, 1, 1, 2, 5, 0]))
        channels.append(Channel(f"c{number}", source, target, made, taken, initial, size))
    return DataflowGraph("drawn", actors, tuple(channels))


def spread(draw: st.DrawFn, total: int, phases: int) -> tuple[int, ...]:
    """Draw ``phases`` rates with this sum."""
    cuts = sorted(draw(st.integers(0, total)) for _ in range(phases - 1))
    return tuple(end - start for start, end in zip([0, *cuts], [*cuts, total], strict=True))


def completes(
    graph: DataflowGraph, counts: Sequence[int], capacities: Sequence[int | None]
) -> bool:
    """Return whether *some* order of firings completes an iteration: all of them are tried."""
    start = (0,) * len(graph.actors)
    seen, waiting = {start}, [start]
    while waiting:
        fired = waiting.pop()
        if list(fired) == list(counts):
            return True
        for actor in range(len(fired)):
            after = (*fired[:actor], fired[actor] + 1, *fired[actor + 1 :])
            if (
                fired[actor] < counts[actor]
                and after not in seen
                and possible(graph, capacities, fired, actor)
            ):
                seen.add(after)
                waiting.append(after)
    return False


def possible(
    graph: DataflowGraph, capacities: Sequence[int | None], fired: Sequence[int], actor: int
) -> bool:
    """Return whether ``actor`` can fire after so many firings of each."""
    for channel, room in zip(graph.channels, capacities, strict=True):
        made = total(channel.production, fired[channel.source])
        held = channel.initial + made - total(channel.consumption, fired[channel.target])
        phase = fired[actor] % graph.actors[actor].phases
        if channel.target == actor and held < channel.consumption[phase]:
            return False
        put = channel.production[phase] if channel.source == actor else 0
        if put and room is not None and held + put > room:
            return False
    return True


def total(rates: Sequence[int], firings: int) -> int:
    whole, rest = divmod(firings, len(rates))
    return whole * sum(rates) + sum(rates[:rest])


def smaller(graph: DataflowGraph, size: int) -> Iterator[tuple[int | None, ...]]:
    """Yield all capacities of ``graph`` that take less than ``size``."""

    def rest(number: int, left: int) -> Iterator[tuple[int | None, ...]]:
        if number == len(graph.channels) or left < 0:
            yield from [()] * (left >= 0)
            return
        channel = graph.channels[number]
        if not channel.token_size:
            yield from ((None, *others) for others in rest(number + 1, left))
            return
        for tokens in range(channel.initial, left // channel.token_size + 1):
            used = tokens * channel.token_size
            yield from ((tokens, *others) for others in rest(number + 1, left - used))

    return rest(0, size - 1)
