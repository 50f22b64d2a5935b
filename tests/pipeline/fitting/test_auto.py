"""The planner of auto: within its limit, no slower than simpler plans, near what is possible."""

from dataclasses import replace
from itertools import pairwise
from typing import NamedTuple, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.fitting.auto import TOLERANCE, Goal, plan_auto, search
from pipeline.planning.draft import Draft, Drafts
from pipeline.planning.make import make_plan
from pipeline.planning.plan import Ahead, Choice, Plan, PlanError
from pipeline.planning.thumb import SmallestPlans, rule_of_thumb
from pipeline.planning.tune import (
    PartChunks,
    critical_reads,
    keep_critical,
    part_starts,
)
from pipeline.schedule.architectures import ARCHITECTURES, COPIED_AUTO, Architecture
from pipeline.timing.durations import Durations
from pipeline.timing.timeline import back_to_back, timeline
from tests.examples import examples, over
from tests.pipeline.networks import Network, heavy_tail, network, networks
from tests.pipeline.synthetic import PAGE, program, stored

drawn = examples(3, many=150)
# What the search may miss.
NEARLY = 1.02


class Planned(NamedTuple):
    """``draft``: what ``plan`` was chosen by."""

    plan: Plan
    draft: Draft
    reasons: tuple[str, ...]


def planned(net: Network, limit: int | None, target: float | None = None) -> Planned:
    goal = None if target is None else Goal(target)
    drafts = Drafts(net.program, net.durations)
    fitted = plan_auto(drafts, limit, goal)
    return Planned(fitted.plan, drafts.draft(fitted.plan.choice), fitted.reasons)


def smallest(net: Network) -> int:
    return PAGE + net.program.largest_chunk_bytes


def kernel_seconds(net: Network, plan: Planned) -> float:
    return sum(net.durations(plan.plan).stages[-1])


@drawn
@given(net=networks(), part=st.floats(0, 1))
def test_within_the_limit_and_no_slower_than_two_stages_with_as_much(
    net: Network, part: float
) -> None:
    limit = smallest(net) + int(part * (net.all_bytes - smallest(net)))
    plan = planned(net, limit)
    assert plan.plan.weight_bytes <= limit
    ring = (limit - PAGE) // PAGE * PAGE
    other = make_plan(net.program, ARCHITECTURES["2s"], ring)
    assert other.weight_bytes <= limit
    simple = timeline(other.stages, net.durations(other)).delay_seconds
    assert plan.draft.idle.delay_seconds <= simple * NEARLY


@drawn
@given(net=networks(), part=st.floats(0, 1), data=st.data())
def test_weights_that_expand_stay_within_the_limit_with_their_staging(
    net: Network, part: float, data: st.DataObject
) -> None:
    """From the smallest plan there is on; and as much memory is never slower than as little."""
    count = len(net.program.spans)
    pages = data.draw(st.lists(st.integers(1, 64), min_size=count, max_size=count))
    net = replace(net, program=stored(net.program, pages))
    least = Drafts(net.program, net.durations).smallest_bytes
    tight = planned(net, least)
    assert tight.plan.weight_bytes <= least
    limit = least + int(part * (net.all_bytes - min(least, net.all_bytes)))
    plan = planned(net, limit)
    assert plan.plan.weight_bytes <= limit
    assert plan.draft.idle.delay_seconds <= tight.draft.idle.delay_seconds * NEARLY
    assert plan.plan.read_bytes <= sum(span.file_length for span in net.program.spans)


@pytest.mark.parametrize("architecture", [ARCHITECTURES["auto"], COPIED_AUTO])
@drawn
@given(net=networks(), part=st.floats(0, 1))
def test_without_a_profile_less_is_left_than_another_span_takes(
    architecture: Architecture, net: Network, part: float
) -> None:
    least = SmallestPlans(net.program, architecture)
    limit = least.of().weight_bytes + int(part * net.all_bytes)
    plan = rule_of_thumb(least, limit)
    assert plan.weight_bytes <= limit
    streamed = [net.program.spans[number].length for number in plan.streamed]
    assert plan.weight_bytes + 2 * PAGE + max(streamed, default=limit) > limit


