"""The search of seed 003: the smallest ring of minimal delay."""

from itertools import pairwise

import pytest
from hypothesis import given

from pipeline.fitting.fit import fit
from pipeline.fitting.ring_search import TOLERANCE, search
from pipeline.fitting.wanted import Wanted
from pipeline.planning.make import make_plan
from pipeline.planning.plan import PlanError
from pipeline.schedule.architectures import ARCHITECTURES
from tests.examples import examples, over
from tests.pipeline.made_profiles import profile
from tests.pipeline.networks import Network, heavy_tail, networks
from tests.pipeline.synthetic import PAGE

STEP = 64 * PAGE


@pytest.mark.parametrize("name", ["2s-md", "async-md"])
@examples(6, many=100)
@given(net=networks())
def test_every_point_is_what_its_plan_gives_and_the_first_minimum_is_chosen(
    name: str, net: Network
) -> None:
    architecture = ARCHITECTURES[name]
    result = search(net.program, architecture, net.estimates, STEP)
    for point in (*result.curve[:2], result.chosen, result.curve[-1]):
        plan = make_plan(net.program, architecture, point.ring_bytes)
        assert point.delay_seconds == net.estimates.seconds(plan)
        assert point.weight_bytes == plan.weight_bytes
    minimum = min(point.delay_seconds for point in result.curve)
    before = result.curve[: result.curve.index(result.chosen)]
    assert result.chosen.delay_seconds <= (1 + TOLERANCE) * minimum
    assert all(point.delay_seconds > (1 + TOLERANCE) * minimum for point in before)


def test_the_ring_grows_by_steps_from_the_smallest_to_the_model() -> None:
    net = heavy_tail(3e-5)
    curve = search(net.program, ARCHITECTURES["2s-md"], net.estimates, STEP).curve
    plan = make_plan(net.program, ARCHITECTURES["2s-md"])
    assert curve[0].ring_bytes == plan.ring_bytes
    assert all(other.ring_bytes - one.ring_bytes == STEP for one, other in pairwise(curve))
    assert curve[-1].ring_bytes - STEP < net.streamable_bytes <= curve[-1].ring_bytes


def test_a_wider_tolerance_takes_a_smaller_ring() -> None:
    net = heavy_tail(3e-5)
    architecture = ARCHITECTURES["2s-md"]
    exact = search(net.program, architecture, net.estimates, STEP, tolerance=0.0)
    wide = search(net.program, architecture, net.estimates, STEP, tolerance=0.05)
    assert exact.curve == wide.curve
    assert wide.chosen.ring_bytes <= exact.chosen.ring_bytes


@over("name", ["pre", "seq", "sync"])
def test_architectures_without_a_ring_are_refused(name: str) -> None:
    net = heavy_tail(3e-5)
    with pytest.raises(PlanError, match=f"{name} has no ring"):
        search(net.program, ARCHITECTURES[name], net.estimates, STEP)


def test_steps_of_nothing_are_refused() -> None:
    net = heavy_tail(3e-5)
    with pytest.raises(PlanError, match="cannot grow by 0 bytes"):
        search(net.program, ARCHITECTURES["2s-md"], net.estimates, 0)


def test_a_limit_selects_the_ring_of_minimal_delay_within_it() -> None:
    net = heavy_tail(1e-5, layers=40)
    architecture = ARCHITECTURES["2s-md"]
    profiled = profile(net.program, net.times.pieces, bytes_a_second=PAGE / net.page_seconds)
    best = fit(net.program, architecture, Wanted(), profiled)
    sizes = [point.weight_bytes for point in best.curve]
    assert sizes.index(best.plan.weight_bytes) > 1
    limit = best.plan.weight_bytes - 1
    limited = fit(net.program, architecture, Wanted(weight_bytes=limit), profiled)
    assert limited.curve == best.curve
    within = [point for point in limited.curve if point.weight_bytes <= limit]
    chosen = min(within, key=lambda point: point.delay_seconds)
    assert limited.plan.weight_bytes == chosen.weight_bytes


def test_it_is_not_planned_without_a_profile() -> None:
    with pytest.raises(PlanError, match="planned on a profile"):
        fit(heavy_tail(3e-5).program, ARCHITECTURES["2s-md"], Wanted())
