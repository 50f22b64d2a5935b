"""Accepting: real sockets of this machine, a port of the kernel's choice, both event loops."""

import asyncio
import contextlib
import errno
import logging
import socket
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Self

import pytest
import uvloop
from uvicorn.server import ServerState

from server.transport.certificate import Certificate
from server.transport.connection import Connection
from server.transport.giving_way import Worth
from server.transport.limits import GRACE_SECONDS, HEADER_BYTES, WAIT_SECONDS, ConnectionLimits
from server.transport.listener import UnixListener, listen
from server.transport.newcomers import AcceptQueue, Newcomer
from server.transport.registry import Registry
from server.transport.server import Acceptor, admit_newcomers
from server.transport.sockets import Arrival, has_request
from tests.examples import over
from tests.server.support import until
from tests.server.transport.authority import NAME, issue, trusting
from tests.server.transport.wire import (
    LIMITS,
    Application,
    Wire,
    answers_at_once,
    reads_all,
    reads_nothing,
)

GET = b"GET /x HTTP/1.1\r\nhost: x\r\n\r\n"
OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"
LIMIT_SECONDS = 5.0

LOOPS: dict[str, Callable[[], asyncio.AbstractEventLoop]] = {
    "asyncio": asyncio.new_event_loop,
    "uvloop": uvloop.new_event_loop,
}


@pytest.fixture(params=LOOPS)
def run(request: pytest.FixtureRequest) -> Callable[[Coroutine[Any, Any, None]], None]:
    """Runs a coroutine on one of the event loops, within a time that nothing here takes."""

    def started(work: Coroutine[Any, Any, None]) -> None:
        with asyncio.Runner(loop_factory=LOOPS[request.param]) as runner:
            runner.run(asyncio.wait_for(work, LIMIT_SECONDS))

    return started


