"""Random sweeps driven through the schedule and judged by the independent validator."""

from dataclasses import replace
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.planning.make import make_plan
from pipeline.planning.plan import Ahead, Choice, PlanError
from pipeline.program.program import Program
from pipeline.schedule.architectures import ARCHITECTURES
from pipeline.schedule.schedule import Action, Schedule, ScheduleError, Stage
from pipeline.schedule.trace import TraceEvent
from tests.examples import examples, over
from tests.pipeline.schedule.judge import Write, violations
from tests.pipeline.synthetic import PAGE, program, programs
from tests.pipeline.writes import writes


def drive(
    schedule: Schedule, data: st.DataObject, stop_after: int | None = None
) -> list[TraceEvent]:
    """Complete what is in flight in random order (the last stages in theirs) until nothing is left."""
    trace: list[TraceEvent] = []
    flying: list[Action] = []
    steps = 0
    while True:
        for action in schedule.release():
            flying.append(action)
            trace.append(TraceEvent("release", schedule.stages[action.stage].name, action.index))
        if not flying:
            return trace
        choices = [action for action in flying if action.stage == 0]
        for stage in range(1, len(schedule.stages)):
            choices += [action for action in flying if action.stage == stage][:1]
        action = choices[data.draw(st.integers(0, len(choices) - 1))]
        flying.remove(action)
        schedule.completed(action.stage, action.index)
        trace.append(TraceEvent("complete", schedule.stages[action.stage].name, action.index))
        steps += 1
        if steps == stop_after:
            schedule.stop()


def choices(data: st.DataObject, source: Program, slots: int) -> Choice:
    """Draw a ring that is large enough, sizes of reads, residents, and reading ahead."""
    ring = slots * source.largest_chunk_bytes + data.draw(st.integers(0, 30)) * PAGE
    return Choice(
        ring_bytes=ring,
        chunk_bytes=source.largest_chunk_bytes,
        read_bytes=data.draw(st.sampled_from([None, PAGE, 3 * PAGE, 100 * PAGE])),
        resident=tuple(i for i in range(len(source.spans)) if data.draw(st.booleans())),
        ahead=data.draw(st.sampled_from(get_args(Ahead))),
    )


@examples(19, many=20_000)
@given(source=programs(), data=st.data())
def test_no_constraint_is_broken_and_nothing_deadlocks(
    source: Program, data: st.DataObject
) -> None:
    architecture = ARCHITECTURES[data.draw(st.sampled_from(sorted(ARCHITECTURES)))]
    choice = choices(data, source, architecture.slots or 1)
    plan = make_plan(source, architecture, choice=choice)
    carried = 0
    for _ in range(2):
        schedule = Schedule(plan.stages, carried)
        trace = [TraceEvent("release", "read", index) for index in range(carried)]
        for index in range(carried):  # the sweep before may have ended before they did
            schedule.completed(0, index)
            trace.append(TraceEvent("complete", "read", index))
        trace += drive(schedule, data)

        assert schedule.finished, repr(schedule)
        assert violations(trace, writes(plan), len(plan.steps)) == []
        carried = plan.stages[0].ahead


@examples(25, many=3000)
@given(source=programs(), stop_after=st.integers(1, 20), data=st.data())
def test_a_stopped_sweep_releases_nothing_more_and_drains(
    source: Program, stop_after: int, data: st.DataObject
) -> None:
    plan = make_plan(source, ARCHITECTURES["2s"], source.largest_chunk_bytes)
    schedule = Schedule(plan.stages)
    trace = drive(schedule, data, stop_after)
    completed = sum(event.what == "complete" for event in trace)
    assert completed == sum(event.what == "release" for event in trace)
    assert schedule.release() == []


@given(source=programs(), data=st.data())
def test_kernels_before_the_turn_release_nothing(source: Program, data: st.DataObject) -> None:
    """So their ends may be reported together: nothing starts later for that."""
    architecture = ARCHITECTURES[data.draw(st.sampled_from(sorted(ARCHITECTURES)))]
    plan = make_plan(source, architecture, choice=choices(data, source, architecture.slots or 1))
    schedule, ended = Schedule(plan.stages), 0
    flying = schedule.release()
    while not schedule.finished:
        action = flying.pop(data.draw(st.integers(0, len(flying) - 1)) if ended % 2 else 0)
        schedule.completed(action.stage, action.index)
        turn, released = schedule.turn, schedule.release()
        if action.stage == len(plan.stages) - 1:
            ended += 1
            assert ended >= turn or not released
        flying += released
    assert schedule.turn == ended == len(plan.steps)


