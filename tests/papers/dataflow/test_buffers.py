"""Smallest buffers: what is found is as small as anything that trying everything finds, and it runs."""

import pytest
from hypothesis import assume, given

from papers.dataflow.consistency import firings, repetitions
from papers.dataflow.conversion import WindowOverlap, convert
from papers.dataflow.csdf import Actor, Channel, DataflowError, DataflowGraph
from papers.dataflow.schedules import dataflow_arena, moments, schedule
from papers.dataflow.smallest_buffers import alone, blocks, greedy, search, small_buffers
from papers.dataflow.throughput import full_throughput, self_timed, shortest_period
from tests.examples import examples, over
from tests.papers.dataflow.cnns import mobilenet_v2, resnet_18
from tests.papers.dataflow.graphs import completes, graphs, smaller, total

_MOST_TRIED = 3000


def live(graph: DataflowGraph) -> tuple[int, ...]:
    """Return the firings of ``graph``; a graph that stops is no example."""
    try:
        return firings(graph)
    except DataflowError:
        assume(False)
        raise


def iteration(graph: DataflowGraph) -> list[int]:
    """Return how often each actor fires in an iteration."""
    pairs = zip(repetitions(graph), graph.actors, strict=True)
    return [cycles * actor.phases for cycles, actor in pairs]


@given(graphs())
@examples(10, many=500, deadline=None)
def test_a_graph_stops_just_when_no_order_of_firings_completes(graph: DataflowGraph) -> None:
    counts = [0] * len(graph.actors)
    try:
        counts[:] = firings(graph)
    except DataflowError:
        counts[:] = iteration(graph)
        assert not completes(graph, counts, [None] * len(graph.channels))
    else:
        assert completes(graph, counts, [None] * len(graph.channels))


@given(graphs(most_actors=3))
@examples(10, many=500, deadline=None)
def test_no_smaller_buffers_let_a_graph_run(graph: DataflowGraph) -> None:
    counts = live(graph)
    found = search(graph, counts, 2000)
    assert found.capacities is not None
    assert completes(graph, counts, found.capacities)
    size = graph.size(found.capacities)
    assert size == found.bound
    for tried, capacities in enumerate(smaller(graph, size)):
        assume(tried < _MOST_TRIED)
        assert not completes(graph, counts, capacities), capacities


@given(graphs())
@examples(10, many=500, deadline=None)
def test_what_is_found_for_large_graphs_is_no_smaller_and_runs(graph: DataflowGraph) -> None:
    counts = live(graph)
    exact = search(graph, counts, 5000)
    assert exact.capacities is not None
    size = graph.size(exact.capacities)
    assert small_buffers(graph, counts).size == size  # block by block is as good as at once
    few = small_buffers(graph, counts, nodes=1)
    assert few.lower_bound <= size <= few.size
    for block in blocks(graph, counts):
        rooms = greedy(block, alone(block.graph, block.counts))
        assert completes(block.graph, block.counts, rooms)


@given(graphs())
@examples(10, many=500, deadline=None)
def test_schedules_never_under_or_overflow_and_fit_in_an_arena(graph: DataflowGraph) -> None:
    counts = live(graph)
    buffers = small_buffers(graph, counts)
    order = schedule(graph, counts, buffers.capacities)
    fired = [0] * len(graph.actors)
    for moment in moments(graph, counts, buffers.capacities, order):
        fired[moment.actor] += 1
        for channel, room, held in zip(
            graph.channels, buffers.capacities, moment.held, strict=True
        ):
            left = total(channel.consumption, fired[channel.target])
            assert channel.initial + total(channel.production, fired[channel.source]) >= left
            assert room is None or held <= room
    assert fired == list(counts)
    arena = dataflow_arena(graph, buffers.capacities, order)
    assert arena.live <= arena.size <= buffers.size


@given(graphs(most_actors=3, loops=False))
@examples(6, many=500, deadline=None)
def test_full_throughput_is_that_without_limits(graph: DataflowGraph) -> None:
    assume(all(channel.token_size for channel in graph.channels))
    counts = live(graph)
    period = shortest_period(graph, counts)
    try:
        found = full_throughput(graph, counts, nodes=400)
    except DataflowError:
        assume(False)
        raise
    assert self_timed(graph, counts, found.capacities).period == period
    assert found.size >= small_buffers(graph, counts).size
    roomy = [1000] * len(graph.channels)
    assert self_timed(graph, counts, roomy).period == period
    for channel, room in enumerate(found.capacities):
        tighter = [*found.capacities]
        tighter[channel] = (room or 0) - 1
        if room is not None and room > graph.channels[channel].initial:
            slower = self_timed(graph, counts, tighter).period
            assert slower is None or slower > period


