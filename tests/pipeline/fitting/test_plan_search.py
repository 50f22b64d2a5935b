"""The best plan within a budget: it fits, and what was measured decides before what is estimated."""

from dataclasses import replace
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.fitting.fit import fit
from pipeline.fitting.predicting import Predictions
from pipeline.fitting.wanted import LEAST, EnginePlanResult, Wanted
from pipeline.measuring.plan_races import race_candidates
from pipeline.planning.make import make_plan
from pipeline.planning.plan import Choice, PlanError
from pipeline.profiles.profile import Profile
from pipeline.profiles.times import plan_key
from pipeline.program.program import Program
from pipeline.schedule.architectures import ARCHITECTURES
from tests.examples import examples, over
from tests.pipeline.made_profiles import always, measured, profile
from tests.pipeline.networks import Network, heavy_tail, networks
from tests.pipeline.small import maps_program
from tests.pipeline.synthetic import PAGE, program, programs

AUTO = ARCHITECTURES["auto"]
LAYERS = program([16] * 30, [True] * 30)
#: Kernels take so long that no estimate is surely better than another.
EVEN = profile(LAYERS, 1e-2)
MAX = 8

drawn = examples(4, many=60)


def within(network: Program, profiled: Profile | None, n_bytes: int) -> EnginePlanResult:
    return fit(network, AUTO, Wanted(total_bytes=n_bytes), profiled)


def min_bytes(network: Program) -> int:
    return fit(network, AUTO, LEAST).plan.total_bytes


def between(network: Program, fraction: float) -> int:
    """Return a budget from the smallest to that of all weights and more."""
    weights = sum(span.length for span in network.spans)
    return min_bytes(network) + int(fraction * (weights + (1 << 18)))


def profile_of(net: Network) -> Profile:
    return profile(net.program, net.times.pieces, bytes_a_second=PAGE / net.page_seconds)


@st.composite
def raced(draw: st.DrawFn, network: Program, profiled: Profile) -> Profile:
    """Draw what races of some budgets measured: any of the candidates, of any ratio."""
    for fraction in draw(st.lists(st.floats(0, 1), min_size=1, max_size=4)):
        plans = race_candidates(network, AUTO, profiled, between(network, fraction), MAX)
        ratio = draw(st.sampled_from([0.5, 0.9, 1.0, 1.1, 1.5, 3.0]))
        profiled = profiled.with_plans((measured(draw(st.sampled_from(plans)), ratio),))
    return profiled


@drawn
@given(net=networks(max_layers=5), fraction=st.floats(0, 1), data=st.data())
def test_every_plan_fits(net: Network, fraction: float, data: st.DataObject) -> None:
    n_bytes = between(net.program, fraction)
    even = profile_of(net)
    for profiled in (None, even, data.draw(raced(net.program, even))):
        result = within(net.program, profiled, n_bytes)
        assert result.plan.total_bytes <= n_bytes
        assert result.complete
        assert (result.prediction is None) == (profiled is None)
        tight = within(net.program, profiled, min_bytes(net.program))
        assert tight.plan.total_bytes <= min_bytes(net.program)


@drawn
@given(net=networks(max_layers=5))
def test_more_memory_is_expected_to_be_hardly_slower(net: Network) -> None:
    """Few ways are tried, in each budget others."""
    profiled = profile_of(net)
    result = [
        within(net.program, profiled, between(net.program, fraction / 4)) for fraction in range(5)
    ]
    seconds = [item.prediction.sweep_seconds for item in result if item.prediction is not None]
    assert len(seconds) == len(result)
    for number, item in enumerate(seconds[1:], start=1):
        assert item <= 1.15 * min(seconds[:number])


def test_as_fast_as_two_stages_within_as_much() -> None:
    for page_seconds in (1e-6, 1e-5, 1e-4):
        net = heavy_tail(page_seconds)
        profiled = profile_of(net)
        for fraction in (0.2, 0.5, 0.8):
            n_bytes = between(net.program, fraction)
            simple = fit(net.program, ARCHITECTURES["2s"], Wanted(total_bytes=n_bytes), profiled)
            result = within(net.program, profiled, n_bytes)
            assert result.predicted_seconds is not None
            assert simple.predicted_seconds is not None
            assert result.predicted_seconds <= 1.05 * simple.predicted_seconds


@pytest.mark.parametrize("fraction", [0.1, 0.5, 1.0])
def test_reasons_have_figures_and_no_size_of_zero(fraction: float) -> None:
    net = heavy_tail(1e-5)
    reasons = within(net.program, profile_of(net), between(net.program, fraction)).reasons
    assert reasons
    assert all("0.0 MiB" not in reason for reason in reasons)
    assert ("all weights stay" if fraction == 1 else "bottleneck") in reasons[0]