@drawn
@given(
    chunks=st.lists(st.lists(st.integers(1, 8), min_size=1, max_size=6), min_size=1, max_size=8),
    more=st.integers(0, 12),
    data=st.data(),
)
def test_a_few_pages_above_the_smallest_there_is_a_plan(
    chunks: list[list[int]], more: int, data: st.DataObject
) -> None:
    """Also where what is stored of a read is more than its share of a ring of all that is left."""
    net = network(chunks, [1e-5] * len(chunks), 1e-5)
    count = len(net.program.spans)
    pages = data.draw(st.lists(st.integers(1, 8), min_size=count, max_size=count))
    net = replace(net, program=stored(net.program, pages))
    limit = Drafts(net.program, net.durations).smallest_bytes + more * PAGE
    assert planned(net, limit).plan.weight_bytes <= limit


@drawn
@given(net=networks(), part=st.floats(0, 1))
def test_reading_ahead_delays_no_request_right_after_another(net: Network, part: float) -> None:
    plan = planned(net, smallest(net) + int(part * net.streamable_bytes))
    choice = plan.plan.choice
    cold = Drafts(net.program, net.durations).draft(replace(choice, ahead="never"))
    assert plan.draft.again.delay_seconds <= cold.idle.delay_seconds * NEARLY
    assert plan.draft.idle.delay_seconds <= plan.draft.again.delay_seconds * NEARLY


