"""Shares of calls by address: their rules on a clock of their own, no server."""

import asyncio
from dataclasses import dataclass, field

import pytest

from server.errors import BusyError
from server.grpc.call import CallPlaces, QueuedCall
from server.transport.giving_way import Peer, Worth
from server.transport.limits import WAIT_SECONDS, ConnectionLimits
from server.transport.proxies import TrustedProxies
from tests.server.support import settled

A, B, C = (Peer(f"10.0.0.{host}") for host in (1, 2, 3))
TOTAL = 8


@dataclass(eq=False)
class FakeCall(QueuedCall):
    """A call that runs (``since`` is None), or has waited for its client's next message since then."""

    peer: Peer
    since: float | None = None
    worth: Worth = Worth.KEPT
    gave_way: bool = False

    def silence(self, now: float) -> float | None:
        return None if self.since is None else now - self.since

    def overdue(self, now: float) -> bool:
        return False

    def drop(self) -> bool:
        return self.give_way()

    def give_way(self) -> bool:
        self.gave_way = True
        return True


@dataclass
class World:
    """Calls on eight places."""

    per_address: int | None = None
    now: float = 100.0
    ends: dict[FakeCall, asyncio.Event] = field(default_factory=dict)
    tasks: dict[FakeCall, "asyncio.Task[None]"] = field(default_factory=dict)

    def __post_init__(self) -> None:
        proxies = TrustedProxies.named(("10.0.0.9",))
        limits = ConnectionLimits(TOTAL, self.per_address, 1.0, 1.0, 1.0, TOTAL, proxies)
        self.shares = CallPlaces(limits, lambda: self.now)
        self.runs: list[FakeCall] = []

    async def begin(self, *calls: FakeCall) -> None:
        for call in calls:
            self.ends[call] = asyncio.Event()
            self.tasks[call] = asyncio.create_task(self._run(call))
            await settled()

    async def _run(self, call: FakeCall) -> None:
        async with self.shares.place(call):
            self.runs.append(call)
            try:
                await self.ends[call].wait()
            finally:
                self.runs.remove(call)

    async def end(self, *calls: FakeCall) -> None:
        for call in calls:
            self.ends[call].set()
            await settled()

    async def close(self) -> None:
        for task in self.tasks.values():
            task.cancel()
        await asyncio.gather(*self.tasks.values(), return_exceptions=True)


def calls(peer: Peer, count: int, since: float | None = None) -> list[FakeCall]:
    return [FakeCall(peer, since) for _ in range(count)]


async def test_one_address_may_have_all_calls_and_one_more_waits() -> None:
    world, all_of_them, more = World(), calls(A, TOTAL), FakeCall(A)
    await world.begin(*all_of_them, more)
    assert world.runs == all_of_them
    await world.end(all_of_them[0])
    assert world.runs == [*all_of_them[1:], more]
    assert not any(call.gave_way for call in all_of_them)
    await world.close()


async def test_a_place_that_comes_free_is_for_the_address_with_fewest() -> None:
    world, of_a, waiting = World(), calls(A, TOTAL), [*calls(A, 2), FakeCall(B)]
    await world.begin(*of_a, *waiting)
    await world.end(of_a[0])
    assert waiting[2] in world.runs
    assert waiting[0] not in world.runs
    await world.close()


async def test_streams_without_a_message_give_way_to_another_address_alone() -> None:
    world, silent = World(), calls(A, TOTAL, since=90.0)
    await world.begin(*silent, FakeCall(A))
    assert not any(call.gave_way for call in silent)
    of_b = calls(B, TOTAL)
    await world.begin(*of_b)
    # Both have as much, and no more goes.
    assert sum(call.gave_way for call in silent) == TOTAL // 2
    assert sum(call in world.runs for call in of_b) == TOTAL // 2
    await world.close()


async def test_what_runs_never_gives_way_and_who_waits_too_long_is_told_to_come_again() -> None:
    world, busy, late = World(), calls(A, TOTAL), FakeCall(B)
    await world.begin(*busy, late)
    world.now += WAIT_SECONDS
    world.shares.look()
    with pytest.raises(BusyError, match="max_connections"):
        await world.tasks[late]
    assert world.runs == busy
    await world.close()


async def test_those_that_wait_are_looked_at_again() -> None:
    world, used, waiting = World(), calls(A, TOTAL, since=100.0), FakeCall(B)
    await world.begin(*used, waiting)
    assert waiting not in world.runs  # each was used a moment ago
    world.now += 1.5
    async with asyncio.timeout(10):
        while waiting not in world.runs:  # noqa: ASYNC110  places signal nothing
            await asyncio.sleep(0)
    assert sum(call.gave_way for call in used) == 1
    await world.close()


async def test_who_leaves_while_it_waits_takes_no_place() -> None:
    world, busy, left, stays = World(), calls(A, TOTAL), FakeCall(B), FakeCall(C)
    await world.begin(*busy, left, stays)
    world.tasks[left].cancel()
    await settled()
    await world.end(busy[0])
    assert stays in world.runs
    world.now += WAIT_SECONDS
    await world.close()
    again = calls(A, TOTAL)
    await world.begin(*again)
    assert world.runs == again
    await world.close()


async def test_more_than_may_wait_are_refused_of_the_address_with_most() -> None:
    world, many, one = World(), calls(A, 2 * TOTAL), FakeCall(B)
    await world.begin(*many, one, FakeCall(A))
    refused = [call for call, task in world.tasks.items() if task.done()]
    assert len(refused) == 2
    assert {call.peer for call in refused} == {A}
    for call in refused:
        with pytest.raises(BusyError):
            await world.tasks[call]
    await world.close()


async def test_a_limit_of_an_address_is_none_of_a_proxys() -> None:
    world = World(per_address=3)
    await world.begin(*calls(A, 4))
    assert len(world.runs) == 3
    await world.begin(*calls(world.shares.peer("10.0.0.9"), 4))
    assert len(world.runs) == 7
    await world.close()


async def test_a_network_of_ipv6_is_one_address() -> None:
    peer = World().shares.peer
    assert peer("2001:db8::1") == peer("2001:db8::2") != peer("2001:db8:1::1")
