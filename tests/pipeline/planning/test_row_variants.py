"""Variants on rows: sketches against plans of the same regions, and what a search finds."""

import itertools
import random
import re
from dataclasses import replace
from functools import partial
from pathlib import Path

import onnx
import pytest

from models.compiler import compile_onnx
from models.default import FOLDER
from models.packs.pack import open_pack
from models.zoo.builder import SkeletonBuilder
from models.zoo.patchnet import patchnet
from pipeline.fitting import row_variants as searching
from pipeline.fitting.fit import fit
from pipeline.fitting.predicting import Predictions
from pipeline.fitting.row_variants import row_variants
from pipeline.fitting.trade_off import costs_of_least
from pipeline.fitting.wanted import LEAST, EnginePlanResult, Wanted
from pipeline.planning.found_plans import FoundPlans
from pipeline.planning.plan import PlanError
from pipeline.planning.rows.variants import find_variants
from pipeline.planning.rows.walk import EFFORT
from pipeline.planning.smallest import smallest_plan
from pipeline.program.lives import taken_by_rows
from pipeline.program.prepare import prepare
from pipeline.program.program import Program
from pipeline.program.region_plan import RowCut
from pipeline.program.steps import STEP_BYTES
from pipeline.program.stopping import PlanningStoppedError, stopping_when, telling
from pipeline.schedule.architectures import ARCHITECTURES
from tests.models.nets import filled, written
from tests.pipeline.made_profiles import measured, profile
from tests.pipeline.program.promises import check_sketches
from tests.pipeline.small import TwoThreads, maps_program

AUTO = ARCHITECTURES["auto"]


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Program:
    return maps_program(tmp_path_factory.mktemp("repository"))


def test_sketches_have_the_memory_of_the_regions(program: Program) -> None:
    assert check_sketches(program) > 20


def test_each_variant_is_smaller_than_all_faster_ones(program: Program) -> None:
    variants = row_variants(program, AUTO).variants
    assert len(variants) > 1
    for faster, slower in itertools.pairwise(variants):
        assert faster.seconds <= slower.seconds
        assert faster.n_bytes > slower.n_bytes


def test_plans_take_what_variants_promise(program: Program) -> None:
    for variant in row_variants(program, AUTO).variants:
        plan = smallest_plan(program, AUTO, variant.regions, variant.chunk_bytes)
        taken = plan.arena_bytes + plan.ring_bytes + plan.scratch_bytes + plan.session_bytes
        taken += STEP_BYTES * len(plan.steps)
        assert taken == pytest.approx(variant.n_bytes, rel=0.1)


def test_few_rows_at_a_time_are_said_to_cost_more_than_many(program: Program) -> None:
    """The same regions, whose kernels do the same in all, in more and more launches."""
    least = fit(program, AUTO, LEAST).plan
    assert least.choice.regions
    taken = []
    for rows in (1, 2, 4, 8):
        regions = tuple(replace(each, cut=RowCut(rows)) for each in least.choice.regions)
        plan = smallest_plan(program, AUTO, regions, least.choice.chunk_bytes)
        taken.append(Predictions.of(program, None).seconds(plan))
    assert taken == sorted(set(taken), reverse=True)


def test_the_smallest_plan_has_a_cost_and_a_quicker_one_takes_more_memory(tmp_path: Path) -> None:
    program = Program.as_compiled(open_pack(compile_onnx(FOLDER / "cifar10.onnx", tmp_path / "m")))
    least = fit(program, AUTO, LEAST).plan
    costs = costs_of_least(program, least)
    assert costs[0].total_bytes == least.total_bytes
    assert costs[0].times > 1
    assert len(costs) == 2
    assert costs[1].times <= 1.3
    assert all(cost.estimated for cost in costs)
    for cost in costs[1:]:
        assert cost.total_bytes > least.total_bytes
        assert cost.times < costs[0].times
        room = Wanted(total_bytes=cost.total_bytes)
        assert fit(program, AUTO, room).plan.total_bytes <= cost.total_bytes
    existing = profile(program)
    assert all(cost.estimated for cost in costs_of_least(program, least, profile=existing))
    raced = existing.with_plans((measured(least, 7.0),))
    assert costs_of_least(program, least, profile=raced)[0].times == pytest.approx(7.0, rel=0.01)


def test_the_search_is_deterministic(program: Program) -> None:
    program.let_go()
    first = row_variants(program, AUTO)
    program.let_go()
    assert row_variants(program, AUTO) == first


