"""The PROXY protocol: headers as bytes, and connections that begin with one."""

import asyncio
import contextlib
import logging
import socket
from collections.abc import Callable
from dataclasses import replace
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
from server.transport.connection import Connection
from server.transport.giving_way import Peer
from server.transport.limits import LINGER_SECONDS
from server.transport.listener import listen
from server.transport.proxies import TrustedProxies
from server.transport.proxy_protocol import (
    HEADER_BYTES,
    Announced,
    ProxyHeader,
    ProxyHeaderError,
    read_header,
)
from server.transport.registry import Registry
from server.transport.server import Server
from tests.examples import examples
from tests.server.asgi import answering_with
from tests.server.transport.authority import NAME, issue, trusting
from tests.server.transport.wire import LIMITS, Wire, answers_at_once

SIGNATURE = b"\r\n\r\n\0\r\nQUIT\n"
GET = b"GET /x HTTP/1.1\r\nhost: x\r\n\r\n"
OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"
PROXIES = replace(LIMITS, proxies=TrustedProxies.named(["127.0.0.1", "10.0.0.1"]), announced=True)
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
@examples(few=200, many=5000)
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
@examples(few=200, many=5000)
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


@pytest.mark.parametrize(("text", "said"), LIES)
def test_what_is_no_header_is_said_as_soon_as_it_is_seen(text: bytes, said: str) -> None:
    with pytest.raises(ProxyHeaderError, match=said):
        read_header(text)


class AnnouncedWire(Wire):
    """A connection from a proxy that says first whose it is."""

    def _connect(self) -> None:
        self.reads: Announced | Connection = Announced(self.connection, self.connection)
        vars(self.transport)["set_protocol"] = self._speak_to
        self.reads.connection_made(self.transport)

    def _speak_to(self, protocol: Connection) -> None:
        self.reads = protocol

    async def comes(self, *reads: bytes) -> None:
        """Deliver ``reads``, each as one."""
        for data in reads:
            self.reads.get_buffer(-1)[: len(data)] = data
            self.reads.buffer_updated(len(data))
        await self.settled()


def asked(seen: list[Any]) -> Callable[..., Any]:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        seen.append(scope["client"])
        await answers_at_once(scope, receive, send)

    return app


@given(cuts=st.lists(st.integers(0, len(CLIENT + GET)), max_size=6))
def test_a_request_is_of_the_client_that_the_header_names_wherever_reads_fall(
    cuts: list[int],
) -> None:
    async def work() -> None:
        seen: list[Any] = []
        wire = AnnouncedWire(asked(seen), Registry(PROXIES))
        assert wire.connection.peer == Peer("127.0.0.1", is_proxy=True)
        text, ends = CLIENT + GET, sorted({0, *cuts, len(CLIENT + GET)})
        await wire.comes(*(text[a:b] for a, b in pairwise(ends)))
        await wire.comes(GET)
        assert wire.answer == OK * 2
        assert seen == [("203.0.113.5", 4711)] * 2
        assert wire.connection.peer == Peer("203.0.113.5")
        await wire.is_lost()
        assert repr(wire.registry) == "<Registry 0 of 8 places, 0 at the door, 0 ending>"

    asyncio.run(work())


@pytest.mark.parametrize(
    "header",
    [
        b"PROXY UNKNOWN\r\n",
        version_2(0x20, 0x00, b""),
        b"PROXY TCP4 127.0.0.1 127.0.0.1 1 2\r\n",
        b"PROXY TCP6 ::ffff:127.0.0.1 ::1 1 2\r\n",
    ],
)
async def test_who_is_not_named_is_nobody_of_this_machine(header: bytes) -> None:
    seen: list[Any] = []
    wire = AnnouncedWire(asked(seen), Registry(PROXIES))
    await wire.comes(header + GET)
    assert seen == [("", 0)]
    assert wire.connection.peer.is_proxy


async def test_a_client_that_is_a_proxy_itself_names_its_own() -> None:
    seen: list[Any] = []
    wire = AnnouncedWire(asked(seen), Registry(PROXIES))
    await wire.comes(CLIENT.replace(b"203.0.113.5", b"10.0.0.1"))
    assert wire.connection.peer == Peer("10.0.0.1", is_proxy=True)
    await wire.comes(GET[:-2] + b"X-Forwarded-For: 192.0.2.7\r\n\r\n")
    assert seen == [("192.0.2.7", 0)]


