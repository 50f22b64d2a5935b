"""Limits and the watch: what was measured is within, the bound holds there, and nothing else counts."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.planning.make import make_plan
from pipeline.planning.plan import Choice, Plan
from pipeline.profiles.delay_limits import BoundWatch, SweepLimits
from pipeline.schedule.architectures import ARCHITECTURES
from pipeline.schedule.trace import TraceEvent
from pipeline.timing.durations import Durations, services
from tests.pipeline.plans import durations, plans, swept
from tests.pipeline.synthetic import PAGE, program


def limits_of(plan: Plan, runs: list[Durations]) -> SweepLimits:
    sweeps = [swept(plan.stages, times) for times in runs]
    return SweepLimits.of(
        plan,
        [
            (services(plan.stages, sweep.events, plan.choice.depth), sweep.delay_seconds)
            for sweep in sweeps
        ],
    )


@given(st.data())
def test_sweeps_within_the_limits_keep_to_the_bound(data: st.DataObject) -> None:
    _, plan = data.draw(plans())
    measured = [data.draw(durations(plan)) for _ in range(data.draw(st.integers(1, 4)))]
    watch = BoundWatch(plan, limits_of(plan, measured))
    for times in (*measured, data.draw(durations(plan)), data.draw(durations(plan))):
        carried = data.draw(st.sampled_from([0, plan.stages[0].ahead]))
        sweep = swept(plan.stages, times, carried)
        verdict = watch.see(sweep.events, sweep.delay_seconds - 1e-9)
        assert not verdict.violation
        assert verdict.within or times not in measured
    assert watch.violations == 0
    assert watch.sweeps == len(measured) + 2


def test_a_delay_above_the_bound_counts_only_within_the_limits() -> None:
    plan = make_plan(program([2, 2], [True, True]), ARCHITECTURES["2s"])
    usual = Durations(((1.0, 1.0), (2.0, 2.0)), 2)
    slow = Durations(((1.0, 1.0), (2.0, 9.0)), 2)
    watch = BoundWatch(plan, limits_of(plan, [usual]))
    sweep, other = swept(plan.stages, usual), swept(plan.stages, slow)

    inside = watch.see(sweep.events, sweep.delay_seconds)
    outside = watch.see(other.events, other.delay_seconds)
    late = watch.see(sweep.events, watch.bound_seconds + 1.0)

    assert (inside.within, inside.exceeded) == (True, False)
    assert (outside.within, outside.exceeded, outside.violation) == (False, True, False)
    assert late.violation
    assert (watch.sweeps, watch.within, watch.exceeded, watch.violations) == (3, 2, 2, 1)


def test_the_rounding_of_a_difference_exceeds_no_limit() -> None:
    plan = make_plan(program([2], [True]), ARCHITECTURES["2s"], choice=Choice(ring_bytes=2 * PAGE))
    times = Durations(((0.2,), (0.4,)), 1)
    limits = SweepLimits(
        architecture="2s",
        choice=plan.choice,
        runs=1,
        usual=times.stages,
        excess_seconds=0.0,
    )
    sweep = swept(plan.stages, times)
    assert sweep.delay_seconds - 0.2 > 0.4  # what floats make of the kernel's time
    assert BoundWatch(plan, limits).see(sweep.events, sweep.delay_seconds).within


def test_a_sweep_that_did_not_end_is_no_sweep() -> None:
    plan = make_plan(program([2], [True]), ARCHITECTURES["2s"])
    times = Durations(((1.0,), (2.0,)), 2)
    watch = BoundWatch(plan, limits_of(plan, [times]))
    with pytest.raises(ValueError, match="1 kernel operations are not complete"):
        watch.see([TraceEvent("release", "read", 0), TraceEvent("complete", "read", 0, 1.0)], 2.0)
    assert watch.sweeps == 0


def test_one_accident_does_not_widen_the_limits() -> None:
    plan = make_plan(program([2, 2], [True, True]), ARCHITECTURES["2s"])
    usual = Durations(((1.0, 1.0), (2.0, 2.0)), 2)
    slow = Durations(((1.0, 1.0), (2.0, 9.0)), 2)
    calm, shaken = limits_of(plan, [usual] * 100), limits_of(plan, [*[usual] * 99, slow])
    assert shaken.bound_seconds(plan) == calm.bound_seconds(plan) == 1 + 2 + 1 + 2
