"""TLS of a connection whose transport is a fake: bytes, limits, ends."""

import asyncio
import gc
import ssl
import weakref
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.transport.certificate import Certificate
from server.transport.limits import GRACE_SECONDS, LINGER_SECONDS, READ_BYTES
from tests.examples import over
from tests.server.transport.authority import TlsWire, issue, trusting
from tests.server.transport.wire import (
    LIMITS,
    Application,
    answers_at_once,
    reads_all,
    reads_nothing,
)

GET = b"GET /x HTTP/1.1\r\nhost: x\r\n\r\n"
POST = b"POST /x HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n"
OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"
VERSIONS = (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3)
MIB = 1 << 20


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Certificate:
    return Certificate(*issue(tmp_path_factory.mktemp("tls")))


@pytest.fixture(scope="module")
def client() -> ssl.SSLContext:
    return trusting()


async def shaken(app: Application, certificate: Certificate, client: ssl.SSLContext) -> TlsWire:
    wire = TlsWire(app, certificate, client)
    await wire.shakes_hands()
    return wire


@pytest.mark.parametrize("version", VERSIONS)
async def test_requests_of_one_connection(
    certificate: Certificate, version: ssl.TLSVersion
) -> None:
    schemes: list[str] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        schemes.append(scope["scheme"])
        await answers_at_once(scope, receive, send)

    wire = await shaken(app, certificate, trusting(version))
    for number in (1, 2, 3):
        await wire.says(GET)
        assert wire.read == OK * number
    assert schemes == ["https"] * 3
    assert not any(OK in data or b"HTTP" in data for data in wire.transport.writes)
    assert wire.tls.selected_alpn_protocol() in {None, "http/1.1"}


@given(step=st.integers(1, 400), sizes=st.lists(st.integers(0, 3000), min_size=1, max_size=4))
def test_wherever_the_wire_cuts_the_bytes_are_the_same(
    certificate: Certificate, client: ssl.SSLContext, step: int, sizes: list[int]
) -> None:
    async def work() -> None:
        wire = TlsWire(reads_all, certificate, client, step)
        await wire.shakes_hands()
        for size in sizes:
            await wire.says(POST % size + b"x" * size)
        answers = wire.read.split(b"\r\n\r\n")[1:]
        lengths = [int(part.split(b"HTTP")[0]) for part in answers]
        assert lengths == sizes

    asyncio.run(work())


async def test_large_bodies_and_answers_come_whole(
    certificate: Certificate, client: ssl.SSLContext
) -> None:
    body = bytes(range(256)) * (MIB >> 8)

    async def echoes(scope: Any, receive: Any, send: Any) -> None:
        found, more = b"", True
        while more:
            message = await receive()
            found, more = found + message["body"], message["more_body"]
        headers = [(b"content-length", b"%d" % len(found))]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": found, "more_body": False})

    wire = await shaken(echoes, certificate, client)
    await wire.says(POST % MIB + body)
    assert wire.read.partition(b"\r\n\r\n")[2] == body


async def test_no_more_is_read_than_somebody_asks_for(
    certificate: Certificate, client: ssl.SSLContext
) -> None:
    """A body of a MiB waits in the network, but for two reads of it."""
    wire = await shaken(reads_nothing, certificate, client)
    await wire.says(POST % MIB + bytes(MIB))
    assert wire.transport.is_reading_paused
    assert wire.connection._request is not None
    assert len(wire.connection._request.body) <= 2 * READ_BYTES
    assert MIB - len(wire._waiting) <= 4 * READ_BYTES


async def test_what_waits_decrypted_comes_when_it_is_asked_for(
    certificate: Certificate, client: ssl.SSLContext
) -> None:
    """No byte of the network is there to wake the reader."""
    gate = asyncio.Event()

    async def later(scope: Any, receive: Any, send: Any) -> None:
        await gate.wait()
        await reads_all(scope, receive, send)

    wire = await shaken(later, certificate, client)
    await wire.says(POST % 20_000 + b"x" * 20_000)
    gate.set()
    await wire.settled()
    await wire.carries()
    assert wire.read.endswith(b"\r\n\r\n20000")


# Time


@over("sent", [0, 1, 100])
async def test_a_handshake_has_the_time_of_a_header(
    certificate: Certificate, client: ssl.SSLContext, sent: int
) -> None:
    wire = TlsWire(answers_at_once, certificate, client)
    with pytest.raises(ssl.SSLWantReadError):
        wire.tls.do_handshake()
    wire._waiting = wire._outgoing.read()[:sent]
    wire.delivers()
    assert len(wire.registry) == 1  # it counts from its first byte
    await wire.time_passes(LIMITS.header_seconds - 0.1)
    assert not wire.transport.is_closing()
    await wire.time_passes(0.2)
    assert wire.transport.is_closing()


async def test_who_has_not_shaken_hands_gives_way(
    certificate: Certificate, client: ssl.SSLContext
) -> None:
    wire = TlsWire(answers_at_once, certificate, client)
    assert wire.registry.spare(wire.connection.loop.time() + GRACE_SECONDS)
    assert wire.transport.is_closing()