def test_all_weights_stay_in_memory_where_they_fit() -> None:
    """Down to what ``pre`` takes, though kernels of the smallest plan take more beside their weights."""
    for network in (LAYERS, heavy_tail(1e-5, layers=20).program):
        pre = fit(network, ARCHITECTURES["pre"], Wanted()).plan
        for n_bytes in (pre.total_bytes, pre.total_bytes + 1, 1 << 40):
            result = within(network, None, n_bytes).plan
            assert not result.reads
            assert result.total_bytes == pre.total_bytes
            assert result.runs == pre.runs
        assert within(network, None, pre.total_bytes - pre.weight_bytes // 2).plan.reads


# What was measured.


@pytest.mark.parametrize("fraction", [0.0, 0.3, 0.7])
def test_a_measured_plan_is_chosen_within_its_memory_and_any_larger_budget(fraction: float) -> None:
    small = within(LAYERS, EVEN, between(LAYERS, fraction)).plan
    profiled = EVEN.with_plans((measured(small, 0.9),))
    size = small.total_bytes
    for n_bytes in (size, size + 1, size + (1 << 18), 1 << 40):
        result = within(LAYERS, profiled, n_bytes)
        assert result.plan == small
        assert result.prediction is not None
        assert result.prediction.measured
    if fraction:
        assert within(LAYERS, profiled, size - 1).plan.total_bytes < size


@drawn
@given(net=networks(max_layers=5), data=st.data())
def test_no_larger_budget_gets_a_slower_plan_than_was_measured(
    net: Network, data: st.DataObject
) -> None:
    """In every budget the expected time is at most the lower envelope of what was measured."""
    profiled = data.draw(raced(net.program, profile_of(net)))
    sizes = {plan.total_bytes for plan in profiled.plans}
    budgets = {between(net.program, fraction / 6) for fraction in range(7)} | sizes
    fastest_seconds = inf
    for n_bytes in sorted(budgets):
        result = within(net.program, profiled, n_bytes)
        assert result.prediction is not None
        fits = [plan for plan in profiled.plans if plan.total_bytes <= n_bytes]
        envelope = min((plan.ratio for plan in fits), default=inf) * profiled.resident.median
        assert result.prediction.sweep_seconds <= min(envelope, fastest_seconds) * (1 + 1e-9)
        if result.prediction.measured:
            fastest_seconds = result.prediction.sweep_seconds


def test_of_two_that_were_measured_no_estimate_decides() -> None:
    """The larger one is estimated to take a third, and took longer."""
    slow_disk = profile(LAYERS, bytes_a_second=2e7)
    size = min_bytes(LAYERS)
    small, large = (within(LAYERS, slow_disk, n_bytes).plan for n_bytes in (size, 1 << 30))
    estimated = Predictions(LAYERS, slow_disk).estimated
    assert estimated(large) < estimated(small) / 3
    profiled = slow_disk.with_plans((measured(small, 1.0), measured(large, 1.2)))
    for n_bytes in (size, 1 << 30):
        assert within(LAYERS, profiled, n_bytes).plan == small
    # What was not measured is tried if it is estimated to be faster than the other one was measured, too.
    for ratio, best in ((2.0, large), (1.0, small)):
        profiled = slow_disk.with_plans((measured(small, ratio),))
        assert within(LAYERS, profiled, 1 << 30).plan == best


def test_what_was_measured_and_is_not_this_plan_is_none() -> None:
    plan = within(LAYERS, EVEN, between(LAYERS, 0.5)).plan
    usual = measured(plan, 0.1)
    small = measured(make_plan(LAYERS, AUTO, choice=Choice(4 << 16)), 0.1)
    others = [
        replace(usual, key="auto-0000"),  # of another planner
        replace(usual, architecture="2s"),
        replace(usual, total_bytes=1 << 50),
        replace(small, choice=replace(small.choice, ring_bytes=1)),  # no plan at all
    ]
    for other in others:
        profiled = EVEN.with_plans((other,))
        assert within(LAYERS, profiled, 1 << 30).plan == within(LAYERS, EVEN, 1 << 30).plan


def test_limits_of_parts_hold_for_what_was_measured() -> None:
    plan = within(LAYERS, EVEN, between(LAYERS, 0.5)).plan
    profiled = EVEN.with_plans((measured(plan, 0.1),))
    for weights, fits in ((plan.weight_bytes, True), (plan.weight_bytes - 1, False)):
        constraints = Wanted(total_bytes=1 << 30, weight_bytes=weights)
        result = fit(LAYERS, AUTO, constraints, profiled).plan
        assert result.weight_bytes <= weights
        assert (result == plan) == fits


def test_a_measured_ratio_predicts_the_delay_of_a_request() -> None:
    profiled = replace(profile(LAYERS), resident=always(0.5), outside=always(0.1))
    plan = within(LAYERS, profiled, between(LAYERS, 0.5)).plan
    estimated = Predictions(LAYERS, profiled).prediction(plan)
    taken = Predictions(LAYERS, profiled.with_plans((measured(plan, 1.25),))).prediction(plan)
    assert estimated is not None
    assert taken is not None
    assert (estimated.measured, taken.measured) == (False, True)
    assert taken.sweep_seconds == 0.5 * 1.25
    assert taken.delay_seconds == 0.5 * 1.25 + 0.1
    # Where nothing is measured of it, it is estimated as what was measured with all memory.
    pre = fit(LAYERS, ARCHITECTURES["pre"], Wanted(), profiled)
    assert pre.predicted_seconds == pytest.approx(0.5)
    assert estimated.sweep_seconds >= 0.5


# More than enough.


@drawn
@given(net=networks(max_layers=4), data=st.data(), more=st.integers(0, 1 << 40))
def test_more_than_is_enough_changes_nothing_whatever_was_measured(
    net: Network, data: st.DataObject, more: int
) -> None:
    profiled = data.draw(raced(net.program, profile_of(net)))
    fastest = within(net.program, profiled, 1 << 50)
    enough = fastest.enough_bytes
    assert enough is not None
    for n_bytes in (enough, enough + more, 1 << 45):
        assert within(net.program, profiled, n_bytes) == fastest
    less = max(enough // 2, min_bytes(net.program))
    below = within(net.program, profiled, less).enough_bytes
    assert below is None or below <= less


def test_enough_bytes_hold_the_largest_measured_plan() -> None:
    choice = Choice(1 << 16, resident=tuple(range(30)), joined_bytes=1 << 20, lanes=64)
    everything = make_plan(LAYERS, AUTO, choice=choice)
    profiled = EVEN.with_plans((measured(everything, 0.5),))
    enough = within(LAYERS, EVEN, 1 << 50).enough_bytes
    result = within(LAYERS, profiled, 1 << 50)
    assert enough is not None
    assert everything.total_bytes > enough
    assert result.plan == everything
    assert result.enough_bytes == everything.total_bytes


# What races.


@drawn
@given(network=programs(), fraction=st.floats(0, 1), data=st.data())
def test_what_races_fits_and_no_plan_races_twice(
    network: Program, fraction: float, data: st.DataObject
) -> None:
    profiled, n_bytes = profile(network), between(network, fraction)
    raced_before = data.draw(raced(network, profiled))
    for item, most in ((profiled, MAX), (raced_before, MAX), (raced_before, 2)):
        plans = race_candidates(network, AUTO, item, n_bytes, most)
        assert 1 <= len(plans) <= most
        assert max(plan.total_bytes for plan in plans) <= n_bytes
        assert len(set(map(plan_key, plans))) == len(plans)


def test_the_best_that_was_measured_within_less_is_first_to_race() -> None:
    small, n_bytes = (
        within(LAYERS, EVEN, between(LAYERS, fraction)).plan for fraction in (0.2, 0.6)
    )
    other = race_candidates(LAYERS, AUTO, EVEN, small.total_bytes, MAX)[-1]
    profiled = EVEN.with_plans((measured(other, 3.0), measured(small, 1.1)))
    plans = race_candidates(LAYERS, AUTO, profiled, n_bytes.total_bytes, MAX)
    assert plans[0] == small
    estimated = [Predictions(LAYERS, EVEN).seconds(plan) for plan in plans[1:]]
    assert estimated == sorted(estimated)


def test_up_to_three_candidates_have_the_same_regions(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    network = maps_program(tmp_path_factory.mktemp("repository"))
    n_bytes = 2 * min_bytes(network)
    plans = race_candidates(network, AUTO, profile(network), n_bytes, 12)
    regions = [plan.choice.regions for plan in plans]
    assert len(set(regions)) > 2
    assert max(map(regions.count, regions)) <= 3


@over("most", [1, 8])
def test_the_smallest_plan_is_the_only_candidate_where_nothing_else_fits(most: int) -> None:
    smallest = min_bytes(LAYERS)
    (plan,) = race_candidates(LAYERS, AUTO, EVEN, smallest, most)
    assert plan.total_bytes == smallest
    with pytest.raises(PlanError, match=rf"required .*available .*{smallest - 1} bytes"):
        race_candidates(LAYERS, AUTO, EVEN, smallest - 1, most)
