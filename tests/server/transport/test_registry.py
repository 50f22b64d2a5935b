"""Who may open a connection and who gives way, over members that only say how long they are silent."""

import asyncio
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.transport.limits import GRACE_SECONDS, ConnectionLimits
from server.transport.registry import Registry, owner
from tests.examples import examples

TOTAL, PER_ADDRESS = 4, 2
LIMITS = ConnectionLimits(
    total=TOTAL, per_address=PER_ADDRESS, header_seconds=10, idle_seconds=75, stall_seconds=10
)


@dataclass(eq=False)
class FakeMember:
    """A connection that runs a request (``since`` is None), or has been silent since then."""

    address: str = "a"
    used: bool = False
    beginning: bool = False
    since: float | None = 0.0
    is_overdue: bool = False
    has_data: bool = False
    dropped: list[str] = field(default_factory=list)

    def silence(self, now: float) -> float | None:
        return None if self.since is None else now - self.since

    def overdue(self, now: float) -> bool:
        return self.is_overdue

    def drop(self) -> bool:
        return self._left("overdue")

    def give_way(self) -> bool:
        return self._left("gave way")

    def _left(self, why: str) -> bool:
        if not self.has_data:
            self.dropped.append(why)
        return not self.has_data


MEMBERS = st.builds(
    FakeMember,
    address=st.sampled_from("abc"),
    used=st.booleans(),
    beginning=st.booleans(),
    since=st.one_of(st.none(), st.integers(0, 100), st.floats(99.0, 100.0)),
    has_data=st.booleans(),
)


def due(members: list[FakeMember]) -> FakeMember | None:
    """Who gives way among ``members``, said the slow way; None where nobody does."""
    silent = [each for each in members if each.since is not None and not each.has_data]
    return min(silent, key=lambda each: (worth(each), each.since), default=None)


def worth(member: FakeMember) -> int:
    """What is lost with ``member`` at 100.0."""
    if not member.used:
        return 0
    is_fresh = 100.0 - (member.since or 0.0) < GRACE_SECONDS
    return 1 if not is_fresh else 2 if member.beginning else 3


def filled(members: list[FakeMember]) -> Registry:
    registry = Registry(LIMITS)
    for member in members:
        registry.add(member)
    return registry


@given(st.lists(MEMBERS, max_size=8))
@examples(few=140, many=5000)
def test_never_used_then_kept_then_beginning_then_in_use_the_longest_silent_of_each(
    members: list[FakeMember],
) -> None:
    registry, expected = filled(members), due(members)
    gave_way = registry.drop_silent(100.0)
    left = [member for member in members if member.dropped]
    assert gave_way == (expected is not None)
    assert len(left) == len(members) - len(registry) == registry.dropped == int(gave_way)
    for member in left:
        assert expected is not None
        assert (worth(member), member.since) == (worth(expected), expected.since)
        assert member.dropped == ["gave way"]


@given(st.lists(MEMBERS, max_size=30))
@examples(few=140, many=5000)
def test_limits_hold_whoever_comes(arrivals: list[FakeMember]) -> None:
    async def run() -> None:
        registry, there = Registry(LIMITS), list[FakeMember]()
        for new in arrivals:
            same = [member for member in there if member.address == new.address]
            if not registry.admits(new.address, 100.0):
                assert len(same) == PER_ADDRESS
                assert due(same) is None
                continue
            place = asyncio.create_task(registry.place())
            await asyncio.sleep(0)
            there = [member for member in there if not member.dropped]
            if not place.done():
                assert registry.waiting
                assert due(there) is None
                gone = there.pop()
                registry.discard(gone)  # it ended by itself: its place is free
                await asyncio.sleep(0)
                await asyncio.sleep(0)
            assert place.done()
            assert not registry.waiting
            registry.add(new)
            there.append(new)
            assert len(registry) == len(there) <= TOTAL
            counts = [sum(each.address == name for each in there) for name in "abc"]
            assert max(counts) <= PER_ADDRESS
        assert not any(member.dropped and member.since is None for member in arrivals)

    asyncio.run(run())


async def test_who_waits_gets_in_when_somebody_falls_silent() -> None:
    members = [FakeMember(address, since=None) for address in "aabb"]
    registry = filled(members)
    place = asyncio.create_task(registry.place())
    await asyncio.sleep(0)
    registry.sweep(1.0)
    await asyncio.sleep(0)
    assert registry.waiting
    assert not place.done()
    members[2].since = 1.5
    registry.sweep(2.0)
    await asyncio.sleep(0)
    assert place.done()
    assert members[2].dropped == ["gave way"]
    assert not registry.waiting


async def test_who_waits_and_is_cancelled_waits_no_more() -> None:
    registry = filled([FakeMember(address, since=None) for address in "aabb"])
    place = asyncio.create_task(registry.place())
    await asyncio.sleep(0)
    place.cancel()
    with pytest.raises(asyncio.CancelledError):
        await place
    assert not registry.waiting


