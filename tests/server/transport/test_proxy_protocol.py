"""The PROXY protocol: headers as bytes, and connections that begin with one."""

import asyncio
import contextlib
import logging
import socket
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, replace
from ipaddress import ip_address
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import uvicorn
import uvloop
from hypothesis import given
from hypothesis import strategies as st
from starlette.types import Receive, Scope, Send

from server.transport.certificate import Certificate
from server.transport.giving_way import Peer
from server.transport.limits import ConnectionLimits
from server.transport.listener import listen
from server.transport.proxies import TrustedProxies
from server.transport.proxy_protocol import (
    HEADER_BYTES,
    Announcements,
    ProxyHeader,
    ProxyHeaderError,
    read_header,
)
from server.transport.registry import Registry, Visitor
from server.transport.server import Server
from tests.examples import examples, over
from tests.server.transport.authority import NAME, issue, trusting
from tests.server.transport.wire import LIMITS, Application, answers_at_once

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


@dataclass
class Proxy:
    """A proxy's end of a connection that it announces, and the visitors by then."""

    registry: Registry
    here: socket.socket
    there: socket.socket
    knocked: list[Visitor]
    announcements: Announcements

    async def says(self, data: bytes) -> None:
        self.here.send(data)
        await self.settled()

    async def settled(self) -> None:
        for _ in range(5):
            await asyncio.sleep(0)

    def heard(self) -> bytes:
        """What it is answered; empty: that is all."""
        return self.here.recv(4096)


@contextlib.asynccontextmanager
async def proxy(limits: ConnectionLimits = PROXIES) -> AsyncIterator[Proxy]:
    here, there = socket.socketpair()
    here.settimeout(0)
    registry, knocked = Registry(limits), list[Visitor]()
    announcements = Announcements(registry, knocked.append)
    announcements.take(Visitor(PROXY, there))
    yield Proxy(registry, here, there, knocked, announcements)
    here.close()
    await asyncio.wait_for(announcements.end(), 5)
    for visitor in knocked:
        visitor.sock.close()
    assert there.fileno() == -1


@given(cuts=st.lists(st.integers(0, len(CLIENT + GET)), max_size=6))
def test_it_knocks_as_the_client_wherever_reads_fall_and_the_rest_is_left(cuts: list[int]) -> None:
    async def work() -> None:
        async with proxy() as proxied:
            text, ends = CLIENT + GET, sorted({0, *cuts, len(CLIENT + GET)})
            for start, end in pairwise(ends):
                await proxied.says(text[start:end])
            (visitor,) = proxied.knocked
            assert visitor.peer == Peer("203.0.113.5")
            assert visitor.client == ("203.0.113.5", 4711)
            assert visitor.sock.recv(4096) == GET

    asyncio.run(work())


@over(
    "header",
    [
        b"PROXY UNKNOWN\r\n",
        version_2(0x20, 0x00, b""),
        b"PROXY TCP4 127.0.0.1 127.0.0.1 1 2\r\n",
        b"PROXY TCP6 ::ffff:127.0.0.1 ::1 1 2\r\n",
    ],
)
async def test_who_is_not_named_is_the_proxys_and_nobody_of_this_machine(header: bytes) -> None:
    async with proxy() as proxied:
        await proxied.says(header)
        (visitor,) = proxied.knocked
        assert (visitor.peer, visitor.client) == (PROXY, ("", 0))


async def test_a_client_that_is_a_proxy_itself_is_one() -> None:
    async with proxy() as proxied:
        await proxied.says(CLIENT.replace(b"203.0.113.5", b"10.0.0.1"))
        assert proxied.knocked[0].peer == Peer("10.0.0.1", is_proxy=True)


async def test_what_is_no_header_has_an_answer_and_the_log_one_line(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with proxy() as proxied:
        with caplog.at_level(logging.WARNING):
            await proxied.says(GET)
            here, there = socket.socketpair()
            proxied.announcements.take(Visitor(PROXY, there))
            here.send(GET)
            await proxied.settled()
            here.close()
        head, _, body = proxied.heard().partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 400 ")
        assert b"a PROXY header is wanted here first (setting proxy_protocol)" in body
        await proxied.says(GET)  # no reset takes the answer away
        assert proxied.heard() == b""
        assert proxied.knocked == []
    assert [each.getMessage() for each in caplog.records] == [
        "from the proxy 127.0.0.1: a PROXY header is wanted here first (setting proxy_protocol)"
    ]


async def test_a_header_that_comes_slowly_has_the_time_of_a_requests() -> None:
    async with proxy(replace(PROXIES, header_seconds=0.1)) as proxied:
        for byte in CLIENT[:-1]:
            await proxied.says(bytes([byte]))
        await asyncio.sleep(0.15)
        answer = proxied.heard()
        assert answer.startswith(b"HTTP/1.1 408 ")
        assert b"the PROXY header did not come in time" in answer
        assert proxied.knocked == []


async def test_as_many_may_come_slowly_as_may_wait_and_then_the_first_gives_way() -> None:
    async with proxy(replace(PROXIES, waiting=2)) as proxied:
        pairs = [socket.socketpair() for _ in range(2)]
        for _, there in pairs:
            proxied.announcements.take(Visitor(PROXY, there))
        assert proxied.heard().startswith(b"HTTP/1.1 408 ")
        pairs[1][0].send(CLIENT)
        await proxied.settled()
        assert len(proxied.knocked) == 1
        for here, _ in pairs:
            here.close()


async def test_a_proxy_that_leaves_is_forgotten() -> None:
    async with proxy() as proxied:
        await proxied.says(CLIENT[:10])
        proxied.here.close()
        await proxied.settled()
        assert proxied.there.fileno() == -1


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
