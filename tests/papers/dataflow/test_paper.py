"""Seed 001: its worked example to the digit."""

from dataclasses import replace

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from models.network.windows import Window
from papers.cnn.layers import Cnn, CnnLayer, Edge, Shape
from papers.dataflow.consistency import firings
from papers.dataflow.conversion import WindowOverlap, convert
from papers.dataflow.csdf import Actor, Channel, DataflowError, DataflowGraph
from papers.dataflow.schedules import schedule
from papers.dataflow.smallest_buffers import small_buffers
from papers.dataflow.throughput import full_throughput
from tests.examples import over
from tests.papers.dataflow.cnns import figure_1
from tests.papers.dataflow.graphs import completes


def sequences(graph: DataflowGraph) -> dict[str, tuple[tuple[int, ...], tuple[int, ...]]]:
    return {c.name: (c.production, c.consumption) for c in graph.channels}


def test_algorithm_1_gives_figure_1() -> None:
    graph = convert(figure_1(), WindowOverlap.LOOP)
    assert [actor.phases for actor in graph.actors] == [32, 16, 4, 1, 1]
    found = sequences(graph)
    assert found == {
        "n1 -> n2": ((32,) * 32, (544, *(32,) * 15)),
        "n2 -> n2": ((*(512,) * 15, 0), (0, *(512,) * 15)),
        "n2 -> n3": ((64,) * 16, (384, 192, 192, 256)),
        "n3 -> n3": ((128, 128, 128, 0), (0, 128, 128, 128)),
        "n3 -> n4": ((12,) * 4, (48,)),
        "n4 -> n5": ((2,), (2,)),
    }


@over(
    "overlap, rows, buffers",
    [
        (WindowOverlap.RING, 1, (544, 384, 48, 2)),  # Ex4: 978
        (WindowOverlap.CHANNEL, 1, (544, 384, 48, 2)),
        (WindowOverlap.LOOP, 1, (544, 1024, 384, 256, 48, 2)),  # 2258
        (WindowOverlap.CHANNEL, 0, (1024, 1024, 48, 2)),  # Ex1: 2098
        (WindowOverlap.CHANNEL, (1, 1, 0, 1, 1), (544, 1024, 48, 2)),  # Ex3: 1618
    ],
)
def test_minimum_buffers(
    overlap: WindowOverlap, rows: int | tuple[int, ...], buffers: tuple[int, ...]
) -> None:
    graph = convert(figure_1(), overlap, rows)
    found = small_buffers(graph, firings(graph))
    assert tuple(room for room in found.capacities if room is not None) == buffers
    assert found.size == found.lower_bound == sum(buffers)


def test_more_rows_than_anybody_fires_are_refused_before_they_are_listed() -> None:
    cnn = figure_1()
    first = replace(cnn.layers[0], output=replace(cnn.layers[0].output, height=1 << 40))
    with pytest.raises(DataflowError, match=r"phases, more than 2,000,000; with more rows in each"):
        convert(replace(cnn, layers=(first, *cnn.layers[1:])))


def test_a_layer_without_rows_is_refused() -> None:
    layers = (
        CnnLayer("x", "input", Shape(4, 5, 2)),
        CnnLayer("y", "conv", Shape(0, 5, 3), Window(5)),
    )
    with pytest.raises(DataflowError, match=r"one: layer y has no rows"):
        convert(Cnn("one", layers, (Edge(0, 1),)))


def test_example_2_makes_the_overlap_twice() -> None:
    """n1 in two phases of 24 rows, so that n2 needs nothing of its first phase in its second."""
    whole = convert(figure_1(), rows=0)
    actors = (Actor("n1", (1, 1)), Actor("n2", (1, 1)), *whole.actors[2:])
    first = Channel("n1 -> n2", 0, 1, (768, 768), (768, 768))
    second = replace(whole.channels[1], production=(512, 512))
    graph = DataflowGraph("Ex2", actors, (first, second, *whole.channels[2:]))
    found = small_buffers(graph, firings(graph))
    assert (found.size, found.proven) == (1842, True)


def test_the_order_of_example_4() -> None:
    """n1 17 times, then n2, then in turns; n3 when six rows of n2 are there."""
    graph = convert(figure_1(), WindowOverlap.CHANNEL)
    counts = firings(graph)
    order = schedule(graph, counts, small_buffers(graph, counts).capacities)
    expected = [0] * 17 + [1]
    expected += [0, 1] * 5 + [2] + [0, 1] * 3 + [2] + [0, 1] * 3 + [2] + [0, 1] * 4 + [2, 3, 4]
    assert order == expected


@over(
    "overlap, input_time, size",
    [
        (WindowOverlap.RING, 1, 1010),  # every phase takes as long
        (WindowOverlap.RING, 2, 1010),
        (WindowOverlap.CHANNEL, 2, 1010),  # the camera is slower than the layers
        (WindowOverlap.CHANNEL, 1, 1042),
    ],
)
def test_minimum_buffers_at_full_throughput(
    overlap: WindowOverlap, input_time: int, size: int
) -> None:
    graph = convert(figure_1(), overlap)
    camera = replace(graph.actors[0], times=(input_time,) * 32)
    timed = replace(graph, actors=(camera, *graph.actors[1:]))
    assert full_throughput(timed, firings(timed)).size == size


@given(
    st.builds(
        Window,
        kernel=st.integers(1, 7),
        stride=st.integers(1, 4),
        before=st.integers(-2, 3),
        behind=st.integers(-2, 3),
    ),
    st.integers(8, 30),
)
def test_line_12_counts_the_phases(window: Window, height: int) -> None:
    rows = (height + window.before + window.behind - window.kernel) // window.stride + 1
    assume(rows > 0)
    layers = (
        CnnLayer("x", "input", Shape(height, 5, 2)),
        CnnLayer("y", "conv", Shape(rows, 5, 3), window),
    )
    for overlap in WindowOverlap:
        graph = convert(Cnn("one", layers, (Edge(0, 1),)), overlap)
        assert graph.actors[1].phases == rows
        counts = firings(graph)
        assert counts == (height, rows)
        channel = graph.channels[0]
        assert sum(channel.production) == sum(channel.consumption) == 10 * height
        kept = max(window.kernel - window.stride, 0)
        for loop in graph.channels:
            if loop.source == loop.target:
                assert max(loop.production) <= 10 * kept
                assert loop.production[-1] == loop.consumption[0] == 0


@pytest.mark.parametrize("overlap", WindowOverlap)
def test_no_order_of_firings_does_with_a_token_less(overlap: WindowOverlap) -> None:
    """Each buffer of Fig. 1 by itself, the others without limits: so their sum is the least, too."""
    graph = convert(figure_1(), overlap)
    counts = firings(graph)
    rooms = small_buffers(graph, counts).capacities
    for number, room in enumerate(rooms):
        if room is not None:
            less: list[int | None] = [None] * len(rooms)
            less[number] = room - 1
            assert not completes(graph, counts, less)
    assert completes(graph, counts, rooms)