def test_overdue_members_are_dropped_and_count_until_they_are_gone() -> None:
    members = [
        FakeMember(is_overdue=True),
        FakeMember(),
        FakeMember(is_overdue=True, has_data=True),
    ]
    registry = filled(members)
    registry.sweep(1.0)
    assert [member.dropped for member in members] == [["overdue"], [], []]
    assert len(registry) == 3
    registry.discard(members[0])
    registry.discard(members[0])
    assert len(registry) == 2


def test_a_place_of_an_address_comes_back() -> None:
    members = [FakeMember("a", since=None), FakeMember("a", since=None)]
    registry = filled(members)
    assert not registry.admits("a", 1.0)
    assert registry.admits("b", 1.0)
    registry.discard(members[0])
    assert registry.admits("a", 1.0)


# Without a number for each address


SHARED = replace(LIMITS, total=32, per_address=None)


@given(st.lists(st.integers(0, 5), max_size=200))
def test_who_has_none_finds_a_place_whatever_a_few_others_take(arrivals: list[int]) -> None:
    """Five take all that they are given and never let go."""
    registry = Registry(SHARED)
    counts = dict.fromkeys(range(5), 0)
    for name in arrivals:
        address = f"10.0.0.{name}"
        admitted = registry.admits(address, 1.0)
        if name == 5:
            assert admitted  # and it leaves again
            continue
        assert admitted == (counts[name] < SHARED.total - len(registry))
        if admitted:
            registry.add(FakeMember(address, since=None))
            counts[name] += 1
    assert len(registry) < SHARED.total


def test_one_alone_has_half() -> None:
    registry = Registry(SHARED)
    while registry.admits("a", 1.0):
        registry.add(FakeMember("a", since=None))
    assert len(registry) == SHARED.total // 2


def test_where_many_have_one_each_somebody_with_a_few_loses_none_of_them() -> None:
    registry = Registry(replace(SHARED, total=256))
    kept = [FakeMember("good", used=True, since=99.9) for _ in range(4)]
    for number in range(252):
        registry.add(FakeMember(f"10.0.0.{number}", beginning=True, since=99.5))
    for member in kept:
        registry.add(member)
    assert registry.admits("good", 100.0)  # a fifth
    for _ in range(100):
        assert registry.drop_silent(100.0)
    assert not any(member.dropped for member in kept)


def test_who_has_just_come_goes_after_those_who_have_begun_and_do_not_go_on() -> None:
    """His request follows in a moment; it was he who was closed, and not who sends a byte a second."""
    registry = Registry(SHARED)
    new = FakeMember("good", since=99.99)
    slow = [FakeMember(f"10.0.0.{number}", beginning=True, since=99.5) for number in range(31)]
    for member in (new, *slow):
        registry.add(member)
    for _ in slow:
        assert registry.drop_silent(100.0)
    assert not new.dropped
    assert registry.drop_silent(100.0)


def test_finding_who_gives_way_does_not_look_at_all_for_each_that_comes() -> None:
    looks = 0

    class Counted(FakeMember):
        def silence(self, now: float) -> float | None:
            nonlocal looks
            looks += 1
            return super().silence(now)

    registry = Registry(replace(SHARED, total=2000))
    for number in range(2000):
        registry.add(Counted(f"10.0.{number % 10}.{number % 250}"))
    for step in range(1000):
        assert registry.drop_silent(step / 1000)
        registry.add(Counted("10.1.0.0", since=step / 1000))
    assert looks < 100_000


def test_who_has_fallen_silent_or_asked_since_the_order_was_made_is_seen_as_it_is_now() -> None:
    members = [FakeMember(str(number), since=number) for number in range(4)]
    registry = Registry(SHARED)
    for member in members:
        registry.add(member)
    assert registry.drop_silent(100.0)
    members[1].since = None  # it asks
    assert registry.drop_silent(100.0)
    assert [bool(member.dropped) for member in members] == [True, False, True, False]
    members[1].since = 99.0
    assert registry.drop_silent(100.0)
    assert registry.drop_silent(100.0)
    assert members[1].dropped
    assert not registry.drop_silent(100.0)


def test_who_is_let_in_has_a_place_before_it_is_counted() -> None:
    registry = Registry(SHARED)
    for _ in range(SHARED.total // 2):
        assert registry.admits("a", 1.0)
        registry.expect("a")
    assert not registry.admits("a", 1.0)
    registry.arrived("a")  # it left
    assert registry.admits("a", 1.0)


@pytest.mark.parametrize(
    ("address", "same", "other"),
    [
        ("10.0.0.1", "10.0.0.1", "10.0.0.2"),
        ("2001:db8::1", "2001:db8::ffff:0:0:1", "2001:db8:0:1::1"),
        ("fe80::1%eth0", "fe80::2%eth1", "fe80:0:0:1::1"),
        ("::ffff:10.0.0.1", "10.0.0.1", "::ffff:10.0.0.2"),
        ("", "", "10.0.0.1"),
        ("no:address", "no:address", "no:other"),
    ],
)
def test_who_has_an_address(address: str, same: str, other: str) -> None:
    assert owner(address) == owner(same) != owner(other)
