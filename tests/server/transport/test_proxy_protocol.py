"""The PROXY protocol: headers as bytes, and connections that begin with one."""

import asyncio
import contextlib
import logging
import socket
from collections.abc import Callable, Iterator
from dataclasses import replace
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import pytest
import uvicorn
import uvloop
from hypothesis import given
from hypothesis import strategies as st
from starlette.types import Receive, Scope, Send
from uvicorn.server import ServerState

from server.transport.certificate import Certificate
from server.transport.connection import Connection
from server.transport.giving_way import Peer
from server.transport.limits import ConnectionLimits
from server.transport.listener import listen
from server.transport.newcomers import AcceptQueue, Newcomer
from server.transport.proxies import TrustedProxies
from server.transport.proxy_protocol import (
    HEADER_BYTES,
    ProxyHeader,
    ProxyHeaderError,
    missing_bytes,
    read_header,
)
from server.transport.registry import Registry
from server.transport.server import Server
from server.transport.sockets import Arrival
from tests.examples import examples, over
from tests.server.transport.authority import NAME, issue, trusting
from tests.server.transport.wire import LIMITS, Application, FakeTransport, answers_at_once

SIGNATURE = b"\r\n\r\n\0\r\nQUIT\n"
GET = b"GET /x HTTP/1.1\r\nhost: x\r\n\r\n"
OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"
PROXIES = replace(LIMITS, proxies=TrustedProxies.named(["127.0.0.1", "10.0.0.1"]), announced=True)
PROXY = Peer("127.0.0.1", is_proxy=True)
CLIENT = b"PROXY TCP4 203.0.113.5 10.0.0.1 4711 8080\r\n"

PORTS = st.integers(0, 0xFFFF)
V4, V6 = st.ip_addresses(v=4), st.ip_addresses(v=6)


def version_2(command: int, family: int, ends: bytes, more: bytes = b"") -> bytes:
    length = (len(ends) + len(more)).to_bytes(2, "big")
    return SIGNATURE + bytes([command, family]) + length + ends + more


@st.composite
def headers(draw: st.DrawFn) -> tuple[bytes, tuple[str, int] | None]:
    """A header, and the client that it names."""
    version = draw(st.sampled_from([4, 6]))
    source, target = (draw(V4 if version == 4 else V6) for _ in range(2))
    port, own = draw(PORTS), draw(PORTS)
    mapped = getattr(source, "ipv4_mapped", None)
    client = (str(mapped or source), port)
    more = draw(st.binary(max_size=300))
    both = port.to_bytes(2, "big") + own.to_bytes(2, "big")
    line = b"PROXY TCP%d %b %b %d %d\r\n"
    shown = [str(each).encode() for each in (source, target)]
    found: tuple[bytes, tuple[str, int] | None] = draw(
        st.sampled_from(
            [
                (line % (version, *shown, port, own), client),
                (b"PROXY UNKNOWN\r\n", None),
                (b"PROXY UNKNOWN ffff:f...f:ffff 65535\r\n", None),
                (
                    version_2(
                        0x21,
                        0x11 if version == 4 else 0x21,
                        source.packed + target.packed + both,
                        more,
                    ),
                    client,
                ),
                (version_2(0x20, 0x00, b"", more), None),
                (version_2(0x20, 0x99, b"", more), None),
                (version_2(0x21, 0x00, b"", more), None),
                (version_2(0x21, 0x31, b"/" + bytes(215), more), None),
            ]
        )
    )
    return found


@given(headers(), st.binary(max_size=50), st.data())
@examples(few=50, many=5000)
def test_a_header_says_the_same_whatever_is_behind_it_and_nothing_before_its_end(
    header: tuple[bytes, tuple[str, int] | None], behind: bytes, data: st.DataObject
) -> None:
    text, client = header
    assert read_header(text + behind) == ProxyHeader(len(text), client)
    assert read_header(text[: data.draw(st.integers(0, len(text) - 1))]) is None