def test_what_a_clock_ended_says_so_and_is_not_kept(
    program: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    program.let_go()
    existing = FoundPlans()
    wanted = Wanted(total_bytes=2 * fit(program, AUTO, LEAST).plan.total_bytes)
    program.let_go()
    ending = partial(find_variants, most=replace(EFFORT, seconds=-1.0))
    monkeypatch.setattr(searching, "find_variants", ending)
    ended = fit(program, AUTO, wanted, cached=existing)
    assert not ended.complete
    assert not existing.all().plans
    monkeypatch.undo()
    program.let_go()
    found = fit(program, AUTO, wanted, cached=existing)
    assert found.complete
    assert "all that may save memory" in found.reasons[-1]


def test_a_limit_of_activations_is_kept(program: Program) -> None:
    def taken(wanted: Wanted) -> int:
        plan = fit(program, AUTO, wanted).plan
        return plan.arena_bytes + plan.scratch_bytes + plan.io_bytes

    whole = taken(Wanted())
    for part in (0.9, 0.7):
        limit = int(part * whole)
        assert taken(Wanted(arena_bytes=limit)) <= limit
        assert taken(Wanted(arena_bytes=limit, least=True)) <= limit
    with pytest.raises(PlanError, match="1000 bytes of activations are too few") as caught:
        fit(program, AUTO, Wanted(arena_bytes=1000))
    least = named_bytes(caught.value)
    assert taken(Wanted(arena_bytes=least)) == least < 0.7 * whole


def test_scratch_counts_among_activations(tmp_path: Path) -> None:
    """Narrow layers run as one piece, with what is between them in scratch; in a region they need none."""
    options = {"patches": 1, "central": False, "margin": 0, "expansion": 2, "stem": 16}
    source = written(
        filled(patchnet(64, budget=24 << 10, classes=4, **options)), tmp_path / "p.onnx"
    )
    found = prepare(open_pack(compile_onnx(source, tmp_path / "p")), TwoThreads())
    scratch = max(piece.scratch_bytes for piece in found.pieces)
    with pytest.raises(PlanError) as caught:
        fit(found, AUTO, Wanted(arena_bytes=1))
    least = named_bytes(caught.value)
    plan = fit(found, AUTO, Wanted(arena_bytes=least)).plan
    assert plan.arena_bytes + plan.scratch_bytes + plan.io_bytes == least
    assert plan.scratch_bytes < least < scratch


@pytest.mark.parametrize("seed", [4, 5])
def test_what_is_least_before_a_profile_is_enough_with_one(program: Program, seed: int) -> None:
    """Whatever it measured, and however long is searched: budgets are named when nothing is measured."""
    draw, even = random.Random(seed), profile(program)
    drawn = tuple(10 ** draw.uniform(-5, -1) for _ in even.pieces)
    existing = replace(even, pieces=drawn)
    least = fit(program, AUTO, LEAST).plan.total_bytes
    for wanted in (LEAST, Wanted(total_bytes=least)):
        assert fit(program, AUTO, wanted, existing).plan.total_bytes <= least


def named_bytes(fault: PlanError) -> int:
    """Return what was found, as an error says."""
    return int(re.findall(r"takes .*\((\d+) bytes\)", str(fault))[0])


def test_an_image_whose_patches_are_read_by_rows_takes_no_memory(tmp_path: Path) -> None:
    made = compile_onnx(written(patches(), tmp_path / "patches.onnx"), tmp_path / "patches")
    found = prepare(open_pack(made), TwoThreads())
    (image,) = found.inputs
    whole = fit(found, AUTO, Wanted()).plan
    room = Wanted(arena_bytes=190_000 + whole.scratch_bytes)
    plans = [whole, fit(found, AUTO, room).plan]
    assert [image.value in taken_by_rows(found, plan.steps) for plan in plans] == [False, True]
    assert plans[1].arena_bytes < image.n_bytes < plans[0].arena_bytes


def patches() -> onnx.ModelProto:
    """Return two tunnels of two patches of an image."""
    net = SkeletonBuilder("patches", 128)
    means = []
    for top, left in ((0, 0), (56, 50)):
        x = net.relu(net.conv(net.crop(net.image, top, left, 72, 72), 32, 3, stride=2))
        means.append(net.global_pool(net.relu(net.conv(x, 16, 3, stride=2))))
    return filled(net.model(net.linear(net.flatten(net.add(*means)), 4)))


def found_anew(program: Program, most_asks: int) -> tuple[EnginePlanResult | None, int]:
    """Plan within twice the least, until it was asked so often; return the plan, and how often it was."""
    program.let_go()
    asks = itertools.count(1)
    asked = [0]

    def is_unwanted() -> bool:
        asked[0] = next(asks)
        return asked[0] > most_asks

    try:
        with stopping_when(is_unwanted):
            room = 2 * fit(program, AUTO, LEAST).plan.total_bytes
            return fit(program, AUTO, Wanted(total_bytes=room), profile(program)), asked[0]
    except PlanningStoppedError:
        return None, asked[0]


def test_a_search_ends_wherever_it_is_stopped_and_the_next_one_finds_the_same(
    program: Program,
) -> None:
    whole, count = found_anew(program, 1 << 30)
    assert whole is not None
    assert count > 100
    for stopped in range(0, count, count // 3):
        assert found_anew(program, stopped) == (None, stopped + 1)
    again, _ = found_anew(program, count)
    assert again is not None
    assert again.plan.choice == whole.plan.choice


def test_a_search_says_how_far_it_is(program: Program) -> None:
    said: list[tuple[str, int, int]] = []
    with telling(lambda *how_far: said.append(how_far)):
        fit(program, AUTO, Wanted(total_bytes=1 << 30), profile(program))
    assert said
    assert all(0 <= done <= of for _, done, of in said)
