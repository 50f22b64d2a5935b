"""Which connections get a place, wait, or give way, over members that only say how long they are silent."""

from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.transport.giving_way import Claim, CountedConnection, Leavers, Peer, Worth
from server.transport.limits import (
    ENDING_CONNECTIONS,
    FRESH_SECONDS,
    GRACE_SECONDS,
    WAIT_SECONDS,
    ConnectionLimits,
)
from server.transport.proxies import TrustedProxies
from server.transport.registry import Registry, owner
from tests.examples import examples, over

LIMITS = ConnectionLimits(
    total=32, per_address=None, header_seconds=10, idle_seconds=75, stall_seconds=10, waiting=6
)
A, B, C = Peer("a"), Peer("b"), Peer("c")
PROXY = Peer("10.0.0.1", is_proxy=True)
PROXIES = TrustedProxies.named(["10.0.0.1"])


@dataclass(eq=False)
class FakeMember:
    """A connection that runs a request (``since`` is None), or has been silent since then."""

    peer: Peer = A
    worth: Worth = Worth.EMPTY
    since: float | None = 0.0
    is_overdue: bool = False
    has_data: bool = False
    left: list[str] = field(default_factory=list)

    def silence(self, now: float) -> float | None:
        return None if self.since is None else now - self.since

    def overdue(self, now: float) -> bool:
        return self.is_overdue

    def drop(self) -> bool:
        return self._left("dropped")

    def give_way(self) -> bool:
        return self._left("gave way")

    def _left(self, why: str) -> bool:
        if not self.has_data:
            self.left.append(why)
        return not self.has_data


@dataclass(eq=False)
class FakeNewcomer:
    """A connection that waits; ``asks``: it has sent a request. Its member begins to answer at once."""

    peer: Peer = A
    asks: bool = False
    member: FakeMember | None = None
    is_refused: bool = False

    def has_request(self) -> bool:
        return self.asks

    def admit(self) -> FakeMember:
        self.member = FakeMember(self.peer, since=None)
        return self.member

    def reject(self) -> None:
        self.is_refused = True


def anything(worth: Worth, member: CountedConnection) -> bool:
    return True


def filled(limits: ConnectionLimits, *members: FakeMember) -> Registry:
    registry = Registry(limits)
    for member in members:
        registry.add(member)
    return registry


def comes(registry: Registry, peer: Peer, now: float, *, asks: bool = False) -> FakeNewcomer:
    """Come as ``peer``, with or without a request."""
    newcomer = FakeNewcomer(peer, asks)
    registry.arrive(newcomer, now)
    return newcomer


def knock(registry: Registry, peer: Peer, now: float) -> bool:
    """Come as ``peer``; return whether it is let in at once."""
    newcomer = comes(registry, peer, now)
    registry.check(now)
    return newcomer.member is not None


# The order


def worth_at(member: FakeMember, now: float) -> Worth | None:
    """What would be lost with ``member``, said the long way; None: it cannot give way."""
    if member.since is None:
        return None
    if now - member.since >= GRACE_SECONDS:
        return member.worth
    is_unused = member.worth in {Worth.EMPTY, Worth.UNANSWERED}
    return Worth.FRESH if is_unused and now - member.since >= FRESH_SECONDS else None


MEMBERS = st.builds(
    FakeMember,
    peer=st.sampled_from([A, B, C]),
    worth=st.sampled_from([worth for worth in Worth if worth != Worth.FRESH]),
    since=st.one_of(st.none(), st.integers(0, 100), st.floats(98.5, 100.0)),
    has_data=st.booleans(),
)


@given(st.lists(MEMBERS, max_size=8), st.sets(st.sampled_from(Worth)))
@examples(few=35, many=5000)
def test_least_worth_goes_first_then_the_longest_silent(
    members: list[FakeMember], allowed: set[Worth]
) -> None:
    left = Leavers(members).next(100.0, lambda worth, member: worth in allowed)
    able = [
        (worth, each.since)
        for each in members
        if (worth := worth_at(each, 100.0)) in allowed and not each.has_data
    ]
    assert [each for each in members if each.left] == ([] if left is None else [left])
    if isinstance(left, FakeMember):
        assert (worth_at(left, 100.0), left.since) == min(able)
    else:
        assert not able