def judged(text: bytes) -> tuple[ProxyHeader | None, str]:
    """The header, if it is whole, and what is wrong with it."""
    try:
        return read_header(text), ""
    except ProxyHeaderError as exc:
        return None, str(exc)


@given(st.one_of(st.binary(max_size=200), headers().map(lambda each: each[0])), st.data())
@examples(few=50, many=5000)
def test_whatever_comes_it_is_a_header_or_a_clear_line_soon(
    text: bytes, data: st.DataObject
) -> None:
    """No more than the limit is ever waited for, and what was refused stays refused."""
    at = data.draw(st.integers(0, len(text)))
    text = text[:at] + data.draw(st.binary(max_size=4)) + text[at:]
    found, why = judged(text)
    later, later_why = judged(text + bytes(HEADER_BYTES))
    assert later is not None or 0 < len(later_why) <= 100
    if found is not None:
        assert found == later
        assert found.size <= min(len(text), HEADER_BYTES)
        assert found.client is None or str(ip_address(found.client[0])) == found.client[0]
    elif why:
        assert why == later_why


LIES = [
    (GET, "wanted"),
    (b"\x16\x03\x01\x02\x00", "wanted"),
    (b"PROXY TCP4 203.0.113.5 10.0.0.1 4711 8080\n", "not PROXY TCP4"),
    (b"PROXY TCP4 203.0.113.5 10.0.0.1 4711\r\n", "not PROXY TCP4"),
    (b"PROXY UDP4 203.0.113.5 10.0.0.1 1 2\r\n", "not PROXY TCP4"),
    (b"PROXY TCP4 2001:db8::1 10.0.0.1 1 2\r\n", "an address"),
    (b"PROXY TCP4 203.0.113.256 10.0.0.1 1 2\r\n", "an address"),
    (b"PROXY TCP6 fe80::1%eth0 ::1 1 2\r\n", "an address"),
    (b"PROXY TCP4 203.0.113.5 10.0.0.1 65536 2\r\n", "a port"),
    (b"PROXY TCP4 203.0.113.5 10.0.0.1 01 2\r\n", "a port"),
    (b"PROXY UNKNOWN " + b"x" * 100, "no end within 107 bytes"),
    (version_2(0x11, 0x11, bytes(12)), "another version"),
    (version_2(0x22, 0x11, bytes(12)), "PROXY or LOCAL"),
    (version_2(0x21, 0x12, bytes(12)), "no TCP connection"),
    (version_2(0x21, 0x21, bytes(12)), "too short"),
    (version_2(0x21, 0x11, bytes(12), bytes(HEADER_BYTES)), "over the limit"),
]


@over("text, said", LIES)
def test_what_is_no_header_is_said_as_soon_as_it_is_seen(text: bytes, said: str) -> None:
    with pytest.raises(ProxyHeaderError, match=said):
        read_header(text)


@given(headers())
@examples(few=50, many=5000)
def test_what_is_read_of_a_header_ends_with_it(
    header: tuple[bytes, tuple[str, int] | None],
) -> None:
    """Wherever reads fall; what is behind it stays in the socket."""
    text, client = header
    begun = b""
    while (result := read_header(begun)) is None:
        begun = text[: len(begun) + missing_bytes(begun)]
    assert result == ProxyHeader(len(text), client)
    assert begun == text


class SwitchedTransport(FakeTransport):
    """A transport whose protocol may change, with the address of a proxy at its other end."""

    protocol: asyncio.BaseProtocol | None = None

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self.protocol = protocol


class Proxy:
    """A proxy's connection, from its first byte on."""

    def __init__(self, queue: AcceptQueue, sock: socket.socket) -> None:
        self.newcomer, self.transport = Newcomer(queue, sock), SwitchedTransport()
        self.newcomer.connection_made(self.transport)

    def says(self, data: bytes) -> bytes:
        """Have ``data`` read; return what is not, since it stands behind the header."""
        while data and self.transport.protocol is None:
            buffer = self.newcomer.get_buffer(-1)
            count = min(len(buffer), len(data))
            buffer[:count] = data[:count]
            self.newcomer.buffer_updated(count)
            data = data[count:]
        return data

    @property
    def client(self) -> tuple[Peer, Any]:
        """Whose connection it has become."""
        connection = self.transport.protocol
        assert isinstance(connection, Connection)
        return connection.peer, connection._client

    @property
    def answer(self) -> bytes:
        return b"".join(self.transport.writes)


