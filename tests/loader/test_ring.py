"""Where reads lie in the ring: judged by brute force, byte ranges against byte ranges."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loader import ring
from loader.errors import LoaderError
from loader.ring import ReadGroup, RingPlace, group_spans

LENGTHS = st.lists(st.integers(1, 40), max_size=30)


def groups_of(lengths: list[int]) -> list[ReadGroup]:
    return [ReadGroup(number, number + 1, length) for number, length in enumerate(lengths)]


def slots(groups: list[ReadGroup], ring_bytes: int) -> list[RingPlace]:
    """Return the slots of ``groups``, all of which lie in the ring."""
    return [item for item in ring.place(groups, ring_bytes) if item is not None]


@given(lengths=LENGTHS, spare=st.integers(0, 100))
def test_groups_share_memory_only_after_they_are_used_up(lengths: list[int], spare: int) -> None:
    ring_bytes = max(lengths, default=0) + spare
    places = slots(groups_of(lengths), ring_bytes)
    assert [item.length for item in places] == lengths
    for number, item in enumerate(places):
        assert 0 <= item.offset <= item.offset + item.length <= ring_bytes
        assert 0 <= item.after <= number
        own = range(item.offset, item.offset + item.length)
        for earlier in range(item.after, number):
            other = places[earlier]
            assert not set(own) & set(range(other.offset, other.offset + other.length))


@given(lengths=LENGTHS, spare=st.integers(0, 100))
def test_no_group_waits_for_more_than_it_must(lengths: list[int], spare: int) -> None:
    """The last group that a place waits for does lie in its way."""
    places = slots(groups_of(lengths), max(lengths, default=0) + spare)
    for item in places:
        if item.after:
            last = places[item.after - 1]
            assert last.offset < item.offset + item.length
            assert item.offset < last.offset + last.length


@given(lengths=LENGTHS.filter(bool))
def test_ring_of_exactly_the_largest_group_works(lengths: list[int]) -> None:
    assert len(slots(groups_of(lengths), max(lengths))) == len(lengths)


@given(lengths=LENGTHS.filter(bool))
def test_ring_of_all_groups_waits_for_nothing(lengths: list[int]) -> None:
    places = slots(groups_of(lengths), sum(lengths))
    assert all(item.after == 0 for item in places)
    assert [item.offset for item in places] == [0, *itertools.accumulate(lengths)][:-1]


@given(lengths=LENGTHS.filter(bool), missing=st.integers(1, 50))
def test_smaller_ring_is_refused(lengths: list[int], missing: int) -> None:
    ring_bytes = max(lengths) - missing
    with pytest.raises(LoaderError, match=rf"a ring of {ring_bytes} bytes .* \d+ bytes") as caught:
        slots(groups_of(lengths), ring_bytes)
    assert type(caught.value) is LoaderError


def test_nothing_needs_no_ring() -> None:
    assert slots([], 0) == []
    assert group_spans([], 4096) == []


@st.composite
def spans(draw: st.DrawFn) -> list[tuple[int, int]]:
    """Spans in the order of the file, with holes between some."""
    end = draw(st.integers(0, 5))
    found = []
    for length in draw(st.lists(st.integers(1, 20), max_size=25)):
        offset = end + draw(st.sampled_from([0, 0, 0, 7]))
        found.append((offset, length))
        end = offset + length
    return found


@given(spans=spans(), read_bytes=st.integers(1, 60))
def test_groups_are_runs_of_spans_within_the_limit(
    spans: list[tuple[int, int]], read_bytes: int
) -> None:
    groups = group_spans(spans, read_bytes)
    covered = [number for group in groups for number in range(group.first_span, group.end_span)]
    assert covered == list(range(len(spans)))
    for group in groups:
        members = spans[group.first_span : group.end_span]
        assert group.length == sum(length for _, length in members)
        assert group.length <= read_bytes or len(members) == 1
        for (offset, length), (following, _) in itertools.pairwise(members):
            assert offset + length == following


@given(spans=spans(), read_bytes=st.integers(1, 60))
def test_groups_are_not_cut_without_a_reason(spans: list[tuple[int, int]], read_bytes: int) -> None:
    for one, following in itertools.pairwise(group_spans(spans, read_bytes)):
        offset, length = spans[one.end_span - 1]
        start, added = spans[following.first_span]
        assert offset + length != start or one.length + added > read_bytes