async def test_a_client_whom_no_proxy_may_name_says_nothing_by_its_header() -> None:
    """Behind the header the rest is a client's."""
    seen: list[Any] = []
    wire = AnnouncedWire(asked(seen), Registry(PROXIES))
    await wire.comes(CLIENT + GET[:-2] + b"X-Forwarded-For: 192.0.2.7\r\n\r\n")
    assert seen == [("203.0.113.5", 4711)]
    await wire.comes(CLIENT.replace(b"203", b"204") + GET)
    wire_answer = wire.answer.removeprefix(OK)
    assert wire_answer.startswith(b"HTTP/1.1 400 ")
    assert b"trusted_proxies alone" in wire_answer


async def test_what_is_no_header_has_an_answer_and_the_log_one_line(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Announced, "_said_at", float("-inf"))
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            wire = AnnouncedWire(answers_at_once, Registry(PROXIES))
            await wire.comes(GET)
            wire.refused(400, "proxy_protocol")
            await wire.comes(GET)
            assert wire.answer.count(b"HTTP/1.1") == 1
    assert [each.getMessage() for each in caplog.records] == [
        "from the proxy 127.0.0.1: a PROXY header is wanted here first (setting proxy_protocol)"
    ]


async def test_a_header_that_comes_slowly_has_the_time_of_a_requests() -> None:
    wire = AnnouncedWire(answers_at_once, Registry(PROXIES))
    for number in range(len(CLIENT)):
        await wire.comes(CLIENT[number : number + 1])
        await wire.time_passes(LIMITS.header_seconds / 20)
        if wire.answer:
            break
    wire.refused(408, "PROXY header", "in time")
    assert wire.passed == pytest.approx(LIMITS.header_seconds)


async def test_clients_have_the_limits_of_their_own_addresses() -> None:
    """The fifth of an address that may have four is refused; one of another is not, nor is the proxy."""
    registry = Registry(PROXIES)
    wires = [AnnouncedWire(answers_at_once, registry) for _ in range(LIMITS.total)]
    for wire in wires[:4]:
        await wire.comes(CLIENT + GET)
        assert wire.answer == OK
    await wires[4].comes(CLIENT + GET)
    wires[4].refused(503, "max_connections")
    assert len(registry) == LIMITS.total - 1
    await wires[5].comes(CLIENT.replace(b"203.0.113.5", b"203.0.113.6") + GET)
    assert wires[5].answer == OK
    assert not any(wire.transport.is_closing() for wire in (*wires[:4], *wires[6:]))
    await wires[4].time_passes(LINGER_SECONDS)
    assert wires[4].transport.is_closing()


async def test_without_a_place_it_is_refused_like_any_other() -> None:
    wire = AnnouncedWire(answers_at_once, Registry(PROXIES), has_place=False)
    await wire.comes(CLIENT + GET)
    wire.refused(503, "max_connections")
    await wire.is_lost()
    assert repr(wire.registry) == "<Registry 0 of 8 places, 0 at the door, 0 ending>"


async def closed(writer: asyncio.StreamWriter) -> None:
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()


@pytest.mark.parametrize("loop", [asyncio.new_event_loop, uvloop.new_event_loop])
@pytest.mark.parametrize("encrypted", [False, True])
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
        with listen("127.0.0.1", 0) as listener:
            server = Server(
                uvicorn.Config(answers_at_once, log_config=None, ws="none", lifespan="off"),
                listener,
                Registry(PROXIES),
                answer=answering_with(asked(seen)),
                begin=begin,
                stopping=lambda: None,
                sweep=lambda now: None,
                certificate=certificate,
            )
            running = asyncio.create_task(server.run_until_told())
            port = listener.getsockname()[1]
            assert (await ask(port, CLIENT))[:12] == OK[:12]
            if not encrypted:
                assert b"proxy_protocol" in await ask(port, b"")
                assert (await ask_plainly(port))[:12] == b"HTTP/1.1 400"
            server.should_exit = True
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
