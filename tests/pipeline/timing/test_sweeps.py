"""Calculated sweeps against the independent validator, closed forms, and what their times mean."""

from dataclasses import replace
from itertools import accumulate, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.planning.make import make_plan
from pipeline.planning.plan import Ahead, Choice, Plan
from pipeline.schedule.architectures import ARCHITECTURES
from pipeline.schedule.schedule import ScheduleError, Stage
from pipeline.timing.durations import Durations
from pipeline.timing.timeline import Timeline, timeline
from tests.examples import examples, over
from tests.pipeline.plans import durations, plans, swept
from tests.pipeline.schedule.judge import violations
from tests.pipeline.synthetic import PAGE, program
from tests.pipeline.writes import writes

drawn = examples(15, many=1000)


def chain_of(name: str, pages: list[int], **choice: object) -> Plan:
    """Return the plan of a network whose every kernel has weights."""
    source = program(pages, [True] * len(pages))
    return make_plan(source, ARCHITECTURES[name], choice=replace(Choice(), **choice))  # type: ignore[arg-type]


def steps(data: st.DataObject, count: int, rows: int) -> list[list[float]]:
    seconds = st.integers(0, 40).map(lambda ticks: ticks / 4)
    return [data.draw(st.lists(seconds, min_size=count, max_size=count)) for _ in range(rows)]


@drawn
@given(data=st.data())
def test_no_constraint_is_broken_on_the_virtual_clock(data: st.DataObject) -> None:
    _, plan = data.draw(plans())
    given_seconds = data.draw(durations(plan))
    carried = data.draw(st.integers(0, plan.stages[0].ahead))
    sweep = swept(plan.stages, given_seconds, carried)
    assert violations(sweep.events, writes(plan), len(plan.steps)) == []
    assert all(one.at <= other.at for one, other in pairwise(sweep.events))


@drawn
@given(data=st.data())
def test_operations_start_as_soon_as_they_may_and_take_what_they_take(data: st.DataObject) -> None:
    _, plan = data.draw(plans())
    times = data.draw(durations(plan))
    carried = data.draw(st.integers(0, plan.stages[0].ahead))
    check(plan, times, timeline(plan.stages, times, carried), carried)


def check(plan: Plan, times: Durations, line: Timeline, carried: int) -> None:
    """Check the times of a sweep by what they mean; ``carried``: reads that another one released."""
    seconds = (*times.stages[:-1], times.kernels(plan.stages))
    done = [list(accumulate(ends, max, initial=0.0)) for ends in line.ends]
    for number, stage in enumerate(plan.stages):
        servers, released = (times.depth if number == 0 else 1), 0.0
        served = list(zip(line.starts[number], line.ends[number], strict=True))
        for index, (start, end) in enumerate(served):
            if number == 0 and index < carried:
                continue
            waits = zip(done, stage.after[index], strict=True)
            released = max(released, *(row[count] for row, count in waits))
            before = sorted((ended for _, ended in served[:index]), reverse=True)
            free = before[servers - 1] if len(before) >= servers else 0.0
            assert start == max(released, free)
            assert end - start == pytest.approx(seconds[number][index])
    own = [
        row[: len(stage) - stage.ahead] for row, stage in zip(line.ends, plan.stages, strict=True)
    ]
    assert line.delay_seconds == max(0.0, *(max(row, default=0.0) for row in own))
    worked = sum(e - s for s, e in zip(line.starts[-1], line.ends[-1], strict=True))
    assert line.stall_seconds == pytest.approx(line.delay_seconds - worked)


@drawn
@given(data=st.data(), count=st.integers(1, 8))
def test_preloading_takes_the_kernels_alone(data: st.DataObject, count: int) -> None:
    """Seed 003, Eq. 1."""
    (kernels,) = steps(data, count, 1)
    plan = chain_of("pre", [1] * count)
    sweep = timeline(plan.stages, Durations(((), tuple(kernels)), 2))
    assert sweep.delay_seconds == pytest.approx(sum(kernels))
    assert sweep.stall_seconds == 0


@drawn
@given(data=st.data(), count=st.integers(1, 8))
def test_the_sequential_order_adds_everything(data: st.DataObject, count: int) -> None:
    """Seed 003, Eq. 5."""
    rows = steps(data, count, 3)
    plan = chain_of("seq", data.draw(st.lists(st.integers(1, 5), min_size=count, max_size=count)))
    sweep = timeline(plan.stages, Durations(tuple(map(tuple, rows)), 2))
    assert sweep.delay_seconds == pytest.approx(sum(map(sum, rows)))