async def test_a_slow_header_gets_its_answer_and_a_goodbye(
    certificate: Certificate, client: ssl.SSLContext
) -> None:
    wire = await shaken(answers_at_once, certificate, client)
    await wire.says(GET[:10])
    await wire.time_passes(LIMITS.header_seconds + 0.1)
    await wire.carries()
    assert wire.read.startswith(b"HTTP/1.1 408 ")
    assert wire.said_goodbye


async def test_who_takes_no_answers_is_not_read(
    certificate: Certificate, client: ssl.SSLContext
) -> None:
    """Each request for new keys has an answer, which is kept until it can be sent."""
    wire = await shaken(answers_at_once, certificate, client)
    seen = []
    for turn in (wire.reads.pause_writing, wire.reads.resume_writing, wire.reads.pause_writing):
        turn()
        seen.append(wire.transport.is_reading_paused)
    assert seen == [True, False, True]
    await wire.time_passes(LIMITS.stall_seconds + 0.1)
    assert wire.transport.aborts == 1


# Ends


async def test_an_idle_connection_ends_with_a_goodbye(
    certificate: Certificate, client: ssl.SSLContext
) -> None:
    wire = await shaken(answers_at_once, certificate, client)
    await wire.says(GET)
    await wire.time_passes(LIMITS.idle_seconds + 1)
    await wire.carries()
    assert (wire.read, wire.said_goodbye, wire.transport.is_closed) == (OK, True, True)


async def test_an_answer_before_the_end_of_the_body_is_read_in_full(
    certificate: Certificate, client: ssl.SSLContext
) -> None:
    async def refuses(scope: Any, receive: Any, send: Any) -> None:
        headers = [(b"content-length", b"2"), (b"connection", b"close")]
        await send({"type": "http.response.start", "status": 413, "headers": headers})
        await send({"type": "http.response.body", "body": b"no"})

    wire = await shaken(refuses, certificate, client)
    await wire.says(POST % MIB + bytes(MIB))
    assert wire.read.endswith(b"\r\n\r\nno")
    assert wire.said_goodbye
    assert wire.transport.has_eof
    assert not wire.transport.is_closed  # a reset would take the answer back
    assert not wire._waiting  # all of the body was taken, and none of it read
    await wire.time_passes(LINGER_SECONDS + 0.1)
    assert wire.transport.aborts == 1


async def test_a_goodbye_of_the_client_ends_it(
    certificate: Certificate, client: ssl.SSLContext
) -> None:
    wire = await shaken(answers_at_once, certificate, client)
    await wire.says(GET)
    with pytest.raises(ssl.SSLWantReadError):
        wire.tls.unwrap()
    await wire.carries()
    assert wire.transport.is_closed


async def test_what_comes_after_the_end_hurts_nobody(
    certificate: Certificate, client: ssl.SSLContext
) -> None:
    wire = await shaken(reads_nothing, certificate, client)
    await wire.says(POST % 10)
    await wire.is_lost()
    wire.transport.abort()
    wire.reads.buffer_updated(100)
    await wire.settled()


@over(
    "data, said",
    [
        (GET, b"https://"),
        (b"POST /x HTTP/1.1\r\n", b"https://"),
        (b"nonsense\r\n" * 10, b""),
        (bytes(300), b""),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(512), b""),
        (b"\x80\x2e\x01\x00\x02\x00\x15" + bytes(50), b""),
    ],
)
async def test_what_is_no_tls_is_closed(
    certificate: Certificate, client: ssl.SSLContext, data: bytes, said: bytes
) -> None:
    wire = TlsWire(answers_at_once, certificate, client)
    wire._waiting = data
    wire.delivers()
    await wire.settled()
    assert wire.transport.is_closed
    assert said in wire.answer
    assert len(wire.answer) < 300


async def test_an_older_tls_is_refused(certificate: Certificate) -> None:
    assert certificate.context.minimum_version == ssl.TLSVersion.TLSv1_2
    assert certificate.context.options & ssl.OP_NO_RENEGOTIATION


async def test_a_record_that_was_changed_ends_the_connection(
    certificate: Certificate, client: ssl.SSLContext
) -> None:
    wire = await shaken(answers_at_once, certificate, client)
    wire.tls.write(GET)
    record = bytearray(wire._outgoing.read())
    record[-1] ^= 1
    wire._waiting = bytes(record)
    wire.delivers()
    await wire.settled()
    assert wire.transport.is_closed
    assert OK not in wire.answer


async def test_a_session_goes_with_its_connection(
    certificate: Certificate, client: ssl.SSLContext
) -> None:
    """Not when garbage is collected: a thousand handshakes that ended half way are 17 MB."""
    wire = TlsWire(answers_at_once, certificate, client)
    gc.disable()
    try:
        session = weakref.ref(wire.reads._tls)
        assert session() is not None
        wire.transport.abort()
        wire.reads.connection_lost(None)
        assert session() is None
        wire.connection._pause(False)
        await wire.settled()
    finally:
        gc.enable()
