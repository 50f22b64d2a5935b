"""Launches of several steps: the schedule does not see them, and they take what they are allowed."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from models.packs.records.pieces import Operand, Value
from models.packs.target import named_target
from pipeline.planning import joined_launches as joining
from pipeline.planning.joined_launches import apart, joined, smallest_launches
from pipeline.planning.make import make_plan
from pipeline.planning.plan import Plan
from pipeline.program.program import Program
from pipeline.schedule.architectures import ARCHITECTURES
from pipeline.schedule.schedule import awaited
from tests.examples import examples
from tests.pipeline.plans import plans
from tests.pipeline.synthetic import program_of, record


@examples(15, many=500, deadline=None)
@given(plans())
def test_nothing_waits_inside_a_launch(drawn: tuple[Program, Plan]) -> None:
    source, plan = drawn
    longer = joined(source, plan)
    kernels, ended = plan.stages[-1].after, awaited(plan.stages)
    for run in longer.runs:
        assert len(run) > 1
        assert not ended.intersection(run[:-1])
        for position in run[1:]:
            # What its weights, their copies and their places wait for is there when the first one begins.
            assert kernels[position][:-1] <= kernels[run.start][:-1]
    starts = [position for run in longer.runs for position in run]
    assert starts == sorted(set(starts))
    assert longer.launches == len(plan.steps) - len(starts) + len(longer.runs)
    assert longer.stages == plan.stages
    assert replace(apart(longer), choice=plan.choice).steps == plan.steps


@examples(15, many=500, deadline=None)
@given(plans(), st.integers(0, 64 << 10))
def test_launches_of_the_smallest_plan_use_no_more_than_all_or_none(
    drawn: tuple[Program, Plan], scratch_bytes: int
) -> None:
    source, plan = drawn
    pieces = tuple(piece._replace(scratch_bytes=scratch_bytes) for piece in source.pieces)
    source = replace(source, pieces=pieces)
    plan = make_plan(source, plan.architecture, choice=plan.choice)
    min_plan = smallest_launches(source, plan)
    assert min_plan.total_bytes <= min(plan.total_bytes, joined(source, plan).total_bytes)
    assert make_plan(source, plan.architecture, choice=min_plan.choice) == min_plan


def test_what_launches_allocate_decides_how_long_they_are_in_the_smallest_plan() -> None:
    """Each step keeps as much as it allocates: of all in one launch that is more than sessions save."""
    source, plan = _resident(scratch_bytes=8 << 10)
    longest, min_plan = joined(source, plan), smallest_launches(source, plan)
    assert longest.launches == 1
    assert 1 < min_plan.launches < len(plan.steps)
    assert min_plan.total_bytes < min(plan.total_bytes, longest.total_bytes)
    assert make_plan(source, plan.architecture, choice=min_plan.choice) == min_plan


@examples(15, many=500, deadline=None)
@given(plans(), st.integers(0, 200_000))
def test_launches_take_what_is_allowed_and_are_found_again(
    drawn: tuple[Program, Plan], most_bytes: int
) -> None:
    source, plan = drawn
    found = joined(source, plan, most_bytes)
    assert found.total_bytes <= plan.total_bytes + most_bytes
    again = make_plan(source, plan.architecture, choice=found.choice)
    assert again == found


def test_a_launch_takes_no_longer_than_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    source, plan = _resident()
    assert joined(source, plan).launches == 1
    seconds = [joining._seconds(step) for step in plan.steps]
    monkeypatch.setattr(joining, "_LAUNCH_SECONDS", sum(seconds) / 3)
    longer = joined(source, plan)
    assert longer.launches >= 3
    assert all(sum(seconds[run.start : run.stop]) <= sum(seconds) / 3 for run in longer.runs)


def test_packs_of_a_gpu_stay_as_they_are() -> None:
    source, plan = _resident()
    manifest = replace(source.pack.manifest, target=named_target("cuda-sm72"))
    pack = replace(source.pack, manifest=manifest)
    assert joined(replace(source, pack=pack), plan) == plan


def _resident(scratch_bytes: int = 0) -> tuple[Program, Plan]:
    """Return eight kernels whose weights stay, the later ones longer, and their plan."""
    manifest = record([1] * 8, [True] * 8)
    different = tuple(replace(piece, graph=n) for n, piece in enumerate(manifest.pieces))
    source = program_of(replace(manifest, graphs=manifest.graphs * 8, pieces=different))
    pieces = (
        piece._replace(
            outputs=(Operand(kind="value", index=0, dtype="float32", shape=(size,)),),
            scratch_bytes=scratch_bytes,
        )
        for size, piece in enumerate(source.pieces, 1000)
    )
    value = Value(name="all", dtype="float32", shape=(2000,))
    found = replace(source, pieces=tuple(pieces), values=(value,))
    return found, make_plan(found, ARCHITECTURES["pre"])