def test_orders_that_cannot_be_are_refused() -> None:
    graph = convert(resnet_18(), WindowOverlap.CHANNEL)
    counts = firings(graph)
    buffers = small_buffers(graph, counts)
    order = schedule(graph, counts, buffers.capacities)
    less = [room and room - 1 for room in buffers.capacities]
    for wrong, capacities, said in (
        (order[::-1], buffers.capacities, "takes"),
        (order, less, "needs room"),
        ([*order, order[-1]], buffers.capacities, "fires more than"),
        (order[:-1], buffers.capacities, "fires 0 times in an iteration, not 1"),
    ):
        with pytest.raises(DataflowError, match=said):
            list(moments(graph, counts, capacities, wrong))


def chain(*rates: tuple[int, int], initial: int = 0, back: bool = False) -> DataflowGraph:
    """Return actors in a row with ``rates``; ``back``: the last is followed by the first."""
    actors = tuple(Actor(f"a{number}", (1,)) for number in range(len(rates) + (not back)))
    channels = tuple(
        Channel(f"c{n}", n, (n + 1) % len(actors), (made,), (taken,), initial)
        for n, (made, taken) in enumerate(rates)
    )
    return DataflowGraph("chain", actors, channels)


@over(
    "graph, said",
    [
        (
            chain((1, 1), (1, 1), (1, 1), back=True),
            r"deadlocks: each of 'a0' -> 'a1' -> 'a2' -> 'a0'",
        ),
        (chain((1, 2), (1, 1), (1, 1), back=True), r"inconsistent at .*around 'a\d' -> 'a\d' -> "),
        (chain(*[(1, 1)] * 20, back=True), r"'a5' -> \(13 more\) -> "),
        (chain((1, 10**7), (1, 10**7)), "an iteration has .* firings, more than"),
    ],
)
def test_cycles_are_named(graph: DataflowGraph, said: str) -> None:
    with pytest.raises(DataflowError, match=said):
        firings(graph)


@over(
    "change, said",
    [
        ({"production": (1, 2)}, "2 rates at 'a', which has 1 phases"),
        ({"consumption": (-1,)}, "a rate below 0 at 'b'"),
        ({"production": (0,)}, "all rates at 'a' are 0"),
        ({"target": 2}, "its target is no actor"),
        ({"initial": -1}, "initial tokens and token size are 0 or more"),
    ],
)
def test_what_is_no_graph_is_refused(change: dict[str, object], said: str) -> None:
    fields = {"source": 0, "target": 1, "production": (1,), "consumption": (1,), **change}
    with pytest.raises(DataflowError, match=said):
        DataflowGraph("g", (Actor("a", (1,)), Actor("b", (1,))), (Channel("c", **fields),))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "most"),
    [("resnet", 282_752), pytest.param("mobilenet", 439_200, marks=pytest.mark.slow)],
)
def test_real_networks_by_rows(name: str, most: int) -> None:
    """The bounds are without the output's own buffer, of 1000 elements."""
    cnn = mobilenet_v2() if name == "mobilenet" else resnet_18()
    graph = convert(cnn)
    counts = firings(graph)
    buffers = small_buffers(graph, counts)
    assert buffers.proven
    assert buffers.size - 1000 == most
    honest = convert(cnn, WindowOverlap.CHANNEL)
    rooms = small_buffers(honest, counts)
    assert rooms.proven
    arena = dataflow_arena(honest, rooms.capacities, schedule(honest, counts, rooms.capacities))
    assert arena.size <= {"mobilenet": 251_552, "resnet": 220_000}[name]


def test_a_graph_without_actors_is_none() -> None:
    with pytest.raises(DataflowError, match="g: no actors"):
        DataflowGraph("g", (), ())


@pytest.mark.parametrize("count", [300, 16_000])
def test_more_firings_than_can_be_written_down_are_refused_in_a_line(count: int) -> None:
    actors = tuple(Actor(f"a{number}", (1,)) for number in range(count))
    channels = tuple(Channel(f"c{n}", n, n + 1, (2,), (1,)) for n in range(count - 1))
    with pytest.raises(DataflowError, match="and more firings") as caught:
        repetitions(DataflowGraph("g", actors, channels))
    assert len(str(caught.value)) < 200


def test_a_search_for_full_throughput_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever each execution takes: many actors and channels count."""
    monkeypatch.setattr("papers.dataflow.throughput._MOST_WORK", 200)
    graph = convert(resnet_18(), WindowOverlap.RING)
    with pytest.raises(DataflowError, match="1 capacities were not enough"):
        full_throughput(graph, firings(graph))