def test_what_was_asked_since_the_order_was_made_stays() -> None:
    members = [FakeMember(since=number) for number in range(3)]
    there: set[CountedConnection] = set(members)
    leavers = Leavers(there)
    members[0].since = None
    assert leavers.next(100.0, anything) is members[1]
    there.discard(members[1])
    members[2].since = 99.9
    assert leavers.next(100.01, anything) is None
    members[0].since = 100.0
    assert leavers.next(101.5, anything) is members[2]


def test_finding_one_does_not_look_at_all_for_each_that_comes() -> None:
    looks = 0

    class Counted(FakeMember):
        def silence(self, now: float) -> float | None:
            nonlocal looks
            looks += 1
            return super().silence(now)

    members: set[CountedConnection] = {Counted() for _ in range(2000)}
    leavers = Leavers(members)
    for step in range(1000):
        left = leavers.next(2.0 + step / 1000, anything)
        assert left is not None
        members.discard(left)
        members.add(Counted(since=2.0 + step / 1000))
    assert looks < 100_000


# Whose

REACHES = [
    # What serves no request goes for any peer, the same one too.
    (Worth.ANSWERED, A, 32, True),
    (Worth.EMPTY, A, 32, True),
    (Worth.EMPTY, B, 1, True),
    # What may be used again stays where the same peer comes without a request, ...
    (Worth.KEPT, A, 32, False),
    (Worth.BEGINNING, A, 32, False),
    (Worth.UNANSWERED, A, 32, False),
    # ... one that has as much, and goes where its own has more than others.
    (Worth.KEPT, B, 16, True),
    (Worth.KEPT, B, 15, False),
    (Worth.UNANSWERED, B, 15, True),
    (Worth.UNANSWERED, B, 4, False),
    (Worth.KEPT, B, 4, False),
    (Worth.FRESH, B, 16, True),
    (Worth.FRESH, B, 15, False),
    (Worth.FRESH, A, 32, False),
    (Worth.KEPT, PROXY, 5, True),
]


@over("worth, peer, holds, reached", REACHES)
def test_what_a_newcomer_of_a_with_four_places_reaches_where_sixteen_are_fair(
    worth: Worth, peer: Peer, holds: int, reached: bool
) -> None:
    assert Claim(A, holds=4, fair=16).reaches(worth, peer, holds) == reached


def test_what_is_silent_is_evicted_for_a_request_of_its_peer() -> None:
    claim = Claim(A, holds=4, fair=16, has_request=True)
    assert [kind for kind in Worth if not claim.reaches(kind, A, 32)] == [Worth.FRESH]
    assert not claim.reaches(Worth.UNANSWERED, B, 4)  # others are not less than it


# Places


def test_one_address_may_fill_all_places_and_loses_none_to_its_own() -> None:
    registry, members = Registry(LIMITS), list[FakeMember]()
    for _ in range(LIMITS.total):
        newcomer = comes(registry, A, 90.0)
        assert newcomer.member is not None
        registry.discard(newcomer.member)
        members.append(FakeMember(A, Worth.KEPT, since=90.0))
        registry.add(members[-1])
    assert not knock(registry, A, 100.0)
    assert not any(member.left for member in members)