@given(source=programs(), data=st.data())
def test_kernels_told_of_together_are_as_if_one_by_one(
    source: Program, data: st.DataObject
) -> None:
    architecture = ARCHITECTURES[data.draw(st.sampled_from(sorted(ARCHITECTURES)))]
    plan = make_plan(source, architecture, choice=choices(data, source, architecture.slots or 1))
    together, apart, last = Schedule(plan.stages), Schedule(plan.stages), len(plan.stages) - 1
    ended = ready = 0
    flying: list[Action] = []
    while not together.finished:
        released = together.release()
        assert apart.release() == released
        ready += sum(action.stage == last for action in released)
        flying += [action for action in released if action.stage != last]
        if ready > ended and (not flying or data.draw(st.booleans())):
            first, ended = ended, data.draw(st.integers(ended + 1, ready))
            together.completed_up_to(last, ended)
            for index in range(first, ended):
                apart.completed(last, index)
        else:
            action = flying.pop(0)
            together.completed(action.stage, action.index)
            apart.completed(action.stage, action.index)
        assert repr(together) == repr(apart)


@given(source=programs(), data=st.data())
def test_sequential_never_overlaps_stages(source: Program, data: st.DataObject) -> None:
    plan = make_plan(source, ARCHITECTURES["seq"])
    flying = {"read": 0, "copy": 0, "kernel": 0}
    for event in drive(Schedule(plan.stages), data):
        flying[event.stage] += 1 if event.what == "release" else -1
        assert sum(count > 0 for count in flying.values()) <= 1
        assert flying["read"] <= 1
        assert flying["copy"] <= 1


@given(source=programs(), data=st.data())
def test_synchronous_stages_are_never_more_than_a_cycle_apart(
    source: Program, data: st.DataObject
) -> None:
    plan = make_plan(source, ARCHITECTURES["sync"])
    if not plan.reads:
        return
    block = [
        max((g for g, users in enumerate(plan.users) if users.start <= kernel), default=0)
        for kernel in range(len(plan.steps))
    ]
    cycles = {
        "read": range(len(plan.reads)),
        "copy": range(1, len(plan.reads) + 1),
        "kernel": [number + 2 for number in block],
    }
    flying: list[int] = []
    for event in drive(Schedule(plan.stages), data):
        cycle = cycles[event.stage][event.index]
        if event.what == "release":
            flying.append(cycle)
            assert min(flying) == max(flying)
        else:
            flying.remove(cycle)


def test_pre_reads_nothing_in_a_sweep() -> None:
    plan = make_plan(program([3, 4], [True, False, True]), ARCHITECTURES["pre"])
    assert plan.read_bytes == 0
    assert [action.stage for action in Schedule(plan.stages).release()] == [1] * 3


def test_completions_of_what_is_not_in_flight_are_refused() -> None:
    schedule = Schedule((Stage("kernel", ((0,), (0,))),))
    with pytest.raises(ScheduleError, match="kernel 0"):
        schedule.completed(0, 0)
    with pytest.raises(ScheduleError, match="kernel up to 1"):
        schedule.completed_up_to(0, 1)
    schedule.release()
    with pytest.raises(ScheduleError, match="kernel up to 3"):
        schedule.completed_up_to(0, 3)
    schedule.completed(0, 1)
    with pytest.raises(ScheduleError, match="kernel up to 2"):
        schedule.completed_up_to(0, 2)
    with pytest.raises(ScheduleError, match="kernel 1"):
        schedule.completed(0, 1)


def test_the_validator_sees_a_schedule_that_ignores_room() -> None:
    source = program([4, 4, 4], [True] * 3)
    plan = make_plan(source, ARCHITECTURES["2s"], 4 * PAGE)
    read, kernel = plan.stages
    schedule = Schedule((replace(read, after=((0, 0),) * 3), kernel))
    trace = [TraceEvent("release", "read", action.index) for action in schedule.release()]
    found = violations(trace, writes(plan), 3)
    assert any("which the next stage still needs" in line for line in found)


@over(
    "trace, message",
    [
        ([TraceEvent("release", "kernel", 0)], "before read 0 completed"),
        ([TraceEvent("release", "read", 1)], "out of order"),
        ([TraceEvent("complete", "read", 0)], "before its release"),
        ([], "operations missing"),
    ],
)
def test_the_validator_sees_each_kind_of_violation(trace: list[TraceEvent], message: str) -> None:
    reads = [Write(0, PAGE, range(1)), Write(0, PAGE, range(1, 2))]
    assert any(message in line for line in violations(trace, [("read", reads)], 2))


def test_a_ring_below_the_largest_chunk_is_refused_with_the_figures() -> None:
    with pytest.raises(PlanError, match=rf"{3 * PAGE} bytes\) is smaller .*\({4 * PAGE} bytes\)"):
        make_plan(program([4, 2], [True, True]), ARCHITECTURES["2s"], 3 * PAGE)
