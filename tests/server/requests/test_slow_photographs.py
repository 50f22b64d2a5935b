"""Photographs that come slowly: others go on beside them, or without them where memory is short."""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from server.errors import BusyError
from server.memory import request_memory, request_room
from server.memory.body_share import BodyPart
from server.requests.admission import Turns
from server.requests.exchange import FREE_BYTES, Exchange
from server.requests.exchanges import GRACE_SECONDS
from server.transport.limits import PROGRESS_BYTES
from tests.server.requests.test_exchange import MIB, NEVER, Client, Service, over

# What is seen of a photograph when it has to take memory, and what makes it whole.
BEGINNING, REST = FREE_BYTES + 1, 100 << 10


@pytest.fixture(autouse=True, scope="module")
def _without_a_part_for_small_ones() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(request_memory, "SMALL_BYTES", 0)
        patch.setattr(request_room, "_KEPT_BYTES", 0)
        yield


class Decoder(Service):
    """Decodes photographs that take ``pixels`` bytes beside their bodies, of a pool of four MiB."""

    def __init__(self, usual: int) -> None:
        super().__init__()
        self.exchanges.bodies.divide(usual)
        self.line = Turns("a turn", 64)

    async def photograph(self, client: Client, pixels: int = MIB) -> asyncio.Task[Any]:
        async def work(exchange: Exchange) -> str:
            part = BodyPart(self.exchanges.bodies, "")
            async with exchange.within(NEVER):
                with exchange.in_line(part):
                    while not exchange.is_read:
                        await exchange.receive()
                    async with exchange.turn(self.line):
                        await exchange.hold(exchange.lease.held_bytes + pixels)
            return "decoded"

        return await self.begin(client, work)

    async def prompt(self, n_bytes: int = REST) -> asyncio.Task[Any]:
        """Begin a photograph all of which comes at once."""
        client = Client(n_bytes)
        for start in range(0, n_bytes, FREE_BYTES):
            client.sends(min(FREE_BYTES, n_bytes - start), more=start + FREE_BYTES < n_bytes)
        return await self.photograph(client)

    async def trickle(self, client: Client, seconds: float) -> None:
        """Send just enough not to be silent, for so long."""
        for _ in range(round(4 * seconds)):
            client.sends(PROGRESS_BYTES)
            await self.pass_time(0.25)

    @property
    def left_over(self) -> tuple[int, int, int]:
        bodies = self.exchanges.bodies
        return self.memory.used_bytes, bodies.line.used_bytes, bodies.aside.used_bytes


@pytest.mark.parametrize("length", [2 * MIB, None])
async def test_nobody_waits_for_what_is_slow_from_the_beginning(length: int | None) -> None:
    kitchen = Decoder(usual=MIB)
    clients = [Client(length) for _ in range(2)]
    slow = [await kitchen.photograph(client) for client in clients[: 1 if length else 2]]
    await kitchen.pass_time(0.5)
    for client in clients:
        client.sends(BEGINNING)
    assert await over(await kitchen.prompt()) == "decoded"
    for client in clients:  # and they come to an end themselves
        client.sends(REST, more=False)
    for task in slow:
        assert await over(task) == "decoded"
    assert kitchen.left_over == (0, 0, 0)


@pytest.mark.parametrize("length", [2 * MIB, None])
async def test_what_begins_at_once_and_then_is_slow_makes_way(length: int | None) -> None:
    kitchen, client = Decoder(usual=MIB), Client(length)
    slow = await kitchen.photograph(client)
    client.sends(BEGINNING)
    waits = await kitchen.prompt()
    assert not waits.done()
    await kitchen.trickle(client, 0.5)
    assert await over(waits) == "decoded"
    assert await over(await kitchen.prompt()) == "decoded"
    await kitchen.trickle(client, 20)  # nobody needs what it holds
    client.sends(REST, more=False)
    assert await over(slow) == "decoded"
    assert kitchen.left_over == (0, 0, 0)


@pytest.mark.parametrize("length", [MIB, None])
async def test_where_memory_is_short_what_is_slow_is_ended(length: int | None) -> None:
    """All of it is for one usual photograph and those in line: nothing lies aside."""
    kitchen, client = Decoder(usual=4 * MIB), Client(length)
    slow = await kitchen.photograph(client)
    client.sends(BEGINNING)
    await kitchen.trickle(client, 3)
    assert not slow.done()  # nobody wants what it has
    waits = await kitchen.prompt()
    await kitchen.trickle(client, GRACE_SECONDS)
    assert not waits.done()
    await kitchen.trickle(client, 0.25)
    with pytest.raises(BusyError, match="comes slowly"):
        await over(slow)
    assert await over(waits) == "decoded"
    assert kitchen.left_over == (0, 0, 0)


async def test_a_large_photograph_does_not_wait_long_for_what_lies_aside() -> None:
    kitchen, client = Decoder(usual=MIB), Client(2 * MIB)
    slow = await kitchen.photograph(client)
    await kitchen.pass_time(1.0)
    client.sends(BEGINNING)
    large = await kitchen.prompt(2 * MIB)
    small = await kitchen.prompt()
    assert not large.done()
    await kitchen.trickle(client, 2 * GRACE_SECONDS)
    with pytest.raises(BusyError, match="comes slowly"):
        await over(slow)
    assert [await over(large), await over(small)] == 2 * ["decoded"]
    assert kitchen.left_over == (0, 0, 0)


async def test_a_small_photograph_needs_no_part() -> None:
    kitchen, client = Decoder(usual=4 * MIB), Client(MIB)
    prompt = await kitchen.photograph(client)
    client.sends(BEGINNING)
    assert await over(await kitchen.prompt(FREE_BYTES)) == "decoded"
    client.sends(REST, more=False)
    assert await over(prompt) == "decoded"
