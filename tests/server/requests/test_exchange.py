"""Requests that stall, wait and are ended, with clients that a test plays and a clock that it moves."""

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import closing
from typing import Any

import pytest

from pipeline.budget import request_needs
from pipeline.execution.errors import DeadlineError
from server.errors import BusyError, DisconnectedError, LateError, StalledError, TooLargeError
from server.memory import request_memory
from server.memory.request_memory import Lease, RequestMemory
from server.requests.exchange import FREE_BYTES, GRACE_SECONDS, Exchange, Exchanges
from server.transport.limits import PROGRESS_BYTES
from tests.server.support import settled

MIB = 1 << 20
STALL_SECONDS = 10.0
NEVER = 1000.0


class Clock:
    """The time of the running loop: it stands still until it is moved."""

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        self.now = loop.time()
        loop.time = lambda: self.now  # type: ignore[method-assign]


class Client:
    """The other end of one request: what it sends comes at once, what it gets it takes or not.

    ``length``: of the body, as its header says; None: it has none.
    """

    owner, arrived_at = "", None
    expected = None
    wants_body = takes_chunks = True

    def __init__(self, length: int | None = None) -> None:
        self.declared_bytes = length or 0
        self.is_complete = self.aborted = False
        self.takes = asyncio.Event()
        self.takes.set()
        self._parts: asyncio.Queue[tuple[bytes, bool] | None] = asyncio.Queue()

    def sends(self, size: int, more: bool = True) -> None:
        self._parts.put_nowait((bytes(size), more))

    def leaves(self) -> None:
        self._parts.put_nowait(None)

    # What an exchange asks

    def connection_bytes(self) -> int | None:
        return None

    async def part(self, reads_ahead: bool = False) -> bytes:
        part = await self._parts.get()
        if part is None:
            raise DisconnectedError
        self.is_complete = not part[1]
        return part[0]

    def on_leave(self, leaves: Callable[[], None] | None) -> None:
        pass

    def start(self, status: int, headers: Sequence[tuple[bytes, bytes]]) -> None:
        raise AssertionError

    async def send(self, data: bytes, more: bool = False) -> None:
        await self.takes.wait()

    def abort(self) -> None:
        self.aborted = True


Work = Callable[[Exchange], Awaitable[Any]]


class Service:
    """Exchanges of a pool of four MiB."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.memory = RequestMemory(4 * MIB)
        self.exchanges = Exchanges(self.memory, 64 * MIB, STALL_SECONDS)

    async def begin(self, client: Client, work: Work) -> asyncio.Task[Any]:
        """Serve a request of ``client`` that is ``work``, until it waits for something."""

        async def serve() -> Any:
            with self.exchanges.exchange(client) as exchange:
                return await work(exchange)

        task = asyncio.create_task(serve())
        await settled()
        return task

    async def pass_time(self, seconds: float, hurry: bool = False) -> None:
        self.clock.now += seconds
        self.exchanges.sweep(self.clock.now, hurry)
        await settled()


@pytest.fixture
async def service() -> Service:
    return Service()


async def over(task: asyncio.Task[Any]) -> Any:
    """What came of ``task``, which waits for nothing any more."""
    await settled()
    assert task.done(), "it still waits"
    return task.result()


async def read_all(exchange: Exchange) -> str:
    """Take the body as one that is kept."""
    with exchange.within(NEVER):
        await exchange.beginning()
        while not exchange.is_read:
            await exchange.hold(max(exchange.declared_bytes, exchange.received_bytes))
            await exchange.part()
    return "read"


def holding(*sizes: int) -> Work:
    """Hold so many bytes, one after the other, each until a part of the body comes."""

    async def work(exchange: Exchange) -> str:
        with exchange.within(NEVER):
            for size in sizes:
                await exchange.hold(size)
                await exchange.part()
        return "held"

    return work


@pytest.fixture(autouse=True, scope="module")
def _without_a_part_for_small_ones() -> Iterator[None]:
    """Numbers here are small: without this all of them would pass."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(request_memory, "SMALL_BYTES", 0)
        patch.setattr(request_needs, "_KEPT_BYTES", 0)
        yield


@pytest.mark.parametrize("received", [0, 1, FREE_BYTES + 1])
async def test_silence_ends_a_request_after_the_limit(service: Service, received: int) -> None:
    client = Client()
    task = await service.begin(client, read_all)
    if received:
        client.sends(received)
        await settled()
    await service.pass_time(STALL_SECONDS - 0.1)
    assert not task.done()
    await service.pass_time(0.1)
    with pytest.raises(StalledError, match="10 s"):
        await over(task)
    assert (service.memory.used_bytes, len(service.exchanges)) == (0, 0)
    assert service.exchanges.stalled == 1


