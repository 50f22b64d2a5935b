"""Photographs that come slowly: others go on beside them, or without them where memory is short."""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from pipeline.budget import request_needs
from server.errors import BusyError
from server.memory import request_memory
from server.requests.exchange import FREE_BYTES, GRACE_SECONDS, Exchange
from server.transport.limits import PROGRESS_BYTES
from tests.server.requests.test_exchange import MIB, NEVER, Client, Service, over

# What is seen of a photograph when it has to take memory, and what makes it whole.
BEGINNING, REST = FREE_BYTES + 1, 100 << 10


@pytest.fixture(autouse=True, scope="module")
def _without_a_part_for_small_ones() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(request_memory, "SMALL_BYTES", 0)
        patch.setattr(request_needs, "_KEPT_BYTES", 0)
        yield


class Decoder(Service):
    """Reads photographs that take ``pixels`` bytes beside their bodies, of a pool of four MiB."""

    async def photograph(self, client: Client, pixels: int = MIB) -> asyncio.Task[Any]:
        async def work(exchange: Exchange) -> str:
            exchange.may_be_hastened = True
            with exchange.within(NEVER):
                await exchange.beginning()
                most, declared = exchange.lease.memory.room_bytes, exchange.declared_bytes
                while not exchange.is_read:
                    await exchange.hold(declared + pixels if declared else most)
                    await exchange.part()
                await exchange.hold(exchange.received_bytes + pixels)
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


async def test_nobody_waits_for_what_is_slow_where_there_is_room_beside_it() -> None:
    kitchen, client = Decoder(), Client(MIB)
    slow = await kitchen.photograph(client)
    client.sends(BEGINNING)
    for _ in range(3):
        await kitchen.trickle(client, 5)
        assert await over(await kitchen.prompt()) == "decoded"
    client.sends(REST, more=False)
    assert await over(slow) == "decoded"
    assert kitchen.memory.used_bytes == 0


@pytest.mark.parametrize("length", [3 * MIB, None])
async def test_where_memory_is_short_what_is_slow_is_ended(length: int | None) -> None:
    """It has all, and so has one of unknown length."""
    kitchen, client = Decoder(), Client(length)
    slow = await kitchen.photograph(client)
    client.sends(BEGINNING)
    await kitchen.trickle(client, 3)
    assert not slow.done()  # no other needs what it has
    waits = await kitchen.prompt()
    await kitchen.trickle(client, GRACE_SECONDS)
    assert not waits.done()
    await kitchen.trickle(client, 0.25)
    with pytest.raises(BusyError, match="comes slowly"):
        await over(slow)
    assert await over(waits) == "decoded"
    assert kitchen.memory.used_bytes == 0


async def test_of_those_that_are_slow_no_more_are_ended_than_must() -> None:
    kitchen, clients = Decoder(), [Client(MIB // 2) for _ in range(2)]
    slow = list[asyncio.Task[Any]]()

    async def trickle(seconds: float) -> None:
        for _ in range(round(4 * seconds)):
            for client, _ in zip(clients, slow, strict=False):
                client.sends(PROGRESS_BYTES)
            await kitchen.pass_time(0.25)

    for client in clients:
        slow.append(await kitchen.photograph(client))
        client.sends(BEGINNING)
        await trickle(2.0)
    waits = await kitchen.prompt(MIB)
    await trickle(1.0)
    with pytest.raises(BusyError, match="comes slowly"):
        await over(slow[0])
    assert await over(waits) == "decoded"
    assert not slow[1].done()
    clients[1].sends(REST, more=False)
    assert await over(slow[1]) == "decoded"