@drawn
@given(data=st.data(), count=st.integers(1, 8))
def test_the_synchronous_pipeline_takes_the_longest_of_each_cycle(
    data: st.DataObject, count: int
) -> None:
    """Seed 003, Eq. 7; operations that a cycle does not have take nothing."""
    rows = steps(data, count, 3)
    plan = chain_of("sync", data.draw(st.lists(st.integers(1, 5), min_size=count, max_size=count)))
    sweep = timeline(plan.stages, Durations(tuple(map(tuple, rows)), 2))
    cycles = [
        [row[cycle - lag] for lag, row in enumerate(rows) if 0 <= cycle - lag < count]
        for cycle in range(count + 2)
    ]
    assert sweep.delay_seconds == pytest.approx(sum(map(max, cycles)))


@drawn
@given(data=st.data(), count=st.integers(1, 8))
def test_the_asynchronous_pipeline_lies_between_its_longest_stage_and_the_sequential_order(
    data: st.DataObject, count: int
) -> None:
    rows = steps(data, count, 3)
    pages = data.draw(st.lists(st.integers(1, 5), min_size=count, max_size=count))
    plan = chain_of("async", pages, read_bytes=PAGE, depth=1)
    delay = timeline(plan.stages, Durations(tuple(map(tuple, rows)), 1)).delay_seconds
    assert delay >= max(map(sum, rows)) - 1e-9
    assert delay <= sum(map(sum, rows)) + 1e-9


def test_two_stages_by_hand() -> None:
    """A ring of four pages: read 2 waits for kernel 0, read 3 for kernel 1 and the end of the ring."""
    plan = chain_of("2s", [2, 2, 3, 1], ring_bytes=4 * PAGE, read_bytes=PAGE, depth=1)
    sweep = timeline(plan.stages, Durations(((2, 2, 3, 1), (4, 1, 1, 1)), 1))
    # Reads [0, 2), [2, 4), [7, 10) after kernel 1 (three pages in a row), [10, 11).
    assert sweep.delay_seconds == 12
    assert sweep.stall_seconds == 2 + 3


def test_each_read_disturbs_the_kernel_that_needs_it_first() -> None:
    plan = chain_of("2s", [1, 1], ring_bytes=2 * PAGE, read_bytes=PAGE, depth=1)
    times = Durations(((1, 1), (2, 4)), 1, disturbance=0.5)
    assert times.kernels(plan.stages) == (2.5, 4.5)
    assert timeline(plan.stages, times).delay_seconds == 1 + 2.5 + 4.5
    whole = chain_of("pre", [1, 1])
    assert Durations(((2, 4),), 1, disturbance=0.5).kernels(whole.stages) == (2, 4)


@over("ahead, kernels", [("idle", (2.5, 4.5, 1.5)), ("tail", (2.5, 5, 2))])
def test_reads_of_the_next_head_disturb_the_kernels_that_run_then(
    ahead: Ahead, kernels: tuple[float, ...]
) -> None:
    plan = chain_of("2s", [1, 1, 1], ring_bytes=3 * PAGE, read_bytes=PAGE, depth=1, ahead=ahead)
    assert plan.stages[0].ahead == 3
    times = Durations(((1,) * 6, (2, 4, 1)), 1, disturbance=0.5)
    assert times.kernels(plan.stages) == kernels


def test_a_head_read_ahead_saves_its_reading() -> None:
    plan = chain_of(
        "2s", [2, 2, 2], ring_bytes=4 * PAGE, read_bytes=2 * PAGE, depth=1, ahead="tail"
    )
    times = Durations(((3,) * 5, (1, 1, 1)), 1)
    cold = timeline(plan.stages, times).delay_seconds
    warm = timeline(plan.stages, times, carried=2).delay_seconds
    # Cold: three reads and a kernel. Warm: kernel 0, read 2, kernel 2.
    assert (cold, warm) == (10, 5)


def test_no_read_overtakes_another_whose_room_is_free_later() -> None:
    stages = (Stage("read", ((0, 0), (0, 2), (0, 1)), ahead=2), Stage("kernel", ((1, 0), (1, 0))))
    times = Durations(((1, 1, 1), (1, 1)), 2)
    assert timeline(stages, times).starts[0] == [0, 3, 3]


def test_stages_that_wait_for_each_other_are_refused() -> None:
    stages = (Stage("read", ((0, 1),)), Stage("kernel", ((1, 0),)))
    with pytest.raises(ScheduleError, match="waits"):
        timeline(stages, Durations(((1.0,), (1.0,)), 1))


@over("depth, disturbance", [(0, 0.0), (1, -1e-6)])
def test_impossible_durations_are_refused(depth: int, disturbance: float) -> None:
    with pytest.raises(ValueError, match="depth"):
        Durations(((), ()), depth, disturbance)
