"""Ways to stream: within the limit, from the smallest to all weights in memory."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from models.packs.records.spans import Span
from pipeline.planning.plan import Plan
from pipeline.planning.smallest import SmallestPlans
from pipeline.planning.streaming import READ_BYTES
from pipeline.planning.streams import USEFUL_RING_BYTES, all_weight_bytes, streams
from pipeline.program.choice import SameSpans
from pipeline.program.program import Program
from pipeline.program.region_plan import Region, RowCut
from pipeline.program.steps import row_network
from pipeline.schedule.architectures import ARCHITECTURES, COPIED_AUTO, Architecture
from tests.examples import examples, over
from tests.pipeline.networks import Network, heavy_tail, network, networks
from tests.pipeline.program.regions import largest_regions
from tests.pipeline.small import maps_program
from tests.pipeline.synthetic import PAGE, program, stored

AUTO = ARCHITECTURES["auto"]


def streams_of(
    plans: SmallestPlans, weight_bytes: int, regions: tuple[Region, ...] = ()
) -> Iterator[Plan]:
    return streams(plans.program, plans.of(regions), weight_bytes)


def enough_bytes(plans: SmallestPlans, regions: tuple[Region, ...] = ()) -> int:
    return all_weight_bytes(plans.program, plans.of(regions))


@pytest.mark.parametrize(
    "architecture",
    [ARCHITECTURES["2s"], ARCHITECTURES["sync"], AUTO, COPIED_AUTO],
    ids=lambda item: item.name,
)
@examples(6, many=100)
@given(net=networks(), fraction=st.floats(0, 1.1), expands=st.booleans(), data=st.data())
def test_all_are_within_the_limit_and_the_smallest_is_among_them(
    architecture: Architecture, net: Network, fraction: float, expands: bool, data: st.DataObject
) -> None:
    source = net.program
    if expands:
        count = len(source.spans)
        pages = data.draw(st.lists(st.integers(1, 64), min_size=count, max_size=count))
        source = stored(source, pages)
    smallest_plans = SmallestPlans(source, architecture)
    smallest = smallest_plans.of()
    limit = smallest.weight_bytes + int(fraction * net.all_bytes)
    plans = list(streams_of(smallest_plans, limit))
    assert max(plan.weight_bytes for plan in plans) <= limit
    keeps_all = architecture.tuned == "auto" and limit >= enough_bytes(smallest_plans)
    assert (plans[0] == smallest) != keeps_all
    assert all(plan.architecture == smallest.architecture for plan in plans)
    if architecture.tuned != "auto":
        assert not any(plan.choice.resident for plan in plans)
        assert len(plans) <= 2


@examples(6, many=100)
@given(net=networks(), more=st.integers(0, 1 << 40))
def test_where_all_weights_fit_none_streams(net: Network, more: int) -> None:
    smallest_plans = SmallestPlans(net.program, AUTO)
    enough = enough_bytes(smallest_plans)
    assert enough == net.all_bytes
    (plan,) = streams_of(smallest_plans, enough + more)
    assert (plan.reads, plan.read_bytes, plan.weight_bytes) == ((), 0, net.all_bytes)
    *_, fewer = streams_of(smallest_plans, enough - 1)
    assert fewer.reads


@over("limit", [0, 1])
def test_below_the_smallest_there_is_only_that(limit: int) -> None:
    smallest_plans = SmallestPlans(heavy_tail(1e-5).program, AUTO)
    assert list(streams_of(smallest_plans, limit)) == [smallest_plans.of()]


def test_an_architecture_with_resident_weights_has_one_plan() -> None:
    net = heavy_tail(1e-5)
    for limit in (0, net.all_bytes // 2, 2 * net.all_bytes):
        (plan,) = streams_of(SmallestPlans(net.program, ARCHITECTURES["pre"]), limit)
        assert not plan.reads


def test_memory_becomes_ring_or_keeps_the_last_layers() -> None:
    """Where weights are large and quick to compute with."""
    net = heavy_tail(1e-5, layers=24)
    plans = list(streams_of(SmallestPlans(net.program, AUTO), net.all_bytes // 2))
    assert len({plan.ring_bytes for plan in plans}) > 2
    kept = [set(plan.choice.resident) for plan in plans]
    assert set() in kept
    assert len(set(map(len, kept))) > 2
    last = len(net.program.spans)
    for spans in kept:
        assert spans == set(range(last - len(spans), last))
    # What the ring does not take is kept, to less than one span.
    longest = max(span.length for span in net.program.spans)
    used = [plan.weight_bytes for plan in plans[1:] if plan.choice.resident]
    assert min(used) > net.all_bytes // 2 - 2 * longest


def test_no_ring_and_no_read_is_larger_than_helps() -> None:
    source = program([1024] * 40, [True] * 40)
    for name in ("2s", "auto"):
        smallest_plans = SmallestPlans(source, ARCHITECTURES[name])
        plans = list(streams_of(smallest_plans, 30 * 1024 * PAGE))
        assert max(read.n_bytes for plan in plans for read in plan.reads) <= READ_BYTES
        # Half of all that auto has may be ring all the same: measurements decide.
        if name == "2s":
            assert max(plan.ring_bytes for plan in plans) <= USEFUL_RING_BYTES


@given(
    st.lists(st.lists(st.integers(1, 8), min_size=1, max_size=6), min_size=1, max_size=8), st.data()
)
def test_a_few_pages_above_the_smallest_there_is_a_plan(
    chunks: list[list[int]], data: st.DataObject
) -> None:
    """Also where what is stored of a read is more than its share of a ring of all that is left."""
    net = network(chunks, [1e-5] * len(chunks), 1e-5)
    count = len(net.program.spans)
    pages = data.draw(st.lists(st.integers(1, 8), min_size=count, max_size=count))
    smallest_plans = SmallestPlans(stored(net.program, pages), AUTO)
    for more in range(12):
        limit = smallest_plans.of().weight_bytes + more * PAGE
        assert all(plan.weight_bytes <= limit for plan in streams_of(smallest_plans, limit))


def test_spans_that_are_the_same_stay_together() -> None:
    source = program([8] * 12, [True] * 12)
    shared = replace(source, spans=_shared(source))
    same = shared.made(SameSpans)
    smallest_plans = SmallestPlans(shared, AUTO)
    for count in range(1, 12):
        limit = smallest_plans.of().weight_bytes + count * 8 * PAGE
        for plan in streams_of(smallest_plans, limit):
            assert plan.weight_bytes <= limit
            kept = plan.choice.resident
            assert set(same.with_same(kept)) == set(kept)


def _shared(source: Program) -> tuple[Span, ...]:
    """Return spans of which the last four are the first four."""
    first = source.spans[:8]
    return (*first, *(replace(span, at=first[n].offset) for n, span in enumerate(source.spans[8:])))


def test_what_runs_on_rows_streams_with_its_regions(tmp_path: Path) -> None:
    network = maps_program(tmp_path)
    regions = tuple(largest_regions(row_network(network), RowCut(4))[:1])
    smallest_plans = SmallestPlans(network, AUTO)
    for limit in (
        0,
        smallest_plans.of(regions).weight_bytes + (1 << 16),
        enough_bytes(smallest_plans, regions),
    ):
        plans: list[Plan] = list(streams_of(smallest_plans, limit, regions))
        assert plans
        assert all(plan.choice.regions == regions for plan in plans)
        assert all(
            plan.weight_bytes <= max(limit, smallest_plans.of(regions).weight_bytes)
            for plan in plans
        )
