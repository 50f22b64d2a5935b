"""Estimates: aligned with every plan, made of its pieces, launches and bytes, and the same for the same."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from models.packs.pack import open_pack
from models.packs.records.spans import Span
from pipeline.planning.estimates import (
    KERNEL_SECONDS,
    LAUNCH_SECONDS,
    Estimates,
    OperationTimes,
    arithmetic,
    of_pieces,
)
from pipeline.planning.joined_launches import joined
from pipeline.planning.make import make_plan
from pipeline.planning.plan import Choice, Plan
from pipeline.program.choice import choose_pieces, finest_positions
from pipeline.program.program import Program
from pipeline.program.region_plan import RowCut
from pipeline.program.steps import Phase, row_network
from pipeline.schedule.architectures import ARCHITECTURES
from tests.examples import examples
from tests.pipeline.networks import Network, heavy_tail, networks
from tests.pipeline.plans import plans
from tests.pipeline.program.regions import largest_regions
from tests.pipeline.program.row_programs import random_network
from tests.pipeline.small import maps_program, small_pack
from tests.pipeline.synthetic import PAGE

AUTO, PRE = ARCHITECTURES["auto"], ARCHITECTURES["pre"]
Drawn = tuple[Program, Plan]


@pytest.fixture(scope="module")
def maps(tmp_path_factory: pytest.TempPathFactory) -> Program:
    return maps_program(tmp_path_factory.mktemp("repository"))


def even(program: Program, page_seconds: float = 1e-5, kernel_seconds: float = 1e-3) -> Estimates:
    """Return estimates by kernels that all take as long, and bytes that move at one speed."""

    def read(n_bytes: int, in_flight: int) -> float:
        return in_flight * n_bytes / PAGE * page_seconds

    pieces = (kernel_seconds,) * len(program.pieces)
    return Estimates(program, OperationTimes(pieces, read, partial(read, in_flight=1)))


@examples(15, many=500)
@given(plans())
def test_every_operation_of_every_plan_has_a_time(drawn: Drawn) -> None:
    source, plan = drawn
    for estimates in (even(source), Estimates(source, arithmetic(source))):
        result = estimates.durations(plan)
        assert [len(row) for row in result.stages] == [len(stage) for stage in plan.stages]
        assert result.depth == plan.choice.depth
        # A read for the next sweep takes as long as the same one of this sweep.
        count = len(plan.reads)
        assert all(
            result.stages[0][n] == result.stages[0][n % count]
            for n in range(count, len(plan.stages[0]))
        )
        assert estimates.seconds(plan) >= sum(estimates.kernels(plan)) * (1 - 1e-9)


@examples(15, many=500)
@given(plans())
def test_kernels_are_their_pieces_and_a_launch_each(drawn: Drawn) -> None:
    """Of steps that are one launch only the first has it."""
    source, plan = drawn
    estimates = even(source)
    for candidate in (plan, joined(source, plan)):
        steps, launches = len(candidate.steps), candidate.launches
        expected = sum(estimates.times.pieces) + launches * LAUNCH_SECONDS
        expected += (steps - launches) * KERNEL_SECONDS
        assert sum(estimates.kernels(candidate)) == pytest.approx(expected)
    assert estimates.seconds(joined(source, plan)) <= estimates.seconds(plan)


@given(plans())
def test_with_all_weights_in_memory_the_estimate_is_that_of_kernels(drawn: Drawn) -> None:
    source, _ = drawn
    plan, estimates = make_plan(source, PRE), even(source)
    assert estimates.seconds(plan) == pytest.approx(sum(estimates.kernels(plan)))
    assert estimates.sweep(plan).stall_seconds == 0


@given(plans())
def test_equal_plans_take_as_long(drawn: Drawn) -> None:
    source, plan = drawn
    again = make_plan(source, plan.architecture, choice=plan.choice)
    estimates = even(source)
    assert estimates.seconds(plan) == estimates.seconds(again) == even(source).seconds(plan)


@examples(15, many=500)
@given(plans(), st.floats(1, 100))
def test_no_slower_disk_reduces_an_estimate(drawn: Drawn, factor: float) -> None:
    source, plan = drawn
    slower = even(source, page_seconds=1e-5 * factor)
    assert slower.seconds(plan) >= even(source).seconds(plan)


@examples(3, many=20)
@given(networks())
def test_more_bytes_from_a_slow_disk_take_longer(net: Network) -> None:
    """The same ring, and one layer after the other leaves memory."""
    estimates = replace(net, page_seconds=1e-2).estimates
    largest = net.program.largest_chunk_bytes
    streamed = [number for number, span in enumerate(net.program.spans) if not span.resident]
    choices = (
        Choice(
            largest, chunk_bytes=0, read_bytes=largest, depth=1, resident=tuple(streamed[:count])
        )
        for count in range(len(streamed), -1, -1)
    )
    result = [make_plan(net.program, AUTO, choice=choice) for choice in choices]
    assert [plan.read_bytes for plan in result] == sorted({plan.read_bytes for plan in result})
    seconds = [estimates.seconds(plan) for plan in result]
    assert seconds == sorted(seconds)


# On rows.


def test_phases_add_up_to_more_than_the_pieces_they_replace(maps: Program) -> None:
    estimates = Estimates(maps, arithmetic(maps))
    complete = make_plan(maps, PRE)
    for rows in (2, 8):
        for region in largest_regions(row_network(maps), RowCut(rows)):
            plan = make_plan(maps, PRE, choice=Choice(regions=(region,)))
            kernels = list(estimates.kernels(plan))
            assert len(kernels) == len(plan.steps)
            assert min(kernels) > LAUNCH_SECONDS
            assert sum(kernels) > sum(estimates.kernels(complete))


def test_pieces_outside_of_a_region_have_the_same_estimate_as_without_it(maps: Program) -> None:
    estimates = Estimates(maps, arithmetic(maps))
    separate = {
        id(step): seconds
        for plan in [make_plan(maps, PRE)]
        for step, seconds in zip(plan.steps, estimates.kernels(plan), strict=True)
    }
    beside = 0
    for region in largest_regions(row_network(maps), RowCut(4)):
        plan = make_plan(maps, PRE, choice=Choice(regions=(region,)))
        for step, seconds in zip(plan.steps, estimates.kernels(plan), strict=True):
            if not isinstance(step, Phase):
                assert seconds == separate[id(step)]
                beside += 1
    assert beside


def test_slow_pieces_are_slow_on_rows(maps: Program) -> None:
    (region,) = largest_regions(row_network(maps), RowCut(4))[:1]
    plan = make_plan(maps, PRE, choice=Choice(regions=(region,)))
    usual = arithmetic(maps)
    slow = replace(usual, pieces=tuple(10 * seconds for seconds in usual.pieces))
    fast, slower = (sum(Estimates(maps, times).kernels(plan)) for times in (usual, slow))
    assert 2 * fast < slower <= 10 * fast


def test_phases_are_those_of_their_network() -> None:
    """A region is named by its pieces: that of another network is another one."""
    compared = 0
    for seed in range(12):
        network = random_network(Random(seed), 8)
        estimates = Estimates(network, arithmetic(network))
        for rows in (1, 2, 1):
            for region in largest_regions(row_network(network), RowCut(rows)):
                plan = make_plan(network, PRE, choice=Choice(regions=(region,)))
                fresh = Estimates(network, arithmetic(network))
                assert list(estimates.kernels(plan)) == list(fresh.kernels(plan))
                compared += 1
    assert compared > 12


# Of traces.


@given(networks(), st.data())
def test_the_finest_pieces_take_what_was_traced(net: Network, data: st.DataObject) -> None:
    limit = data.draw(st.sampled_from([0, 64 * PAGE, 128 * PAGE, None]))
    chosen = choose_pieces(net.program, limit)
    traced = data.draw(_seconds(len(chosen)))
    result = of_pieces(net.program, chosen, traced)
    assert len(result) == len(net.program.pieces)
    for run, seconds in zip(finest_positions(net.program, chosen), traced, strict=True):
        of_run = result[run.start : run.stop]
        assert sum(of_run) == pytest.approx(max(seconds - LAUNCH_SECONDS, 0.0))
        assert min(of_run) >= 0.0


def _seconds(count: int) -> st.SearchStrategy[Sequence[float]]:
    return st.lists(st.floats(0, 1), min_size=count, max_size=count)


def test_larger_chunks_of_a_layer_have_more_of_its_time(tmp_path: Path) -> None:
    program = Program.as_compiled(open_pack(small_pack(tmp_path)))
    chosen = choose_pieces(program, None)
    result = of_pieces(program, chosen, [1.0] * len(chosen))
    runs = [run for run in finest_positions(program, chosen) if len(run) > 1]
    assert runs
    for run in runs:
        lengths = [sum(s.length for s in _spans(program, piece)) for piece in run]
        fractions = [result[piece] for piece in run]
        assert sorted(fractions) == [
            fraction for _, fraction in sorted(zip(lengths, fractions, strict=True))
        ]


def _spans(program: Program, number: int) -> Sequence[Span]:
    piece = program.pieces[number]
    return () if piece.span is None else program.spans[piece.span : piece.span + piece.n_spans]


def test_the_trace_of_an_estimate_gives_that_estimate_again() -> None:
    net = heavy_tail(1e-5)
    plan = make_plan(net.program, PRE)
    traced = list(net.estimates.kernels(plan))
    pieces = of_pieces(net.program, choose_pieces(net.program, None), traced)
    again = Estimates(net.program, replace(net.times, pieces=pieces))
    assert list(again.kernels(plan)) == pytest.approx(traced)