@examples(2, many=30)
@given(net=networks())
def test_more_memory_is_never_much_slower(net: Network) -> None:
    room = net.all_bytes - smallest(net)
    delays = [
        planned(net, smallest(net) + room * step // 4).draft.idle.delay_seconds for step in range(5)
    ]
    for number, delay in enumerate(delays[1:], start=1):
        assert delay <= min(delays[:number]) * NEARLY


@drawn
@given(net=networks())
def test_with_everything_resident_the_delay_is_that_of_the_kernels(net: Network) -> None:
    plan = planned(net, None)
    assert plan.draft.idle.delay_seconds <= kernel_seconds(net, plan) * 1.001
    pre = make_plan(net.program, ARCHITECTURES["pre"])
    assert plan.draft.idle.delay_seconds <= sum(net.durations(pre).stages[-1]) * NEARLY


@pytest.mark.parametrize(
    ("page_seconds", "part"),
    [
        pytest.param(seconds, part, marks=() if (one, other) == (1, 2) else pytest.mark.slow)
        for one, seconds in enumerate((1e-5, 4e-5, 8e-5))
        for other, part in enumerate((0.3, 0.5, 0.75))
    ],
)
def test_a_disk_that_is_the_bottleneck_costs_no_more_than_what_must_be_read(
    page_seconds: float, part: float
) -> None:
    """Weights are heavy and kernels short at the end, as in networks for small images."""
    net = heavy_tail(page_seconds)
    plan = planned(net, int(part * net.all_bytes))
    reading = plan.plan.read_bytes / PAGE * page_seconds
    least = max(kernel_seconds(net, plan), reading)
    assert plan.draft.idle.delay_seconds <= 1.10 * least
    assert plan.draft.again.delay_seconds <= 1.20 * least


def test_resident_weights_lie_where_reads_are_the_bottleneck() -> None:
    """The layers in the middle compute little: what can be kept of them is; the rest is hidden."""
    chunks = [[16] * 4] * 15
    speeds = [1e-4 if not 6 <= number < 9 else 1e-6 for number in range(15)]
    net = network(chunks, speeds, 5e-5)
    plan = planned(net, 6 * 16 * PAGE)
    unhidden = planned(net, 3 * 16 * PAGE)
    assert plan.draft.idle.stall_seconds < unhidden.draft.idle.stall_seconds
    assert any("bottleneck" in reason for reason in plan.reasons)


@pytest.mark.parametrize("part", [0.3, 0.6, 1.0])
def test_reasons_of_a_small_network_have_no_size_of_zero(part: float) -> None:
    net = network([[2] * 4] * 6, [1e-6] * 6, 1e-5)
    reasons = " ".join(planned(net, smallest(net) + int(part * net.all_bytes)).reasons)
    assert "KiB" in reasons
    assert "0.0 MiB" not in reasons


def test_memory_that_does_not_help_is_given_back() -> None:
    net = heavy_tail(1e-6)
    limit = net.all_bytes // 2
    plan = planned(net, limit)
    assert plan.draft.idle.stall_seconds <= 0.01 * plan.draft.idle.delay_seconds
    assert plan.plan.weight_bytes < 0.8 * limit
    assert "kernels are the bottleneck" in plan.reasons[0]


def test_a_delay_is_reached_with_little_memory() -> None:
    net = heavy_tail(3e-5)
    fastest = planned(net, None).draft.idle.delay_seconds
    slowest = planned(net, smallest(net)).draft.idle.delay_seconds
    target = (fastest + slowest) / 2
    plan = planned(net, None, target)
    assert plan.draft.idle.delay_seconds <= target * 1.0001
    assert smallest(net) <= plan.plan.weight_bytes < net.all_bytes
    less = planned(net, int(plan.plan.weight_bytes * 0.8))
    assert less.draft.idle.delay_seconds > target


def test_a_delay_below_the_kernels_gives_the_fastest() -> None:
    net = heavy_tail(3e-5)
    assert planned(net, net.all_bytes, 1e-3) == planned(net, net.all_bytes)


def test_a_limit_below_the_smallest_ring_is_refused_with_the_figures() -> None:
    net = heavy_tail(3e-5)
    with pytest.raises(
        PlanError, match=rf"{smallest(net) - 1} bytes.*the least is .*\({smallest(net)} bytes"
    ):
        planned(net, smallest(net) - 1)
    assert planned(net, smallest(net)).plan.weight_bytes <= smallest(net)


def test_the_critical_path_by_hand() -> None:
    """Kernel 2 waits for read 2, that for kernel 1, and kernel 0 for read 0; others are hidden."""

    def durations_of(plan: Plan) -> Durations:
        reads = tuple(group.length / PAGE for group in plan.groups)
        return Durations((reads, (4.0, 1.0, 1.0, 1.0)), 1)

    drafts = Drafts(program([2, 2, 3, 1], [True] * 4), durations_of)
    draft = drafts.draft(Choice(4 * PAGE, PAGE, PAGE, 1))
    assert draft.idle.delay_seconds == 12
    assert critical_reads(draft, draft.idle) == [2, 0]
    kept = keep_critical(drafts, draft.choice, 4 * PAGE)
    assert kept.resident == (2,)
    assert drafts.draft(kept).idle.delay_seconds == 9


@drawn
@given(net=networks(), data=st.data())
def test_drafts_have_the_delays_of_their_plans(net: Network, data: st.DataObject) -> None:
    count = len(net.program.spans)
    chunk = data.draw(st.sampled_from([64, 128, 384])) * PAGE
    choice = Choice(
        ring_bytes=chunk + data.draw(st.integers(0, 40)) * PAGE,
        chunk_bytes=chunk,
        read_bytes=data.draw(st.sampled_from([PAGE, 64 * PAGE])),
        depth=data.draw(st.integers(1, 3)),
        resident=tuple(sorted(data.draw(st.sets(st.integers(1, count - 1), max_size=8)))),
        ahead=data.draw(st.sampled_from(get_args(Ahead))),
        later_chunks=tuple(
            (start, min(data.draw(st.sampled_from([0, 128, 384])) * PAGE, chunk))
            for start in part_starts(net.program)[1:]
            if data.draw(st.booleans())
        ),
    )
    draft = Drafts(net.program, net.durations).draft(choice)
    plan = make_plan(net.program, ARCHITECTURES["auto"], choice=choice)
    durations = net.durations(plan)
    warm = timeline(plan.stages, durations, plan.stages[0].ahead).delay_seconds
    assert draft.weight_bytes == plan.weight_bytes
    assert draft.idle.delay_seconds == pytest.approx(warm)
    assert draft.again.delay_seconds == pytest.approx(
        back_to_back(plan.stages, durations).delay_seconds
    )


@drawn
@given(net=networks(), limit=st.sampled_from([0, 128, 384]))
def test_each_part_gets_every_other_size(net: Network, limit: int) -> None:
    sizes = [64 * PAGE, 128 * PAGE, 384 * PAGE]
    starts = part_starts(net.program)
    assert starts[0] == 0
    assert starts == sorted(set(starts))
    choice = Choice(chunk_bytes=limit * PAGE)
    found = list(PartChunks(net.program, sizes).changed(choice))
    others = [size for size in sizes if size != limit * PAGE]
    assert len(set(found)) == len(starts) * len(others)
    for each in found:
        limits = {each.chunk_bytes, *(n_bytes for _, n_bytes in each.later_chunks)}
        assert limits <= {limit * PAGE, *others}


# The search for the smallest ring of minimal delay.

STEP = 64 * PAGE


@pytest.mark.parametrize("name", ["2s-md", "async-md"])
@examples(6, many=100)
@given(net=networks())
def test_every_point_is_what_its_plan_gives_and_the_first_minimum_is_chosen(
    name: str, net: Network
) -> None:
    architecture = ARCHITECTURES[name]
    result = search(net.program, architecture, net.durations, STEP)
    for point in (*result.curve[:2], result.chosen, result.curve[-1]):
        plan = make_plan(net.program, architecture, point.ring_bytes)
        delay = timeline(plan.stages, net.durations(plan)).delay_seconds
        assert point.delay_seconds == pytest.approx(delay)
        assert point.weight_bytes == plan.weight_bytes
    least = min(point.delay_seconds for point in result.curve)
    before = result.curve[: result.curve.index(result.chosen)]
    assert result.chosen.delay_seconds <= (1 + TOLERANCE) * least
    assert all(point.delay_seconds > (1 + TOLERANCE) * least for point in before)


def test_the_ring_grows_by_steps_from_the_smallest_to_the_model() -> None:
    net = heavy_tail(3e-5)
    curve = search(net.program, ARCHITECTURES["2s-md"], net.durations, STEP).curve
    plan = make_plan(net.program, ARCHITECTURES["2s-md"])
    assert curve[0].ring_bytes == plan.ring_bytes
    assert all(other.ring_bytes - one.ring_bytes == STEP for one, other in pairwise(curve))
    assert curve[-1].ring_bytes - STEP < net.streamable_bytes <= curve[-1].ring_bytes


def test_a_wider_tolerance_takes_a_smaller_ring() -> None:
    net = heavy_tail(3e-5)
    architecture = ARCHITECTURES["2s-md"]
    exact = search(net.program, architecture, net.durations, STEP, tolerance=0.0)
    wide = search(net.program, architecture, net.durations, STEP, tolerance=0.05)
    assert exact.curve == wide.curve
    assert wide.chosen.ring_bytes <= exact.chosen.ring_bytes


@over("name", ["pre", "seq", "sync"])
def test_architectures_without_a_ring_are_refused(name: str) -> None:
    net = heavy_tail(3e-5)
    with pytest.raises(PlanError, match=f"{name} has no ring"):
        search(net.program, ARCHITECTURES[name], net.durations, STEP)


def test_steps_of_nothing_are_refused() -> None:
    net = heavy_tail(3e-5)
    with pytest.raises(PlanError, match="cannot grow by 0 bytes"):
        search(net.program, ARCHITECTURES["2s-md"], net.durations, 0)