@pytest.fixture
async def queue() -> AcceptQueue:
    return queue_of(PROXIES)


def queue_of(limits: ConnectionLimits) -> AcceptQueue:
    state, registry = ServerState(), Registry(limits)

    def create(arrival: Arrival) -> Connection:
        return Connection(answers_at_once, state, registry, arrival=arrival)

    return AcceptQueue(state, registry, create)


@pytest.fixture
def sock() -> Iterator[socket.socket]:
    with socket.socket() as sock:
        yield sock


@over("cut", range(len(CLIENT)))
async def test_it_comes_as_the_client_wherever_reads_fall_and_the_rest_is_left(
    sock: socket.socket, cut: int
) -> None:
    queue = queue_of(PROXIES)
    proxy = Proxy(queue, sock)
    assert proxy.says(CLIENT[:cut]) == b""
    assert proxy.says(CLIENT[cut:] + GET) == GET
    assert proxy.client == (Peer("203.0.113.5"), ("203.0.113.5", 4711))
    assert len(queue.registry) == 1


@over(
    "header",
    [
        b"PROXY UNKNOWN\r\n",
        version_2(0x20, 0x00, b""),
        b"PROXY TCP4 127.0.0.1 127.0.0.1 1 2\r\n",
        b"PROXY TCP6 ::ffff:127.0.0.1 ::1 1 2\r\n",
    ],
)
async def test_who_is_not_named_is_the_proxys_and_nobody_of_this_machine(
    queue: AcceptQueue, sock: socket.socket, header: bytes
) -> None:
    proxy = Proxy(queue, sock)
    proxy.says(header)
    assert proxy.client == (PROXY, ("", 0))


async def test_a_client_that_is_a_proxy_itself_is_one(
    queue: AcceptQueue, sock: socket.socket
) -> None:
    proxy = Proxy(queue, sock)
    proxy.says(CLIENT.replace(b"203.0.113.5", b"10.0.0.1"))
    assert proxy.client[0] == Peer("10.0.0.1", is_proxy=True)


async def test_without_a_free_slot_it_waits_with_others_of_its_client(
    sock: socket.socket,
) -> None:
    queue = queue_of(replace(PROXIES, total=1))
    first, second = Proxy(queue, sock), Proxy(queue, sock)
    first.says(CLIENT)
    second.says(CLIENT)
    assert [*queue.registry.queue.peers] == [Peer("203.0.113.5")]
    assert second.transport.is_reading_paused
    connection = first.transport.protocol
    assert isinstance(connection, Connection)
    connection.connection_lost(None)
    queue.registry.check(asyncio.get_running_loop().time())
    assert second.client[0] == Peer("203.0.113.5")
    assert not second.transport.is_reading_paused


async def test_what_is_no_header_has_an_answer_and_the_log_one_line(
    queue: AcceptQueue, sock: socket.socket, caplog: pytest.LogCaptureFixture
) -> None:
    proxies = [Proxy(queue, sock) for _ in range(2)]
    with caplog.at_level(logging.WARNING):
        for proxy in proxies:
            proxy.says(GET)
    head, _, body = proxies[0].answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 400 ")
    assert b"a PROXY header is wanted here first (setting proxy_protocol)" in body
    assert proxies[0].transport.has_eof
    assert not proxies[0].transport.is_closing()  # no reset takes the answer away
    assert len(queue.registry) == 0
    assert [each.getMessage() for each in caplog.records] == [
        "from the proxy 127.0.0.1: a PROXY header is wanted here first (setting proxy_protocol)"
    ]
    for proxy in proxies:
        proxy.newcomer.connection_lost(None)