async def test_silence_ends_a_request_after_a_second_where_others_wait(service: Service) -> None:
    tasks = [await service.begin(Client(), read_all) for _ in range(2)]
    await service.pass_time(GRACE_SECONDS - 0.1, hurry=True)
    assert not any(task.done() for task in tasks)
    await service.pass_time(0.1, hurry=True)
    for task in tasks:
        with pytest.raises(StalledError):
            await over(task)


async def test_silence_ends_a_request_after_a_second_where_memory_is_short(
    service: Service,
) -> None:
    silent = await service.begin(Client(), holding(3 * MIB))
    waits = await service.begin(Client(), holding(2 * MIB))
    assert service.memory.waiting == 1
    await service.pass_time(GRACE_SECONDS)
    with pytest.raises(StalledError):
        await over(silent)
    await service.pass_time(GRACE_SECONDS)
    assert not waits.done()  # it has memory now, its client had no time yet, and no other waits
    waits.cancel()


@pytest.mark.parametrize("received", [0, FREE_BYTES + 1])
async def test_few_bytes_often_are_silence(service: Service, received: int) -> None:
    """Also where all of the body is held, and nothing more is taken for them."""
    client = Client(MIB)
    task = await service.begin(client, read_all)
    if received:
        client.sends(received)
        await settled()
    for _ in range(int(STALL_SECONDS)):
        assert not task.done()
        client.sends(PROGRESS_BYTES // 20)
        await service.pass_time(1.0)
    with pytest.raises(StalledError):
        await over(task)


async def test_a_slow_client_that_makes_progress_is_let_go_on(service: Service) -> None:
    client = Client()
    task = await service.begin(client, read_all)
    for _ in range(10):
        client.sends(PROGRESS_BYTES)
        await service.pass_time(STALL_SECONDS - 1)
    client.sends(0, more=False)
    assert await over(task) == "read"


class UndividedBodies(Client):
    """As over gRPC: a body comes as one part; that it moves shows its connection, or nothing (None)."""

    count: int | None = 1000

    def connection_bytes(self) -> int | None:
        return self.count


async def test_a_body_that_comes_as_one_part_goes_on_while_its_connection_moves(
    service: Service,
) -> None:
    client = UndividedBodies()
    task = await service.begin(client, holding(MIB))
    for _ in range(40):  # 4 KiB in half a second
        client.count = (client.count or 0) + 2048
        await service.pass_time(0.25, hurry=True)
    assert not task.done()
    for _ in range(3):  # it stops
        await service.pass_time(0.25, hurry=True)
    with pytest.raises(StalledError):
        await over(task)
    assert service.memory.used_bytes == 0


@pytest.mark.parametrize("step", [0, 100, None])
async def test_a_body_that_comes_as_one_part_stalls_with_its_connection(
    service: Service, step: int | None
) -> None:
    client = UndividedBodies()
    client.count = None if step is None else 1000
    task = await service.begin(client, holding(MIB))
    for _ in range(2):
        await service.pass_time(0.25, hurry=True)
        if step is not None:
            client.count = (client.count or 0) + step
    with pytest.raises(StalledError):
        await over(task)


async def test_waiting_for_others_is_not_the_fault_of_a_client(service: Service) -> None:
    """For memory, for what is computed, for a client that may leave."""

    async def compute(exchange: Exchange) -> None:
        with exchange.within(NEVER):
            await asyncio.Event().wait()

    async def watch(exchange: Exchange) -> None:
        await exchange.part()
        assert exchange.is_read
        with exchange.until_left():
            await asyncio.Event().wait()

    watched = Client()
    watched.sends(1, more=False)
    await service.memory.take(4 * MIB)  # by a request that computes
    waiters = {
        "memory": await service.begin(Client(), holding(MIB)),
        "an answer": await service.begin(Client(), compute),
        "the client to leave": await service.begin(watched, watch),
    }
    await service.pass_time(10 * STALL_SECONDS, hurry=True)
    assert [name for name, task in waiters.items() if task.done()] == []
    for task in waiters.values():
        task.cancel()


async def growing(
    service: Service, *sizes: tuple[int, int]
) -> tuple[list[Client], list[asyncio.Task[Any]]]:
    """Clients and their requests, which hold the first of two sizes each and now need the second."""
    clients, tasks = [Client() for _ in sizes], []
    for client, both in zip(clients, sizes, strict=True):
        tasks.append(await service.begin(client, holding(*both)))
        service.clock.now += 0.001
    for client in clients:
        client.sends(1)
    await settled()
    return clients, tasks


async def test_of_those_that_hold_memory_one_waits_for_more(service: Service) -> None:
    """What it waits for is held by others that wait for none: two would wait for each other."""
    clients, tasks = await growing(service, (MIB, 4 * MIB), (2 * MIB, 3 * MIB), (MIB, MIB))
    first, second, third = tasks
    with pytest.raises(BusyError, match="request_memory"):
        await over(second)
    assert not first.done()
    clients[2].sends(1)
    assert await over(third) == "held"
    await settled()
    assert service.memory.used_bytes == 4 * MIB
    first.cancel()


@pytest.mark.parametrize("seed", range(20))
async def test_whatever_they_want_nobody_waits_for_ever(service: Service, seed: int) -> None:
    """Each holds something, then more or less, in parts that come when they come; none is ended."""
    draw = random.Random(seed)
    tasks, clients = list[asyncio.Task[Any]](), list[Client]()
    for _ in range(12):
        sizes = [draw.randrange(4 * MIB + 1) for _ in range(draw.randrange(1, 4))]
        client = Client()
        clients.append(client)
        tasks.append(await service.begin(client, holding(*sizes)))
    for _ in range(100):
        assert service.memory.used_bytes <= service.memory.room_bytes
        for client in clients:
            client.sends(1)
        await settled()
    assert all(task.done() for task in tasks)
    errors = [task.exception() for task in tasks]
    assert None in errors
    assert all(error is None or isinstance(error, BusyError) for error in errors)
    assert service.memory.used_bytes == 0


async def test_who_is_ended_while_an_answer_goes_is_cut_off(service: Service) -> None:
    client = Client()
    client.takes.clear()

    async def answer(exchange: Exchange) -> None:
        await exchange.hold(MIB)
        await exchange.send(b"")

    task = await service.begin(client, answer)
    await service.pass_time(STALL_SECONDS - 0.1)
    assert not task.done()
    await service.pass_time(0.1)
    assert client.aborted
    client.takes.set()  # what the transport does with tasks that wait to write, once the connection is lost
    await over(task)
    assert service.memory.used_bytes == 0


async def test_who_was_to_be_ended_and_went_on_can_be_ended_later(service: Service) -> None:
    """The body comes in the turn of the loop in which the request is ended."""
    client = Client()

    async def work(exchange: Exchange) -> None:
        await read_all(exchange)
        await exchange.send(b"")

    task = await service.begin(client, work)
    client.takes.clear()
    client.sends(1, more=False)
    await service.pass_time(STALL_SECONDS)
    assert not task.done()
    await service.pass_time(STALL_SECONDS)
    assert client.aborted
    client.takes.set()
    await over(task)


@pytest.mark.parametrize("n_bytes", [0, 2 * MIB], ids=["reads", "waits for memory"])
@pytest.mark.parametrize("is_armed", [False, True])
async def test_a_limit_can_be_shortened(service: Service, n_bytes: int, is_armed: bool) -> None:
    async def work(exchange: Exchange) -> None:
        with exchange.within(NEVER) as limit:
            if is_armed:
                await exchange.part()
            limit.shorten(2.0, LateError("its time has passed"))
            limit.shorten(3.0, LateError("not shorter"))
            await exchange.hold(n_bytes)
            await exchange.part()

    await service.memory.take(3 * MIB)
    client = Client()
    task = await service.begin(client, work)
    client.sends(10)
    if not is_armed and not n_bytes:
        client.sends(0)
        await settled()
        assert task.done()
        return
    await settled()
    service.clock.now += 1.5
    await settled()
    assert not task.done()
    service.clock.now += 0.5
    with pytest.raises(LateError, match="its time has passed"):
        await over(task)
    assert service.memory.used_bytes == 3 * MIB


async def test_a_deadline_while_reading_and_while_waiting_for_memory(service: Service) -> None:
    def within(seconds: float, n_bytes: int) -> Work:
        async def work(exchange: Exchange) -> None:
            with exchange.within(seconds):
                await exchange.hold(n_bytes)
                await exchange.part()

        return work

    await service.memory.take(3 * MIB)
    tasks = [await service.begin(Client(), within(2.0, size)) for size in (0, 2 * MIB)]
    service.clock.now += 1.5
    await settled()
    assert not any(task.done() for task in tasks)
    service.clock.now += 0.5
    reads, waits = tasks
    with pytest.raises(DeadlineError, match="not read within 2 s"):
        await over(reads)
    with pytest.raises(BusyError, match="no memory for the request within 2 s"):
        await over(waits)
    assert service.memory.used_bytes == 3 * MIB


async def test_a_body_that_is_there_sets_no_timer(service: Service) -> None:
    client = Client()
    client.is_complete = True
    client.sends(100, more=False)
    loop = asyncio.get_running_loop()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop, "call_at", lambda *_, **__: pytest.fail("a timer"))
        task = await service.begin(client, read_all)
        assert await over(task) == "read"


