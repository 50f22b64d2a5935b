"""Service times from traces: what a sweep was calculated from comes out of its trace again."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.schedule.schedule import Stage
from pipeline.schedule.trace import TraceEvent
from pipeline.timing.durations import ServiceTime, services
from tests.pipeline.plans import durations, plans, swept


@given(st.data())
def test_a_trace_gives_back_how_long_operations_took(data: st.DataObject) -> None:
    _, plan = data.draw(plans())
    times = data.draw(durations(plan, disturbed=False))
    events = swept(plan.stages, times).events
    for stage, seen, given_seconds in zip(
        plan.stages, services(plan.stages, events, times.depth), times.stages, strict=True
    ):
        for index in range(len(stage) - stage.ahead):
            service = seen[index]
            assert service is not None
            assert service.seconds == pytest.approx(given_seconds[index], abs=1e-9)


@given(st.data())
def test_no_stage_serves_more_at_once_than_it_has_servers(data: st.DataObject) -> None:
    _, plan = data.draw(plans())
    times = data.draw(durations(plan))
    rows = services(plan.stages, swept(plan.stages, times).events, times.depth)
    for number, row in enumerate(rows):
        served = [service for service in row if service is not None]
        for one in served:
            beside = [other for other in served if other.start <= one.start < other.end]
            assert len(beside) <= (1 if number else times.depth)


def test_an_operation_that_the_trace_does_not_see_end_has_no_service() -> None:
    stages = (Stage("read", ((0, 0), (0, 0)), ahead=1), Stage("kernel", ((1, 0),)))
    events = [
        TraceEvent("release", "read", 0, 0.0),
        TraceEvent("release", "read", 1, 0.0),
        TraceEvent("complete", "read", 0, 2.0),
        TraceEvent("release", "kernel", 0, 2.0),
        TraceEvent("complete", "kernel", 0, 3.0),
    ]
    assert services(stages, events, 2) == (
        (ServiceTime(0.0, 2.0), None),
        (ServiceTime(2.0, 3.0),),
    )