def test_another_address_gets_as_much_and_no_more() -> None:
    members = [FakeMember(A, Worth.KEPT, since=number) for number in range(LIMITS.total)]
    registry = filled(LIMITS, *members)
    for number in range(LIMITS.total // 2):
        assert knock(registry, B, 100.0)
        assert members[number].left == ["gave way"]  # the longest idle of all
    assert not knock(registry, B, 100.0)
    assert not any(member.left for member in members[LIMITS.total // 2 :])


def test_what_was_used_within_a_second_stays_for_whomever() -> None:
    members = [FakeMember(A, Worth.KEPT, since=99.5) for _ in range(LIMITS.total)]
    registry = filled(LIMITS, *members)
    newcomer = comes(registry, B, 100.0)
    registry.check(100.0)
    assert newcomer.member is None
    assert not any(member.left for member in members)
    registry.check(100.5)
    assert newcomer.member is not None


def test_a_proxy_counts_as_one_however_many_clients_it_carries() -> None:
    """None of its connections goes while a client has more than one, and one goes for a client without."""
    limits = replace(LIMITS, proxies=PROXIES)
    proxied = [FakeMember(PROXY, Worth.KEPT, since=0.0) for _ in range(LIMITS.total - 2)]
    direct = [FakeMember(A, Worth.KEPT, since=90.0) for _ in range(2)]
    registry = filled(limits, *proxied, *direct)
    assert registry.peer("10.0.0.1") == PROXY
    assert not knock(registry, PROXY, 100.0)  # a fair share is more than what A has
    registry = filled(limits, *proxied, *direct)
    assert knock(registry, B, 100.0)
    assert sum(bool(member.left) for member in proxied) == 1


def test_no_limit_of_an_address_is_a_proxys() -> None:
    registry = Registry(replace(LIMITS, per_address=2, proxies=PROXIES))
    assert [knock(registry, PROXY, 1.0) for _ in range(3)] == [True] * 3
    assert [knock(registry, A, 1.0) for _ in range(3)] == [True, True, False]


def test_where_its_address_has_enough_only_its_own_empty_ones_go() -> None:
    own, other = FakeMember(A, Worth.KEPT), FakeMember(B)
    registry = filled(replace(LIMITS, per_address=2), own, FakeMember(A), other)
    assert knock(registry, A, 100.0)
    assert not knock(registry, A, 100.0)
    assert not own.left
    assert not other.left


def dribbling(count: int, peer: Peer = A) -> list[FakeMember]:
    return [FakeMember(peer, Worth.UNANSWERED, since=index) for index in range(count)]


@pytest.mark.parametrize("per_address", [None, LIMITS.total])
def test_a_request_goes_before_what_one_address_only_begins(per_address: int | None) -> None:
    members = dribbling(LIMITS.total)
    registry = filled(replace(LIMITS, per_address=per_address), *members)
    assert not knock(registry, A, 100.0)
    asking = comes(registry, A, 100.0, asks=True)
    registry.check(100.0)
    assert asking.member is not None
    assert [member for member in members if member.left] == members[:1]  # the longest silent
    assert len(registry.queue) == 1


def test_of_an_address_those_with_a_request_are_admitted_first_and_not_refused() -> None:
    members = busy(LIMITS.total)
    registry = filled(LIMITS, *members)
    dribblers = [comes(registry, A, 100.0) for _ in range(LIMITS.waiting - 1)]
    asking = comes(registry, A, 100.0, asks=True)
    registry.check(100.0)
    last = comes(registry, A, 100.0)
    newcomers = [*dribblers, asking, last]
    assert [newcomer for newcomer in newcomers if newcomer.is_refused] == dribblers[:1]
    registry.end(members[0], 100.0)
    registry.check(100.0)
    assert [newcomer for newcomer in newcomers if newcomer.member] == [asking]


def test_an_address_without_a_request_waits_for_one_with_a_request() -> None:
    members = dribbling(LIMITS.total, B)
    registry = filled(LIMITS, *members)
    silent = comes(registry, C, 99.0)
    asking = comes(registry, A, 100.0, asks=True)
    members[0].since = None
    for member in members[2:]:
        member.since = None
    registry.check(100.0)
    assert (silent.member, asking.member is None) == (None, False)


def test_newcomers_press_when_half_of_their_time_is_over() -> None:
    registry = filled(LIMITS, *busy(LIMITS.total))
    assert not knock(registry, A, 1.0)
    knock(registry, B, 1.5)
    assert [registry.is_pressed(1.0 + share * WAIT_SECONDS) for share in (0.4, 0.5)] == [
        False,
        True,
    ]


# The last answer


def busy(count: int, peer: Peer = A) -> list[FakeMember]:
    return [FakeMember(peer, Worth.BEGINNING, since=None) for _ in range(count)]


@pytest.mark.parametrize("peer", [A, B])
def test_as_many_answers_are_last_ones_as_newcomers_wait(peer: Peer) -> None:
    members = busy(LIMITS.total)
    registry = filled(LIMITS, *members)
    assert not registry.wants_back(members[0], 1.0)
    for _ in range(2):
        comes(registry, peer, 1.0, asks=True)
    registry.check(1.0)
    assert [registry.wants_back(each, 1.0) for each in members[:3]] == [True, True, False]
    assert registry.wants_back(members[3], 1.1)  # none went
    registry.end(members[3], 1.1)
    registry.check(1.1)
    assert len(registry.queue) == 1
    assert registry.wants_back(members[4], 1.1)  # the other one waits on


def test_an_address_with_few_gives_none_to_one_with_many() -> None:
    few = busy(2, B)
    registry = filled(LIMITS, *busy(LIMITS.total - 2), *few)
    assert not knock(registry, A, 1.0)
    assert not registry.wants_back(few[0], 1.0)


def test_while_places_are_free_no_answer_is_the_last() -> None:
    member = busy(1)[0]
    registry = filled(LIMITS, member)
    comes(registry, A, 1.0)
    assert not registry.wants_back(member, 1.0)


def test_when_the_server_ends_every_answer_is_the_last() -> None:
    registry = filled(LIMITS)
    registry.drain()
    assert registry.wants_back(FakeMember(), 1.0)


def test_when_the_server_ends_all_newcomers_are_admitted_or_refused() -> None:
    members = busy(LIMITS.total)
    registry = filled(LIMITS, *members)
    waiting = [comes(registry, A, 1.0) for _ in range(3)]
    registry.end(members[0], 1.0)
    registry.drain()
    registry.check(1.0)
    assert [newcomer.member is not None for newcomer in waiting] == [True, False, False]
    assert [newcomer.is_refused for newcomer in waiting] == [False, True, True]


# Ends


def test_overdue_members_are_dropped_and_count_until_they_are_gone() -> None:
    members = [
        FakeMember(is_overdue=True),
        FakeMember(),
        FakeMember(is_overdue=True, has_data=True),
    ]
    registry = filled(LIMITS, *members)
    registry.sweep(1.0)
    assert [member.left for member in members] == [["dropped"], [], []]
    assert len(registry) == 3
    registry.discard(members[0])
    registry.discard(members[0])
    assert len(registry) == 2


def test_what_has_had_its_last_answer_takes_no_place_and_is_read_on_for_a_time() -> None:
    registry, members = Registry(LIMITS), [FakeMember(A) for _ in range(LIMITS.total)]
    for member in members:
        registry.add(member)
        registry.end(member, 1.0)
    assert len(registry) == 0
    assert knock(registry, A, 1.0)
    members[0].is_overdue = True
    registry.sweep(2.0)
    assert [each for each in members if each.left] == [members[0]]


def test_where_too_many_end_the_first_of_the_address_with_most_is_cut_off() -> None:
    registry = Registry(LIMITS)
    ending = [FakeMember(A if number % 2 else B) for number in range(9)]
    flood = [FakeMember(C) for _ in range(ENDING_CONNECTIONS)]
    for number, member in enumerate([*ending, *flood]):
        registry.end(member, number)
    assert not any(member.left for member in ending)
    assert [member for member in flood if member.left] == flood[: len(ending)]


def test_for_want_of_a_descriptor_what_ends_goes_then_what_is_silent() -> None:
    kept, ending = FakeMember(worth=Worth.KEPT), FakeMember()
    registry = filled(LIMITS, kept)
    registry.end(ending, 99.0)
    assert registry.spare(100.0)
    assert (kept.left, ending.left) == ([], ["dropped"])
    assert registry.spare(100.0)
    assert kept.left == ["gave way"]
    assert not registry.spare(100.1)


# All of it: whatever comes in whatever order


@dataclass
class World:
    """Connections of a few addresses on a registry of eight places, played on a clock of its own."""

    limits: ConnectionLimits
    now: float = 100.0
    members: list[FakeMember] = field(default_factory=list)
    waiting: dict["PlayedNewcomer", float] = field(default_factory=dict)
    was_requested: bool = False
    came = refused = 0

    def __post_init__(self) -> None:
        self.registry = Registry(self.limits)

    def step(self, what: str, peer: Peer, which: int) -> None:
        there = [member for member in self.members if not member.left]
        if what == "knock":
            newcomer = PlayedNewcomer(self, peer)
            self.waiting[newcomer] = self.now
            self.came += 1
            self.registry.arrive(newcomer, self.now)
        elif what == "time":
            self.now += which / 4
        elif what == "arrive":
            for newcomer in list(self.waiting)[which % 4 :: 4]:
                newcomer.asks = self.was_requested = True
        elif there:
            self.play(there[which % len(there)], what)
        self.turn()

    def play(self, member: FakeMember, what: str) -> None:
        if what == "ask":
            member.since, member.worth = None, Worth.BEGINNING
        elif what == "answer":
            member.since, member.worth = self.now, Worth.KEPT
        elif what == "begin":
            if member.worth == Worth.EMPTY:
                member.since, member.worth = self.now, Worth.UNANSWERED
        elif what == "refuse its body":
            member.since, member.worth = self.now, Worth.ANSWERED
        elif what == "send":
            member.has_data = not member.has_data
        else:
            member.left.append(what)
            self.registry.discard(member)

    def turn(self) -> None:
        gone = {id(member) for member in self.members if member.left}
        self.registry.check(self.now)
        for member in self.members:
            if member.left == ["gave way"] and id(member) not in gone:
                self.check_left(member)
        self.check()

    def check_left(self, member: FakeMember) -> None:
        assert member.since is not None  # its client waited for nothing,
        silence = self.now - member.since  # had not asked a moment ago,
        assert silence >= (FRESH_SECONDS if member.worth == Worth.EMPTY else GRACE_SECONDS)
        assert not member.has_data  # nor sent what was not read yet
        if len({each.peer for each in self.members}) == 1:
            # And one address alone loses nothing that it uses, or may be about to, unless it asks for it.
            assert member.worth <= (Worth.UNANSWERED if self.was_requested else Worth.EMPTY)
            assert silence >= GRACE_SECONDS

    def check(self) -> None:
        there = [member for member in self.members if not member.left]
        assert len(there) == len(self.registry) <= self.limits.total
        assert self.registry.waiting == bool(self.waiting)
        assert len(self.waiting) <= self.limits.waiting
        # Each newcomer has a place, waits, or gets an answer, before long.
        assert self.came == len(self.members) + len(self.waiting) + self.refused
        assert all(self.now - since < WAIT_SECONDS for since in self.waiting.values())
        held = {peer: sum(each.peer == peer for each in there) for peer in (A, B, PROXY)}
        limit = self.limits.per_address or self.limits.total
        assert all(count <= limit for peer, count in held.items() if not peer.is_proxy)
        if len(there) < self.limits.total:  # no place is left free for which a newcomer may wait
            assert all(held[each.peer] >= limit for each in self.waiting)


@dataclass(eq=False)
class PlayedNewcomer:
    """A connection that waits in ``world``."""

    world: World
    peer: Peer
    asks: bool = False

    def has_request(self) -> bool:
        return self.asks

    def admit(self) -> FakeMember:
        del self.world.waiting[self]
        self.world.members.append(FakeMember(self.peer, since=self.world.now))
        return self.world.members[-1]

    def reject(self) -> None:
        del self.world.waiting[self]
        self.world.refused += 1


ACTIONS = (
    *("knock", "knock", "knock", "arrive", "time"),
    *("begin", "ask", "answer", "refuse its body", "send", "close"),
)
STEPS = st.lists(
    st.tuples(st.sampled_from(ACTIONS), st.sampled_from([A, B, PROXY]), st.integers(0, 9)),
    max_size=80,
)


@given(STEPS, st.sampled_from([None, 3]))
@examples(few=37, many=5000)
def test_whatever_comes_nothing_in_use_goes_and_nobody_waits_for_long(
    steps: list[tuple[str, Peer, int]], per_address: int | None
) -> None:
    world = World(replace(LIMITS, total=8, per_address=per_address, proxies=PROXIES))
    for step in steps:
        world.step(*step)


@given(st.lists(st.tuples(st.sampled_from(ACTIONS), st.just(A), st.integers(0, 9)), max_size=80))
@examples(few=12, many=2000)
def test_one_address_alone_loses_nothing_that_it_uses(steps: list[tuple[str, Peer, int]]) -> None:
    world = World(replace(LIMITS, total=8))
    for step in steps:
        world.step(*step)


def test_refusals_come_no_faster_than_there_is_room_for_them_to_end() -> None:
    registry = Registry(replace(LIMITS, total=1, waiting=2 * ENDING_CONNECTIONS))
    registry.add(busy(1)[0])
    waiting = [comes(registry, A, 1.0) for _ in range(2 * ENDING_CONNECTIONS)]
    now = 1.0 + WAIT_SECONDS

    def refused(now: float) -> int:
        before = sum(newcomer.is_refused for newcomer in waiting)
        registry.check(now)
        return sum(newcomer.is_refused for newcomer in waiting) - before

    assert refused(now) == ENDING_CONNECTIONS
    ending = [FakeMember(A) for _ in range(ENDING_CONNECTIONS)]
    for member in ending:
        registry.end(member, now)
    assert not refused(now)
    registry.discard(ending[0])
    assert refused(now) == 1
    assert not any(member.left for member in ending)


@over(
    "address, same, other",
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