async def test_a_header_that_comes_slowly_has_the_time_of_a_requests(sock: socket.socket) -> None:
    proxy = Proxy(queue_of(replace(PROXIES, header_seconds=0.01)), sock)
    proxy.says(CLIENT[:-1])
    await asyncio.sleep(0.05)
    assert proxy.answer.startswith(b"HTTP/1.1 408 ")
    assert b"the PROXY header did not come in time" in proxy.answer
    proxy.newcomer.connection_lost(None)


async def test_as_many_may_come_slowly_as_may_wait_and_then_the_first_gives_way(
    sock: socket.socket,
) -> None:
    queue = queue_of(replace(PROXIES, waiting=2))
    proxies = [Proxy(queue, sock) for _ in range(3)]
    assert [bool(proxy.answer) for proxy in proxies] == [True, False, False]
    proxies[2].says(CLIENT)
    assert len(queue.registry) == 1
    for proxy in proxies[:2]:
        proxy.newcomer.connection_lost(None)


async def test_a_proxy_that_leaves_is_forgotten(queue: AcceptQueue, sock: socket.socket) -> None:
    proxy = Proxy(queue, sock)
    proxy.says(CLIENT[:10])
    proxy.newcomer.connection_lost(None)
    assert not queue.announcing
    assert not queue.state.connections


def asked(seen: list[Any]) -> Application:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        seen.append(scope["client"])
        await answers_at_once(scope, receive, send)

    return app


async def closed(writer: asyncio.StreamWriter) -> None:
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()


@over("loop", [asyncio.new_event_loop, uvloop.new_event_loop])
@over("encrypted", [False, True])
def test_over_real_sockets_the_header_comes_before_all_and_only_from_a_proxy(
    tmp_path: Path, loop: Callable[[], asyncio.AbstractEventLoop], encrypted: bool
) -> None:
    seen: list[Any] = []
    certificate = Certificate(*issue(tmp_path)) if encrypted else None

    async def begin() -> None:
        pass

    async def ask(port: int, header: bytes) -> bytes:
        with socket.socket() as raw:
            raw.setblocking(False)
            await asyncio.get_running_loop().sock_connect(raw, ("127.0.0.1", port))
            for byte in header:
                await asyncio.get_running_loop().sock_sendall(raw, bytes([byte]))
            reader, writer = await asyncio.open_connection(
                sock=raw,
                ssl=trusting() if encrypted else None,
                server_hostname=NAME if encrypted else None,
            )
            writer.write(GET)
            found = await reader.readuntil(b"ok" if header else b"}")
            await closed(writer)
            return found

    async def work() -> None:
        stop = asyncio.Event()
        with listen("127.0.0.1", 0) as listener:
            server = Server(
                uvicorn.Config(asked(seen), log_config=None, ws="none", lifespan="off"),
                listener,
                Registry(PROXIES),
                begin=begin,
                stopping=lambda: None,
                certificate=certificate,
            )
            running = asyncio.create_task(server.run_until(stop))
            port = listener.getsockname()[1]
            assert (await ask(port, CLIENT))[:12] == OK[:12]
            if not encrypted:
                assert b"proxy_protocol" in await ask(port, b"")
                assert b"trusted_proxies alone" in await ask_plainly(port)
            stop.set()
            await running

    async def ask_plainly(port: int) -> bytes:
        """From an address that is not trusted the header is no request."""
        reader, writer = await asyncio.open_connection(
            "127.0.0.1", port, local_addr=("127.0.0.9", 0)
        )
        writer.write(GET)
        assert (await reader.readuntil(b"ok"))[:12] == OK[:12]
        writer.write(CLIENT + GET)
        found = await reader.read()
        await closed(writer)
        return found

    with asyncio.Runner(loop_factory=loop) as runner:
        runner.run(asyncio.wait_for(work(), 10))
    assert seen[0] == ("203.0.113.5", 4711)
    assert [host for host, _ in seen[1:]] == ([] if encrypted else ["127.0.0.9"])