@dataclass
class Served:
    """What listens, and the connections it has."""

    address: tuple[str, int]
    registry: Registry
    connections: list[Connection]
    clients: list[asyncio.StreamWriter]

    async def connect(
        self, host: str = "127.0.0.1"
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Connect from ``host``; the end of the service closes it."""
        ends = await asyncio.open_connection(*self.address, local_addr=(host, 0))
        self.clients.append(ends[1])
        return ends


def running(here: Served) -> int:
    """How many connections have a request."""
    return sum(each._request is not None for each in here.connections)


@contextlib.asynccontextmanager
async def served(
    app: Application,
    limits: ConnectionLimits = LIMITS,
    listener: socket.socket | None = None,
    certificate: Certificate | None = None,
) -> AsyncIterator[Served]:
    registry, made = Registry(limits), list[Connection]()
    listener = listener or listen("127.0.0.1", 0)

    def create(arrival: Arrival) -> Connection:
        made.append(Connection(app, ServerState(), registry, arrival=arrival))
        return made[-1]

    queue = AcceptQueue(ServerState(), registry, create, certificate)
    acceptor = Acceptor(listener, partial(Newcomer, queue), registry.spare)
    acceptor.begin()
    keeping = asyncio.create_task(admit_newcomers(registry))
    clients = list[asyncio.StreamWriter]()
    try:
        yield Served(listener.getsockname(), registry, made, clients)
    finally:
        await acceptor.end()
        registry.drain()
        await until(lambda: not registry.waiting)
        keeping.cancel()
        await asyncio.gather(keeping, return_exceptions=True)
        listener.close()
        for connection in made:
            connection.abort()
        for client in clients:
            client.close()
            with contextlib.suppress(ConnectionError):
                await client.wait_closed()
        await until(lambda: not len(registry))


def test_small_answers_go_at_once(run: Callable[..., None]) -> None:
    async def work() -> None:
        async with served(answers_at_once) as here:
            reader, writer = await here.connect()
            for _ in range(2):
                writer.write(GET)
                assert await reader.readexactly(len(OK)) == OK
            sock = here.connections[0].transport.get_extra_info("socket")
            assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)

    run(work())


@pytest.mark.parametrize("reads_first", [True, False])
def test_an_answer_to_a_body_that_still_comes_is_not_lost(
    run: Callable[..., None], reads_first: bool
) -> None:
    """The client sends a MiB and only then reads, as most do."""

    async def refuses(scope: Any, receive: Any, send: Any) -> None:
        if reads_first:
            await receive()
        headers = [(b"content-length", b"2"), (b"connection", b"close")]
        await send({"type": "http.response.start", "status": 413, "headers": headers})
        await send({"type": "http.response.body", "body": b"no"})

    def client(address: tuple[str, int]) -> bytes:
        body = bytes(1 << 20)
        with socket.socket() as sock:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 16 << 10)
            sock.settimeout(LIMIT_SECONDS)
            sock.connect(address)
            sock.sendall(
                b"POST /x HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % len(body) + body
            )
            return b"".join(iter(lambda: sock.recv(1 << 16), b""))

    async def work() -> None:
        async with served(refuses) as here:
            answer = await asyncio.to_thread(client, here.address)
            assert answer.startswith(b"HTTP/1.1 413 ")
            assert answer.endswith(b"\r\n\r\nno")

    run(work())


def test_a_request_in_the_socket_keeps_its_connection(run: Callable[..., None]) -> None:
    """It has come and was not read when the time of the connection was over."""

    async def work() -> None:
        async with served(answers_at_once) as here:
            reader, writer = await here.connect()
            writer.write(GET)
            await reader.readexactly(len(OK))
            connection = here.connections[0]
            # A second more: a time and 75 seconds are rounded, and may be less than 75 apart.
            now = asyncio.get_running_loop().time() + LIMITS.idle_seconds + 1
            sock = writer.get_extra_info("socket")
            # Past the loop, which reads before it comes back here otherwise.
            raw = socket.socket(fileno=socket.dup(sock.fileno()))
            raw.send(GET)
            raw.close()
            assert connection.overdue(now)
            assert not connection.drop()
            assert not connection.give_way()
            assert await reader.readexactly(len(OK)) == OK
            assert connection.drop()
            assert await reader.read() == b""

    run(work())


def test_with_no_place_left_a_newcomer_waits_and_gets_the_place_of_an_answer(
    run: Callable[..., None],
) -> None:
    """Clients of one address that keep their connections take turns at the places, and none is refused."""
    limits = ConnectionLimits(2, None, 10.0, 75.0, 10.0)

    async def work() -> None:
        gate = asyncio.Event()

        async def app(scope: Any, receive: Any, send: Any) -> None:
            await gate.wait()
            await answers_at_once(scope, receive, send)

        async with served(app, limits) as here:
            ends = [await here.connect() for _ in range(5)]
            for _, writer in ends:
                writer.write(GET)
            await until(lambda: here.registry.waiting and running(here) == limits.total)
            gate.set()
            answers = [await reader.readuntil(b"ok") for reader, _ in ends]
            assert all(answer.startswith(b"HTTP/1.1 200 ") for answer in answers)
            # Three connections are needed for others: their answers say that they are the last.
            assert sum(b"connection: close" in answer for answer in answers) == 3
            assert len(here.registry) == limits.total

    run(work())


def test_a_request_that_comes_while_it_waits_is_read_in_order(run: Callable[..., None]) -> None:
    """Loops read a little before reading is paused, and the rest stays in the socket."""
    limits = ConnectionLimits(1, None, 10.0, 75.0, 10.0)
    body = bytes(range(256)) * 100
    request = b"POST /x HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % len(body) + body
    received: list[bytes] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        more = True
        while more:
            message = await receive()
            received.append(message["body"])
            more = message["more_body"]
        await answers_at_once(scope, receive, send)

    async def work() -> None:
        async with served(app, limits) as here:
            first, waiting = await here.connect(), await here.connect()
            await until(lambda: here.registry.waiting)
            waiting[1].write(request[:20])
            await until(lambda: len(here.registry) == 1)
            waiting[1].write(request[20:])
            await until(lambda: any(newcomer.has_request() for newcomer in here.registry.queue))
            first[1].write(GET)
            await first[0].readuntil(b"ok")
            assert (await waiting[0].readuntil(b"ok")).startswith(b"HTTP/1.1 200 ")
            assert b"".join(received) == body

    run(work())


def test_what_finds_no_place_in_time_gets_503_and_no_reset(
    run: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    limits = ConnectionLimits(9, 2, 10.0, 75.0, 10.0)
    monkeypatch.setattr("server.transport.registry.WAIT_SECONDS", WAIT_SECONDS / 25)

    async def work() -> None:
        async with served(reads_nothing, limits) as here:
            ends = [await here.connect() for _ in range(2)]
            for _, writer in ends:
                writer.write(GET)
            await until(lambda: running(here) == 2)
            reader, writer = await here.connect()
            writer.write(GET)
            _, other = await here.connect("127.0.0.2")
            other.write(GET)
            await until(lambda: len(here.registry) == 3)  # another address does not wait for it
            answer = await reader.read()
            assert answer.startswith(b"HTTP/1.1 503 ")
            assert b"\r\nretry-after: 1\r\n" in answer
            assert here.registry.refused == 1

    run(work())


@pytest.mark.parametrize("beginning", [b"GET /x HTTP/1.1\r\n", b"\r\n\r\n\r\n\r\nGET"])
def test_a_request_goes_before_partial_heads_of_the_same_address(
    run: Callable[..., None], monkeypatch: pytest.MonkeyPatch, beginning: bytes
) -> None:
    """Of those that are served, and of those that have waited for longer."""
    limits = ConnectionLimits(2, None, 10.0, 75.0, 10.0)

    async def work() -> None:
        async with served(answers_at_once, limits) as here:
            for _ in range(4):
                _, writer = await here.connect()
                writer.write(beginning)
            await until(
                lambda: (
                    len(here.registry.queue) == 2
                    and all(each.worth == Worth.UNANSWERED for each in here.connections)
                )
            )
            monkeypatch.setattr("server.transport.giving_way.GRACE_SECONDS", 0.0)
            monkeypatch.setattr("server.transport.giving_way.FRESH_SECONDS", 0.0)
            reader, writer = await here.connect()
            writer.write(GET)
            assert (await reader.readuntil(b"ok")).startswith(b"HTTP/1.1 200 ")

    run(work())


async def test_cancellation_is_not_lost_when_a_change_comes_at_the_same_time() -> None:
    for delay in range(5):
        registry = Registry(LIMITS)
        keeping = asyncio.create_task(admit_newcomers(registry))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        registry.changed.set()
        for _ in range(delay):
            await asyncio.sleep(0)
        keeping.cancel()
        await asyncio.wait({keeping}, timeout=LIMIT_SECONDS)
        assert keeping.cancelled()


@over(
    "sent, counts",
    [
        (b"", False),
        (b"GET / HTTP/1.1\r\nhost: x\r\n", False),
        (b"\r\n\r\nGET / HTTP/1.1\r\n", False),
        (GET, True),
        (b"\r\n" + GET + b"more", True),
        (b"x" * HEADER_BYTES, True),  # it is refused at once
        (b"\x16\x03\x01\x00\x04abc", False),
        (b"\x16\x03\x01\x00\x04abcd", True),
        (b"\x16\x03", False),
    ],
)
def test_what_counts_as_a_request_that_was_not_read(sent: bytes, counts: bool) -> None:
    here, there = socket.socketpair()
    with here, there:
        there.sendall(sent)
        assert has_request(here) == counts
        if sent:
            assert here.recv(len(sent)) == sent


def test_at_the_end_of_the_server_newcomers_are_refused(run: Callable[..., None]) -> None:
    limits = ConnectionLimits(1, None, 10.0, 75.0, 10.0)

    async def work() -> None:
        async with served(reads_nothing, limits) as here:
            _, first = await here.connect()
            first.write(GET)
            await until(lambda: running(here) == 1)
            reader, writer = await here.connect()
            writer.write(GET)
            await until(lambda: here.registry.waiting)
            here.registry.drain()
            answer = await reader.read()
            assert answer.startswith(b"HTTP/1.1 503 ")
            assert b"stopping" in answer

    run(work())


# Encrypted, and through the file system


def test_with_tls(run: Callable[..., None], tmp_path: Path) -> None:
    """A body of a MiB, an answer to it, and an end that says so; beside it a client without a handshake."""
    certificate = Certificate(*issue(tmp_path))

    def client(address: tuple[str, int]) -> bytes:
        context = trusting()
        raw = socket.create_connection(address, LIMIT_SECONDS)
        with context.wrap_socket(raw, server_hostname=NAME, suppress_ragged_eofs=False) as sock:
            sock.sendall(b"POST /x HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n" % (1 << 20))
            sock.sendall(b"connection: close\r\n\r\n" + bytes(1 << 20))
            return b"".join(iter(lambda: sock.recv(1 << 16), b""))

    async def work() -> None:
        async with served(reads_all, certificate=certificate) as here:
            _, silent = await here.connect()
            silent.write(b"\x16")
            answer = await asyncio.to_thread(client, here.address)
            assert answer.endswith(b"\r\n\r\n%d" % (1 << 20))
            await until(lambda: len(here.registry) == 1)  # the silent one counts

    run(work())


def test_a_tls_handshake_waits_in_the_queue_too(run: Callable[..., None], tmp_path: Path) -> None:
    certificate = Certificate(*issue(tmp_path))

    def client(address: tuple[str, int]) -> bytes:
        raw = socket.create_connection(address, LIMIT_SECONDS)
        with trusting().wrap_socket(raw, server_hostname=NAME) as sock:
            sock.sendall(GET)
            return sock.recv(1 << 16)

    async def work() -> None:
        limits = ConnectionLimits(1, None, 10.0, 75.0, 10.0)
        async with served(answers_at_once, limits, certificate=certificate) as here:
            _, first = await here.connect()
            await until(lambda: len(here.registry) == 1)
            second = asyncio.create_task(asyncio.to_thread(client, here.address))
            await until(lambda: any(newcomer.has_request() for newcomer in here.registry.queue))
            first.close()
            assert (await second).startswith(b"HTTP/1.1 200 ")

    run(work())


def test_through_a_unix_socket(run: Callable[..., None], tmp_path: Path) -> None:
    path = tmp_path / "socket"
    seen: list[Any] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        seen.append((scope["client"], scope["server"]))
        await answers_at_once(scope, receive, send)

    async def work() -> None:
        async with served(app, listener=UnixListener(path, 0o600)):
            for _ in range(2):
                reader, writer = await asyncio.open_unix_connection(path)
                for _ in range(2):
                    writer.write(GET)
                    assert await reader.readexactly(len(OK)) == OK
                writer.close()
                await writer.wait_closed()
        assert not path.exists()

    run(work())
    assert set(seen) == {(None, (str(path), None))}


# Without descriptors


class Refusing(socket.socket):
    """Listens, and a client knocks; accept fails as the kernel makes it fail."""

    def __init__(self, errors: list[OSError]) -> None:
        super().__init__()
        self._errors: Iterator[OSError] = iter(errors)
        self._client = socket.socket()
        self.over = asyncio.Event()

    def __enter__(self) -> Self:
        self.bind(("127.0.0.1", 0))
        self.listen()
        self._client.connect(self.getsockname())
        return self

    def __exit__(self, *exc: object) -> None:
        self._client.close()
        self.close()

    def accept(self) -> tuple[socket.socket, Any]:
        for error in self._errors:
            raise error
        self.over.set()
        raise BlockingIOError


def nothing(sock: socket.socket) -> asyncio.Protocol:
    return asyncio.Protocol()


async def test_without_descriptors_it_says_so_once_and_waits(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    refusing = Refusing([OSError(errno.EMFILE, "Too many open files")] * 100)
    monkeypatch.setattr("server.transport.server._RETRY_SECONDS", 0.0)
    silent = Wire(answers_at_once)
    silent.passed = GRACE_SECONDS
    with refusing as listener, caplog.at_level(logging.WARNING):
        acceptor = Acceptor(listener, nothing, silent.registry.spare)
        acceptor.begin()
        await refusing.over.wait()
        await acceptor.end()
    (message,) = caplog.messages
    assert message.startswith("cannot accept connections: Too many open files; ")
    assert "LimitNOFILE" in message
    assert silent.transport.is_closed  # a silent client gives its descriptor back


def close_soon(_: asyncio.Protocol, transport: asyncio.BaseTransport) -> None:
    transport.close()


closes: type[asyncio.Protocol] = type(
    "Closes", (asyncio.Protocol,), {"connection_made": close_soon}
)


@over("turns", range(6))
async def test_who_comes_while_the_server_ends_is_accepted_or_left_in_the_backlog(
    turns: int,
) -> None:
    """With systemd's socket the next server takes those that were left."""
    taken: list[socket.socket] = []

    def takes(sock: socket.socket) -> asyncio.Protocol:
        taken.append(sock)
        return closes()

    with listen("127.0.0.1", 0) as listener:
        acceptor = Acceptor(listener, takes, Registry(LIMITS).spare)
        acceptor.begin()
        with socket.create_connection(listener.getsockname()):
            for _ in range(turns):
                await asyncio.sleep(0)
            await acceptor.end()
            if not taken:
                listener.accept()[0].close()
    await asyncio.sleep(0.01)  # what was taken is closed
    assert len(taken) <= 1


async def test_who_left_before_his_turn_is_no_fault(
    caplog: pytest.LogCaptureFixture,
) -> None:
    refusing = Refusing([ConnectionAbortedError()] * 3)
    with refusing as listener, caplog.at_level(logging.WARNING):
        acceptor = Acceptor(listener, nothing, Registry(LIMITS).spare)
        acceptor.begin()
        await refusing.over.wait()
        await acceptor.end()
    assert caplog.records == []
