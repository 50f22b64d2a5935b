"""The bound against calculated sweeps: never exceeded, and reached when everything takes its longest."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.planning.plan import Plan
from pipeline.timing.durations import Durations
from pipeline.timing.timeline import bound, timeline
from tests.examples import examples
from tests.pipeline.plans import durations, plans

drawn = examples(12, many=600)
EPSILON = 1e-9


def sweeps(data: st.DataObject, plan: Plan, count: int) -> list[Durations]:
    """Draw durations of several sweeps of one plan on one machine."""
    drawn = [data.draw(durations(plan)) for _ in range(count)]
    return [replace(drawn[0], stages=item.stages) for item in drawn]


def maxima(runs: list[Durations]) -> Durations:
    rows = [
        tuple(map(max, zip(*rows, strict=True)))
        for rows in zip(*(run.stages for run in runs), strict=True)
    ]
    return replace(runs[0], stages=tuple(rows))


def delays(plan: Plan, run: Durations) -> list[float]:
    warm = plan.stages[0].ahead
    return [
        timeline(plan.stages, run).delay_seconds,
        timeline(plan.stages, run, warm).delay_seconds,
    ]


@drawn
@given(data=st.data())
def test_no_sweep_within_its_maxima_exceeds_the_bound(data: st.DataObject) -> None:
    _, plan = data.draw(plans())
    runs = sweeps(data, plan, 3)
    longest = maxima(runs)
    limit = bound(plan.stages, longest)
    warm = plan.stages[0].ahead
    for run in runs:
        assert max(delays(plan, run)) <= limit + EPSILON
        assert delays(plan, run)[1] <= bound(plan.stages, longest, carried=warm) + EPSILON


@drawn
@given(data=st.data())
def test_the_bound_is_reached_when_everything_takes_its_longest(data: st.DataObject) -> None:
    _, plan = data.draw(plans())
    longest = data.draw(durations(plan, disturbed=False))
    assert bound(plan.stages, longest) == pytest.approx(delays(plan, longest)[0])
