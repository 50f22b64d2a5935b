"""Drawn applications: live bytes never overlap, reuse never costs, closed form and schedule agree."""

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from models.network.windows import Window
from papers.applications.application import Application, ApplicationError, CnnBuffer, naive
from papers.applications.cost import Evaluator
from papers.applications.parts import PartitionParts
from papers.applications.placements import arena_elements, greedy_by_size
from papers.applications.reuse import check, reuse
from papers.applications.schedule import Firing
from papers.cnn.layers import Cnn, CnnLayer, Edge, Shape
from tests.papers.applications.drawn import applications, chromosomes, cnns, example


@given(applications(), st.data())
def test_no_two_edges_use_a_buffer_at_once(application: Application, data: st.DataObject) -> None:
    """Whole and by parts, judged on what runs when, not by the bits that Algorithm 1 works with."""
    genes = data.draw(chromosomes(application))
    evaluator = Evaluator(application)
    for chosen in (evaluator.all_whole(), genes):
        derived, sizes = evaluator.derived(chosen)
        buffers = evaluator.buffers(chosen)
        check(derived, buffers, sizes)
        assert buffers == reuse(derived, sizes)
        for buffer in buffers:
            _judge(derived, buffer)


def _judge(application: Application, buffer: CnnBuffer) -> None:
    """Play every pair of steps that may happen at once, and let each edge claim its buffer."""
    used = [_moments(application, held.cnn, held.edge, held.copy) for held in buffer.edges]
    for place, one in enumerate(used):
        for other in used[:place]:
            for partition, step in one:
                for beside, at in other:
                    same = partition == beside and step == at
                    assert not same
                    assert not application.parallel(partition, beside)


def _moments(application: Application, number: int, index: int, copy: int) -> set[tuple[int, int]]:
    """Return in which steps of which partitions an edge holds data, frame by frame."""
    edge = application.cnns[number].edges[index]
    own = application.of_cnn(number)
    steps = [
        (partition, step)
        for partition in own
        for step in range(len(application.partitions[partition].schedule))
    ]
    start = application.first_step(number, edge.source)
    end = application.first_step(number, edge.target)
    if copy:  # frames follow each other through the partitions: its buffers never rest
        return {moment for moment in steps if start[0] <= moment[0] <= end[0]}
    return {moment for moment in steps if start <= moment <= end}


@given(applications())
def test_reuse_takes_no_more_than_naive(application: Application) -> None:
    assert application.memory(reuse(application)) <= application.memory(naive(application))


@given(applications())
def test_double_buffers_are_shared_with_no_one_at_work(application: Application) -> None:
    for buffer in reuse(application):
        edges = [(held.cnn, held.edge) for held in buffer.edges]
        assert len(set(edges)) == len(edges)  # the copies of an edge lie apart
        for held in buffer.edges:
            for other in buffer.edges:
                if held.copy and other is not held:
                    assert other.cnn != held.cnn


@given(cnns(most=8), st.data())
def test_no_edge_holds_more_than_the_closed_form_says(cnn: Cnn, data: st.DataObject) -> None:
    count = len(cnn.layers)
    genes = tuple(
        data.draw(st.lists(st.sampled_from((0, 1, 2, 4)), min_size=count, max_size=count))
    )
    parts = PartitionParts(cnn, range(count))
    for run in parts.runs(genes):
        if run.by_parts:
            firing = Firing(cnn, range(run.start, run.end), genes)
            fired = list(firing.order())
            said = parts.held_rows(run, genes)
            assert all(most <= said[edge] for edge, most in firing.most.items())
            for layer in range(run.start, run.end):
                assert fired.count(layer) == -(-cnn.layers[layer].output.height // genes[layer])


def test_more_rows_than_anybody_goes_through_are_refused() -> None:
    shape = Shape(1 << 40, 1, 1)
    cnn = Cnn("tall", (CnnLayer("n1", "Conv", shape), CnnLayer("n2", "Conv", shape)), ())
    with pytest.raises(
        ApplicationError, match=r"^tall: .* rows in all layers, more than 2,097,152"
    ):
        PartitionParts(cnn, range(2))


@given(cnns(most=8), st.data())
def test_what_is_remembered_changes_nothing(cnn: Cnn, data: st.DataObject) -> None:
    count = len(cnn.layers)
    genes = st.lists(st.sampled_from((0, 1, 2, 4)), min_size=count, max_size=count).map(tuple)
    remembering = PartitionParts(cnn, range(count))
    for own in data.draw(st.lists(genes, min_size=2, max_size=6)):
        for run in remembering.runs(own):
            if run.by_parts:
                fresh = PartitionParts(cnn, range(count))
                assert remembering.held_rows(run, own) == fresh.held_rows(run, own)


@given(cnns(most=8), st.sampled_from((1, 2, 4)))
def test_chains_hold_exactly_what_the_closed_form_says(cnn: Cnn, rows: int) -> None:
    chain = all(edge.target == edge.source + 1 for edge in cnn.edges)
    assume(chain and len(cnn.edges) == len(cnn.layers) - 1)
    genes = tuple(rows for _ in cnn.layers)
    parts = PartitionParts(cnn, range(len(genes)))
    for run in parts.runs(genes):
        if run.by_parts:
            firing = Firing(cnn, range(run.start, run.end), genes)
            assert list(firing.order())
            assert parts.held_rows(run, genes) == firing.most


@given(cnns())
def test_greedy_by_size_never_overlaps(cnn: Cnn) -> None:
    placed = greedy_by_size(cnn)
    for place, one in enumerate(placed):
        for other in placed[:place]:
            if one.start < other.end and other.start < one.end:
                ends = one.offset + one.size, other.offset + other.size
                assert ends[0] <= other.offset or ends[1] <= one.offset
    assert arena_elements(placed) <= sum(item.size for item in placed)


def test_the_judge_finds_what_is_wrong() -> None:
    application = example()
    buffers = reuse(application)
    together = CnnBuffer(buffers[1].size, (*buffers[0].edges, *buffers[1].edges))
    for wrong, said in (
        ((together, *buffers[2:]), "at once"),
        (buffers[:-1], "not every edge"),
        ((CnnBuffer(1, buffers[0].edges), *buffers[1:]), "not as large"),
    ):
        with pytest.raises(ApplicationError, match=said):
            check(application, wrong)


def test_networks_may_be_deeper_than_recursion() -> None:
    layers = tuple(
        CnnLayer(f"l{n}", "conv", Shape(3, 1, 1), Window(3, before=1, behind=1))
        for n in range(1500)
    )
    cnn = Cnn("deep", layers, tuple(Edge(n, n + 1) for n in range(1499)))
    firing = Firing(cnn, range(1500), [1] * 1500)
    assert len(list(firing.order())) == 3 * 1500
    assert set(firing.most.values()) == {3}