@pytest.mark.parametrize("part", [1, 1000, FREE_BYTES, FREE_BYTES + 1])
async def test_a_body_that_is_kept_is_paid_for(service: Service, part: int) -> None:
    client = Client()
    task = await service.begin(client, read_all)
    received = 0
    while received < 3 * FREE_BYTES:
        client.sends(part)
        received += part
        if received % (64 * part) == 0 or part > 1000:
            await settled()
            assert service.memory.used_bytes == (received if received > FREE_BYTES else 0)
    client.sends(0, more=False)
    await over(task)
    assert service.memory.used_bytes == 0


async def test_a_body_over_the_pool_and_one_over_the_limit(service: Service) -> None:
    for size, word in ((5 * MIB, "request_memory"), (65 * MIB, "limit of")):
        client = Client()
        client.sends(size)
        with pytest.raises(TooLargeError, match=word):
            await over(await service.begin(client, read_all))
        assert service.memory.used_bytes == 0


async def test_a_beginning_takes_no_memory(service: Service) -> None:
    async def work(exchange: Exchange) -> list[int]:
        with exchange.within(NEVER):
            return [len(await exchange.beginning()), len(await exchange.part())]

    client = Client()
    task = await service.begin(client, work)
    client.sends(FREE_BYTES)
    await settled()
    assert not task.done()
    client.sends(1)
    client.sends(5, more=False)
    assert await over(task) == [FREE_BYTES + 1, 5]


