"""Random sweeps driven through the schedule and judged by the independent validator."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from models.manifest import Manifest
from pipeline.architectures import ARCHITECTURES
from pipeline.planning.plan import Plan, PlanError, kernels_of, make_plan
from pipeline.schedule import Action, Schedule, ScheduleError, Stage
from pipeline.validator import RingRead, TraceEvent, violations
from tests.pipeline.synthetic import PAGE, manifest, manifests

READ, KERNEL = 0, 1


def ring_reads(source: Manifest, plan: Plan) -> list[RingRead]:
    """Describe the plan's reads in bytes, for the validator."""
    users = kernels_of(source, list(plan.streamed), list(plan.groups))
    return [
        RingRead(place.offset, place.length, kernels)
        for place, kernels in zip(plan.places, users, strict=True)
    ]


def drive(
    schedule: Schedule, data: st.DataObject, stop_after: int | None = None
) -> list[TraceEvent]:
    """Complete what is in flight in random order (kernels in theirs) until nothing is left."""
    trace: list[TraceEvent] = []
    flying: list[Action] = []
    steps = 0
    while True:
        for action in schedule.release():
            flying.append(action)
            trace.append(TraceEvent("release", schedule.stages[action.stage].name, action.index))
        if not flying:
            return trace
        kernels = [action for action in flying if action.stage == KERNEL]
        choices = [action for action in flying if action.stage == READ] + kernels[:1]
        action = choices[data.draw(st.integers(0, len(choices) - 1))]
        flying.remove(action)
        schedule.completed(action.stage, action.index)
        trace.append(TraceEvent("complete", schedule.stages[action.stage].name, action.index))
        steps += 1
        if steps == stop_after:
            schedule.stop()


@settings(max_examples=2000, deadline=None)
@given(source=manifests(), extra=st.integers(0, 30), data=st.data())
def test_no_constraint_is_broken_and_nothing_deadlocks(
    source: Manifest, extra: int, data: st.DataObject
) -> None:
    name = data.draw(st.sampled_from(sorted(ARCHITECTURES)))
    ring = source.largest_chunk_bytes + extra * PAGE
    plan = make_plan(source, ARCHITECTURES[name], ring)
    schedule = Schedule(plan.stages, plan.architecture.in_flight)

    trace = drive(schedule, data)

    assert schedule.finished, repr(schedule)
    assert schedule.drained
    assert violations(trace, ring_reads(source, plan), len(source.pieces)) == []


@settings(max_examples=300, deadline=None)
@given(source=manifests(), stop_after=st.integers(1, 20), data=st.data())
def test_a_stopped_sweep_releases_nothing_more_and_drains(
    source: Manifest, stop_after: int, data: st.DataObject
) -> None:
    plan = make_plan(source, ARCHITECTURES["2s"], source.largest_chunk_bytes)
    schedule = Schedule(plan.stages)
    trace = drive(schedule, data, stop_after)
    completed = sum(event.what == "complete" for event in trace)
    assert completed == sum(event.what == "release" for event in trace)
    assert schedule.drained
    assert schedule.in_flight == 0
    assert schedule.release() == []


@given(source=manifests(), data=st.data())
def test_sequential_has_one_operation_in_flight(source: Manifest, data: st.DataObject) -> None:
    plan = make_plan(source, ARCHITECTURES["seq"], source.largest_chunk_bytes)
    flying = 0
    for event in drive(Schedule(plan.stages, plan.architecture.in_flight), data):
        flying += 1 if event.what == "release" else -1
        assert flying <= 1


def test_pre_reads_nothing_in_a_sweep() -> None:
    plan = make_plan(manifest([3, 4], [True, False, True]), ARCHITECTURES["pre"])
    assert plan.read_bytes == 0
    assert [action.stage for action in Schedule(plan.stages).release()] == [KERNEL] * 3


def test_a_three_stage_sweep_runs_to_its_end() -> None:
    """The rules do not know how many stages there are."""
    count = 6
    stages = (
        Stage("read", (0,) * count, tuple(max(i - 1, 0) for i in range(count))),
        Stage("copy", tuple(range(1, count + 1)), tuple(max(i - 1, 0) for i in range(count))),
        Stage("kernel", tuple(range(1, count + 1)), (0,) * count),
    )
    schedule, order = Schedule(stages), []
    while actions := schedule.release():
        for action in actions:
            order.append((action.stage, action.index))
            schedule.completed(action.stage, action.index)
    assert schedule.finished
    assert sorted(order) == [(stage, index) for stage in range(3) for index in range(count)]


def test_completions_of_what_is_not_in_flight_are_refused() -> None:
    schedule = Schedule((Stage("kernel", (0, 0), (0, 0)),))
    with pytest.raises(ScheduleError, match="kernel 0"):
        schedule.completed(0, 0)
    schedule.release()
    schedule.completed(0, 1)
    with pytest.raises(ScheduleError, match="kernel 1"):
        schedule.completed(0, 1)


def test_the_validator_sees_a_schedule_that_ignores_room() -> None:
    source = manifest([4, 4, 4], [True] * 3)
    plan = make_plan(source, ARCHITECTURES["2s"], 4 * PAGE)
    read, kernel = plan.stages
    schedule = Schedule((replace(read, room=(0, 0, 0)), kernel))
    trace = [TraceEvent("release", "read", action.index) for action in schedule.release()]
    found = violations(trace, ring_reads(source, plan), 3)
    assert any("which kernels still need" in line for line in found)


@pytest.mark.parametrize(
    ("trace", "message"),
    [
        ([TraceEvent("release", "kernel", 0)], "before read 0 completed"),
        ([TraceEvent("release", "read", 1)], "out of order"),
        ([TraceEvent("complete", "read", 0)], "before its release"),
        ([], "operations missing"),
    ],
)
def test_the_validator_sees_each_kind_of_violation(trace: list[TraceEvent], message: str) -> None:
    reads = [RingRead(0, PAGE, range(1)), RingRead(0, PAGE, range(1, 2))]
    assert any(message in line for line in violations(trace, reads, 2))


def test_a_ring_below_the_largest_chunk_is_refused_with_the_figures() -> None:
    with pytest.raises(PlanError, match=rf"{3 * PAGE} bytes is smaller .*\({4 * PAGE} bytes\)"):
        make_plan(manifest([4, 2], [True, True]), ARCHITECTURES["2s"], 3 * PAGE)