async def test_a_client_that_leaves(service: Service) -> None:
    async def work(exchange: Exchange) -> None:
        with exchange.within(NEVER):
            await exchange.part()

    client = Client()
    task = await service.begin(client, work)
    client.leaves()
    with pytest.raises(DisconnectedError):
        await over(task)


async def everything(exchange: Exchange) -> None:
    """All that a request may wait for."""
    with exchange.within(NEVER):
        await exchange.beginning()
        await exchange.hold(3 * MIB)
        for _ in range(2):
            await exchange.part()
        await exchange.hold(MIB)
    with exchange.within(NEVER):
        await exchange.hold(2 * MIB)
    for _ in range(3):
        await exchange.send(b"")


@pytest.mark.parametrize("who", ["alone", "beside another"])
def test_cancelled_anywhere_it_gives_everything_back(who: str) -> None:
    async def run(turns: int) -> bool:
        service = Service()
        clients = [Client() for _ in range(1 if who == "alone" else 2)]
        tasks = [await service.begin(each, everything) for each in clients]
        for turn in range(turns):
            for client in clients:
                if turn % 4 == 0:
                    client.sends(MIB // 2)
            await asyncio.sleep(0)
        is_over = tasks[0].done()
        for task in tasks:
            task.cancel()
        errors = await asyncio.gather(*tasks, return_exceptions=True)
        assert all(each is None or isinstance(each, asyncio.CancelledError) for each in errors)
        assert (service.memory.used_bytes, service.memory.waiting) == (0, 0)
        assert len(service.exchanges) == 0
        return is_over

    turns = 0
    while not asyncio.run(run(turns)):
        turns += 1
        assert turns < 100
    assert turns > 5


async def test_a_lease_that_is_not_there_gives_nothing_back() -> None:
    memory = RequestMemory(MIB)
    with closing(Lease(memory)):
        pass
    assert memory.used_bytes == 0


async def test_the_rest_of_a_body_comes_at_its_pace(service: Service) -> None:
    client, rests, slow = Client(100_000), list[float](), list[bool]()

    async def work(exchange: Exchange) -> None:
        while not exchange.is_read:
            await exchange.part()
            rests.append(exchange.rest_seconds)
            slow.append(exchange.is_slow)

    client.sends(20_000)
    task = await service.begin(client, work)
    for size, seconds in ((20_000, 2.0), (10_000, 3.0), (50_000, 1.0)):
        await service.pass_time(seconds)
        client.sends(size, more=size < 50_000)
        await settled()
    await task
    assert rests == pytest.approx([0.0, 3.0, 5.0, 0.0])
    assert slow == [False, True, True, False]


async def test_a_body_whose_length_is_unknown_has_no_rest(service: Service) -> None:
    client = Client()

    async def work(exchange: Exchange) -> float:
        await exchange.part()
        return exchange.rest_seconds

    task = await service.begin(client, work)
    await service.pass_time(3.0)
    client.sends(20_000)
    assert await over(task) == 0.0
