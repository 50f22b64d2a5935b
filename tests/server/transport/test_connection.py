"""What one connection holds, says and waits for; the transport is a fake, nothing goes over a network."""

import asyncio
import tracemalloc
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.types import Receive, Scope, Send

from server.errors import DisconnectedError, InvalidRequestError
from server.memory.request_memory import Lease, RequestMemory
from server.requests.asgi_client import AsgiClient
from server.requests.exchange import BodyLimit, Exchange
from server.transport.giving_way import Peer, Worth
from server.transport.limits import (
    AHEAD_BYTES,
    GRACE_SECONDS,
    HEADER_BYTES,
    LEFT_OVER_PACE,
    LINGER_SECONDS,
    PARTING_SECONDS,
    PROGRESS_BYTES,
    READ_BYTES,
    WAIT_SECONDS,
)
from server.transport.proxies import TrustedProxies
from server.transport.registry import Registry
from tests.examples import examples, over
from tests.fuzz import http_answers as answers_fuzzer
from tests.fuzz.http_requests import TRAILERS
from tests.server.transport.test_registry import FakeNewcomer
from tests.server.transport.wire import (
    LIMITS,
    Application,
    Wire,
    answers_at_once,
    reads_all,
    reads_nothing,
    with_client,
)

GET = b"GET /x HTTP/1.1\r\nhost: x\r\n\r\n"
POST = b"POST /x HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n"
CHUNKED = b"POST /x HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n"
OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"
MIB = 1 << 20
_MANY = 40


# Headers and times


@over(
    "data, status, words",
    [
        (b"nonsense\r\n\r\n", 400, "not an HTTP request"),
        (b"GET /" + b"x" * HEADER_BYTES, 431, "header"),
        (b"BREW / HTTP/1.1\r\n\r\n", 501, "BREW"),
    ],
)
async def test_what_is_no_request_is_told_so_and_ends(data: bytes, status: int, words: str) -> None:
    wire = Wire(answers_at_once)
    await wire.sends(data)
    wire.refused(status, words)


async def test_a_header_has_a_time() -> None:
    wire = Wire(answers_at_once)
    await wire.sends(GET[:10])
    await wire.time_passes(LIMITS.header_seconds - 0.1)
    assert wire.answer == b""
    await wire.time_passes(0.1)
    wire.refused(408, "header")
    await wire.sends(GET[10:])
    assert wire.answer.count(b"HTTP/1.1") == 1
    await wire.time_passes(LINGER_SECONDS)
    assert wire.transport.aborts


@pytest.mark.parametrize("used", [False, True])
async def test_silence_between_requests_has_a_time(used: bool) -> None:
    wire = Wire(answers_at_once)
    limit = LIMITS.idle_seconds if used else LIMITS.header_seconds
    if used:
        await wire.sends(GET)
    await wire.time_passes(limit - 0.1)
    assert not wire.transport.is_closing()
    await wire.time_passes(0.1)
    assert wire.transport.is_closed
    assert wire.answer == (OK if used else b"")


async def test_a_running_request_has_all_the_time() -> None:
    wire = Wire(reads_nothing)
    await wire.sends(GET)
    await wire.time_passes(1000.0)
    assert not wire.transport.is_closing()
    assert wire.connection.silence(10_000.0) is None


async def test_who_does_not_take_an_answer_is_cut_off() -> None:
    wire = Wire(answers_at_once)
    await wire.sends(GET)
    wire.connection.pause_writing()
    await wire.time_passes(LIMITS.stall_seconds - 0.1)
    wire.connection.resume_writing()
    wire.connection.pause_writing()
    await wire.time_passes(LIMITS.stall_seconds - 0.1)
    assert not wire.transport.is_closing()
    await wire.time_passes(0.1)
    assert wire.transport.aborts


async def test_what_a_closed_connection_has_left_to_send_has_a_time() -> None:
    """Its client takes nothing, so that the transport never comes to its end by itself."""
    wire = Wire(answers_at_once)
    await wire.sends(GET)
    await wire.time_passes(LIMITS.idle_seconds)
    assert wire.transport.is_closed
    await wire.time_passes(LINGER_SECONDS)
    assert wire.transport.aborts


# Giving way


def gives_way(wire: Wire) -> bool:
    """Have it silent for a second, and its place wanted."""
    wire.passed += GRACE_SECONDS
    return wire.registry.spare(wire.connection.loop.time())


@over("data", [b"", GET[:10], GET])
async def test_what_gives_way_has_no_place_at_once(data: bytes) -> None:
    wire = Wire(answers_at_once)
    await wire.sends(data)
    assert gives_way(wire)
    assert len(wire.registry) == 0
    if data == GET[:10]:
        wire.refused(408)
    else:
        assert wire.transport.is_closed


async def test_an_answer_on_its_way_keeps_its_connection_until_it_stalls() -> None:
    wire = Wire(answers_at_once)
    await wire.sends(GET)
    wire.transport.unsent_bytes = 1000
    assert not gives_way(wire)
    await wire.time_passes(LIMITS.stall_seconds)
    assert gives_way(wire)
    assert wire.transport.is_closed
    assert not wire.transport.aborts  # what is left of it may still be taken
    await wire.time_passes(LINGER_SECONDS)
    assert wire.transport.aborts


async def test_what_gave_way_and_does_not_go_is_cut_off() -> None:
    wire = Wire(answers_at_once)
    await wire.sends(GET)
    assert gives_way(wire)
    assert wire.transport.aborts == 0
    await wire.time_passes(LINGER_SECONDS + 0.001)  # sums of times round
    assert wire.transport.aborts == 1
    await wire.is_lost()
    await wire.time_passes(LINGER_SECONDS)
    assert wire.transport.aborts == 1


async def test_what_is_used_within_a_second_does_not_give_way() -> None:
    wire = Wire(answers_at_once)
    await wire.sends(GET)
    wire.passed += GRACE_SECONDS / 2
    assert not wire.registry.spare(wire.connection.loop.time())


async def test_what_has_had_its_last_answer_takes_no_place() -> None:
    wire = Wire(answers_at_once)
    await wire.sends(b"nonsense\r\n\r\n")
    assert len(wire.registry) == 0
    assert not wire.transport.aborts


@over("before", [b"", GET])
@over("data, what", [(GET[:10], "header"), (POST % 100 + b"x", "body")])
async def test_a_part_of_a_request_gives_way_and_is_told(
    before: bytes, data: bytes, what: str
) -> None:
    wire = Wire(reads_all)
    await wire.sends(before)
    await wire.sends(data)
    assert gives_way(wire)
    assert wire.answer.count(b"HTTP/1.1 408") == 1
    assert what.encode() in wire.answer
    assert wire.transport.has_eof
    await wire.settled()
    await wire.sends(b"x" * 99)
    assert wire.answer.count(b"HTTP/1.1") == (2 if before else 1)


async def test_who_gives_way_before_its_body_is_asked_for_ends_as_one_that_left() -> None:
    model_is_there, found = asyncio.Event(), list[DisconnectedError]()

    async def waits_for_a_model(client: AsgiClient) -> None:
        with Exchange(client, Lease(RequestMemory(MIB)), BodyLimit(MIB)) as exchange:
            await model_is_there.wait()
            exchange.check_room()
            try:
                await exchange.part()
            except DisconnectedError as exc:
                found.append(exc)

    wire = Wire(with_client(waits_for_a_model))
    await wire.sends(POST % 100)
    assert gives_way(wire)
    assert wire.answer.startswith(b"HTTP/1.1 408")
    model_is_there.set()
    await wire.settled()
    assert len(found) == 1


@pytest.mark.parametrize(
    ("reads_ahead", "most"), [(False, 2 * READ_BYTES), (True, READ_BYTES + AHEAD_BYTES)]
)
async def test_so_much_of_a_body_lies_unread(reads_ahead: bool, most: int) -> None:
    """One read where nothing is held for it, more where its reader holds memory."""
    taken = 0

    async def takes_a_part(client: AsgiClient) -> None:
        nonlocal taken
        taken = len(await client.part(reads_ahead))
        await asyncio.Event().wait()

    wire = Wire(with_client(takes_a_part))
    head = POST % MIB
    await wire.sends(head + bytes(READ_BYTES - len(head)))
    for _ in range(20):
        await wire.sends(bytes(READ_BYTES))
    assert taken == READ_BYTES - len(head)
    assert wire.transport.is_reading_paused
    request = wire.connection._request
    assert request is not None
    assert taken + len(request.body) == most - len(head)


@pytest.mark.parametrize("leaves_before", [False, True])
async def test_what_runs_is_cancelled_when_its_client_leaves(leaves_before: bool) -> None:
    model_is_there, found = asyncio.Event(), list[DisconnectedError]()

    async def computes(client: AsgiClient) -> None:
        with Exchange(client, Lease(RequestMemory(MIB)), BodyLimit(MIB)) as exchange:
            if leaves_before:
                await model_is_there.wait()
            try:
                with exchange.until_left():
                    await asyncio.Event().wait()
            except DisconnectedError as exc:
                found.append(exc)

    wire = Wire(with_client(computes))
    await wire.sends(POST % 0)
    await wire.is_lost()
    model_is_there.set()
    await wire.settled()
    assert len(found) == 1


async def test_a_body_that_comes_on_is_not_silent() -> None:
    wire = Wire(reads_all)
    await wire.sends(POST % MIB + b"x")
    for _ in range(5):
        await wire.time_passes(1.0)
        await wire.sends(b"x" * PROGRESS_BYTES)
        assert wire.connection.silence(wire.connection.loop.time()) == 0
    for step in range(5):
        await wire.sends(b"x")
        assert wire.connection.silence(wire.connection.loop.time()) == step
        await wire.time_passes(1.0)


@over(
    "app, data",
    [
        (reads_nothing, POST % MIB + b"x"),
        (reads_nothing, POST % 100 + b"x" * 100),
        (reads_nothing, (POST % 100).replace(b"\r\n\r\n", b"\r\nExpect: 100-continue\r\n\r\n")),
    ],
    ids=["nobody reads it", "it is whole", "nobody asked for it"],
)
async def test_who_is_not_waited_for_does_not_give_way(app: Application, data: bytes) -> None:
    wire = Wire(app)
    await wire.sends(data)
    assert not gives_way(wire)


# The rest of a body whose request has had its answer


FRAMED = {"length": (POST % MIB, b"x"), "chunks": (CHUNKED, b"1\r\nx\r\n")}


@pytest.mark.parametrize("framing", FRAMED)
async def test_a_body_that_dribbles_behind_its_answer_ends_with_the_time_of_a_stall(
    framing: str,
) -> None:
    head, drop = FRAMED[framing]
    wire = Wire(answers_at_once)
    await wire.sends(head + drop)
    assert wire.answer == OK
    for _ in range(int(LIMITS.stall_seconds)):
        assert not wire.transport.has_eof
        await wire.sends(drop)
        await wire.time_passes(1.0)
    await wire.sends(drop)
    await wire.time_passes(0.1)
    assert wire.transport.has_eof  # and lingers, so that the answer is not lost
    assert len(wire.registry) == 0


async def test_a_body_that_comes_at_a_pace_behind_its_answer_comes_to_its_end() -> None:
    wire = Wire(answers_at_once)
    seconds = 2 * int(LIMITS.stall_seconds)
    await wire.sends(POST % (seconds * LEFT_OVER_PACE))
    for _ in range(seconds):
        await wire.sends(b"x" * LEFT_OVER_PACE)
        await wire.time_passes(1.0)
    await wire.sends(GET)
    assert wire.answer == 2 * OK


async def test_the_rest_of_a_body_gives_way_before_all_else_and_its_answer_is_not_lost() -> None:
    wire = Wire(answers_at_once)
    await wire.sends(POST % MIB + b"x")
    assert wire.connection.worth == Worth.ANSWERED
    assert gives_way(wire)
    assert wire.transport.has_eof
    assert not wire.transport.aborts


# The last answer


async def full(app: Application) -> tuple[Wire, Registry]:
    """Return a connection that has the only place, which another address waits for."""
    registry = Registry(replace(LIMITS, total=1))
    wire = Wire(app, registry)
    registry.arrive(FakeNewcomer(Peer("other")), wire.connection.loop.time())
    return wire, registry


async def test_an_answer_says_that_it_is_the_last_where_the_place_is_wanted() -> None:
    wire, registry = await full(answers_at_once)
    await wire.sends(GET)
    assert wire.answer == OK[:-4] + b"connection: close\r\n\r\nok"
    assert wire.transport.is_closed
    registry.check(wire.connection.loop.time())
    assert not registry.waiting


async def test_requests_that_were_sent_already_are_answered_before_the_last() -> None:
    wire, _ = await full(reads_all)
    await wire.sends((POST % 0) * 3)
    assert wire.answer.count(b"HTTP/1.1 200 ") == 3
    assert wire.answer.count(b"connection: close") == 1


async def test_pipelined_requests_end_when_a_newcomer_would_be_refused_for_them() -> None:
    wire, registry = await full(reads_all)
    await wire.time_passes(WAIT_SECONDS / 2)
    await wire.sends((POST % 0) * 3)
    assert wire.answer.count(b"HTTP/1.1 200 ") == wire.answer.count(b"connection: close") == 1
    registry.check(wire.connection.loop.time())
    assert not registry.waiting


async def test_without_a_place_a_request_gets_503_and_when_to_come_again() -> None:
    wire = Wire(answers_at_once, has_place=False)
    assert len(wire.registry) == 0
    await wire.sends(POST % MIB)
    wire.refused(503, "max_connections")
    assert b"\r\nretry-after: 1\r\n" in wire.answer
    await wire.sends(b"x" * READ_BYTES)
    assert wire.answer.count(b"HTTP/1.1") == 1


async def test_without_a_place_silence_has_a_short_time() -> None:
    wire = Wire(answers_at_once, has_place=False)
    await wire.time_passes(LINGER_SECONDS)
    assert wire.transport.aborts


# Proxies


@pytest.mark.parametrize("trusted", [True, False])
async def test_the_client_of_a_request_is_whom_a_trusted_proxy_names(trusted: bool) -> None:
    seen: list[Any] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        seen.append(scope["client"])
        await answers_at_once(scope, receive, send)

    proxies = TrustedProxies.named(["127.0.0.0/8"] if trusted else [])
    wire = Wire(app, Registry(replace(LIMITS, proxies=proxies)))
    assert wire.connection.peer.is_proxy == trusted
    await wire.sends(GET[:-2] + b"X-Forwarded-For: 10.0.0.9, 192.0.2.7\r\n\r\n")
    await wire.sends(GET)
    assert seen == [("192.0.2.7", 0) if trusted else ("127.0.0.1", 1), ("127.0.0.1", 1)]


# What it holds


@pytest.mark.parametrize("framing", ["length", "chunked"])
async def test_no_more_of_a_body_is_read_than_was_asked_for(framing: str) -> None:
    wire = Wire(reads_nothing)
    body = b"x" * MIB
    if framing == "length":
        await wire.sends(POST % MIB + body)
    else:
        await wire.sends(CHUNKED + b"%x\r\n%b\r\n0\r\n\r\n" % (MIB, body))
    assert wire.transport.is_reading_paused
    assert wire.connection._request is not None
    assert 0 < len(wire.connection._request.body) <= READ_BYTES


FLOODS = {
    "requests": GET * 1000,
    "short requests": b"GET / HTTP/1.1\r\nhost:\r\n\r\n" * 1000,
    "fields": GET[:-2] + b"a:\r\n" * 8000,
    "a field": GET[:-2] + b"a: " + b"x" * MIB,
    "a target": b"GET /" + b"x" * MIB,
    "empty lines": b"\r\n" * (MIB // 2),
    "fields behind a body": CHUNKED + b"1\r\nx\r\n0\r\n" + b"a:\r\n" * (MIB // 4),
    "a field behind a body": CHUNKED + b"1\r\nx\r\n0\r\na: " + b"x" * MIB,
    "a chunk extension": CHUNKED + b"1;" + b"x" * MIB,
    "a body": POST % MIB + b"x" * MIB,
    "small chunks": CHUNKED + b"1\r\nx\r\n" * (MIB // 24),
    "requests behind a body": POST % 100 + b"x" * 100 + GET * 1000,
}


@pytest.mark.parametrize("flood", FLOODS)
async def test_whatever_comes_a_connection_holds_little(flood: str) -> None:
    """The application reads what it can get of a body, and has no answer yet."""

    async def reads_without_end(scope: Scope, receive: Receive, send: Send) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass

    await Wire(answers_at_once).sends(GET)  # what the first one imports
    wire = Wire(reads_without_end)
    data = FLOODS[flood]
    tracemalloc.start()
    try:
        for start in range(0, len(data), READ_BYTES):
            await wire.sends(data[start : start + READ_BYTES])
            assert tracemalloc.get_traced_memory()[0] < 256 << 10
    finally:
        tracemalloc.stop()


async def test_a_few_requests_at_once_are_answered_in_order() -> None:
    async def says_path(scope: Scope, receive: Receive, send: Send) -> None:
        await asyncio.sleep(0)
        body = scope["path"].encode()
        headers = [(b"content-length", str(len(body)).encode())]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    wire = Wire(says_path)
    requests = (b"GET /%d HTTP/1.1\r\nhost: x\r\n\r\n" % i for i in range(_MANY))
    await wire.sends(b"".join(requests))
    for _ in range(_MANY):
        await wire.settled()
    bodies = wire.answer.split(b"\r\n\r\n")[1:]
    found = [body.split(b"HTTP")[0] for body in bodies]
    assert found == [b"/%d" % i for i in range(_MANY)]
    assert not wire.transport.is_reading_paused


async def test_more_requests_than_are_kept_wait_in_the_network() -> None:
    asked: list[str] = []

    async def counting(scope: Scope, receive: Receive, send: Send) -> None:
        asked.append(scope["path"])
        await answers_at_once(scope, receive, send)

    wire, data = Wire(counting), GET * 3000
    while data:
        if not wire.transport.is_reading_paused:
            wire.connection.data_received(data[:READ_BYTES])
            data = data[READ_BYTES:]
        await wire.settled()
    while len(asked) < 3000:
        await wire.settled()
    assert wire.answer == 3000 * OK


async def test_nonsense_behind_a_request_is_refused_behind_its_answer() -> None:
    wire = Wire(answers_at_once)
    await wire.sends(GET + b"nonsense\r\n\r\n")
    assert wire.answer.startswith(OK + b"HTTP/1.1 400 ")
    assert wire.transport.has_eof


async def test_a_body_at_its_end_has_the_next_request_behind_it() -> None:
    """Its answer was there before it."""
    wire = Wire(answers_at_once)
    await wire.sends(POST % 10 + b"x")
    assert wire.answer == OK
    wire.passed += 5.0
    await wire.sends(b"x" * 9 + GET + GET[:9])
    assert wire.answer == 2 * OK
    assert wire.connection.worth == Worth.BEGINNING
    assert wire.connection.silence(wire.connection.loop.time()) == 0


# Answers


async def test_an_application_that_fails_is_a_fault_of_the_server() -> None:
    async def fails(scope: Scope, receive: Receive, send: Send) -> None:
        raise ValueError("a secret")

    wire = Wire(fails)
    await wire.sends(GET)
    wire.refused(500, "internal error")
    assert b"secret" not in wire.answer


@over(
    "messages, status",
    [
        (({"status": 200, "headers": [(b"a", b"b\r\nc: d")]}, {"body": b"ok"}), b"500"),
        (({"status": 200, "headers": [(b"content-length", b"2")]}, {"body": b"okk"}), b"200"),
        (({"body": b"ok"},), b"500"),
        ((), b"500"),
    ],
)
async def test_an_application_that_answers_wrongly_keeps_nobody_waiting(
    messages: tuple[dict[str, Any], ...], status: bytes
) -> None:
    wire = Wire(answering(*messages))
    await wire.sends(GET)
    assert wire.answer.startswith(b"HTTP/1.1 " + status)
    assert b"c: d" not in wire.answer
    assert wire.transport.has_eof or wire.transport.is_closed


async def test_who_speaks_the_older_version_may_keep_the_connection() -> None:
    wire = Wire(answers_at_once)
    data = GET.replace(b"1.1", b"1.0")[:-2] + b"connection: keep-alive\r\n\r\n"
    await wire.sends(data)
    await wire.sends(data)
    assert wire.answer == 2 * (OK[:-4] + b"connection: keep-alive\r\n\r\nok")
    assert not wire.transport.is_closing()


def answering(*messages: dict[str, Any]) -> Application:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        for message in messages:
            kind = "http.response.start" if "status" in message else "http.response.body"
            await send({"type": kind, **message})

    return app


LENGTH = {"status": 200, "headers": [(b"content-length", b"2")]}
CLOSE = {"status": 200, "headers": [(b"content-length", b"2"), (b"connection", b"close")]}


async def test_head_and_body_of_an_answer_are_one_write() -> None:
    wire = Wire(answers_at_once)
    await wire.sends(GET)
    await wire.sends(GET)
    assert wire.transport.writes == [OK, OK]


@over(
    "request_, app, end",
    [
        (GET.replace(b"GET", b"HEAD"), answering(LENGTH, {"body": b"ok"}), b"length: 2\r\n\r\n"),
        (GET, answering({"status": 204, "headers": []}, {"body": b""}), b"No Content\r\n\r\n"),
        (GET, answering({"status": 304, "headers": []}, {}), b"Not Modified\r\n\r\n"),
        (GET, answering({**LENGTH, "headers": [(b"content-length", b"0")]}, {}), b": 0\r\n\r\n"),
    ],
)
async def test_an_answer_without_a_body_is_sent_and_the_next_one_follows(
    request_: bytes, app: Application, end: bytes
) -> None:
    wire = Wire(app)
    await wire.sends(request_)
    assert wire.answer.endswith(end)
    assert wire.answer.count(b"HTTP/1.1") == 1
    await wire.sends(request_ * 3)
    await wire.settled()
    assert wire.answer.count(b"HTTP/1.1") == 4
    assert wire.answer.endswith(end)


async def test_an_answer_in_pieces() -> None:
    messages = [{"body": b"one", "more_body": True}, {"body": b"", "more_body": True}]
    wire = Wire(answering({"status": 200, "headers": []}, *messages, {"body": b"two"}))
    await wire.sends(GET)
    head, body = wire.answer.split(b"\r\n\r\n", 1)
    assert b"transfer-encoding: chunked" in head
    assert body == b"3\r\none\r\n3\r\ntwo\r\n0\r\n\r\n"
    assert wire.transport.writes[0].endswith(b"one\r\n")


async def test_an_answer_that_breaks_off_is_sent_as_far_as_it_came() -> None:
    wire = Wire(answering(LENGTH))
    await wire.sends(GET)
    assert wire.answer.endswith(b"content-length: 2\r\n\r\n")
    assert wire.transport.is_closed


@pytest.mark.parametrize(
    "data", [GET[:-2] + b"connection: close\r\n\r\n", GET.replace(b"1.1", b"1.0")]
)
async def test_an_answer_that_is_the_last_is_whole_and_ends_the_connection(data: bytes) -> None:
    wire = Wire(answers_at_once)
    await wire.sends(data)
    head, body = wire.answer.split(b"\r\n\r\n", 1)
    assert b"connection: close" in head
    assert body == b"ok"
    assert wire.transport.is_closed


@over("more", [GET, POST % 10, POST % 10 + b"x", GET[:10], b"nonsense"])
@over("who", ["client", "application"])
async def test_behind_the_last_answer_there_is_none(more: bytes, who: str) -> None:
    started: list[str] = []

    async def counting(scope: Scope, receive: Receive, send: Send) -> None:
        started.append(scope["path"])
        await (answers_at_once if who == "client" else answering(CLOSE, {"body": b"ok"}))(
            scope, receive, send
        )

    wire = Wire(counting)
    field = b"connection: close\r\n" if who == "client" else b""
    await wire.sends(GET[:-2] + field + b"\r\n" + more)
    await wire.settled()
    assert wire.answer.count(b"HTTP/1.1") == 1
    assert len(started) == 1
    assert wire.transport.has_eof or wire.transport.is_closing()
    await wire.time_passes(LINGER_SECONDS)
    assert wire.transport.is_closing()


async def test_who_asks_first_whether_to_send_is_told() -> None:
    wire = Wire(reads_all)
    await wire.sends((POST % 2).replace(b"host", b"expect: 100-continue\r\nhost"))
    assert wire.answer == b"HTTP/1.1 100 Continue\r\n\r\n"
    await wire.sends(b"xy")
    assert wire.answer.endswith(b"\r\n\r\n2")
    refusing = Wire(answers_at_once)
    await refusing.sends((POST % 2).replace(b"host", b"expect: 100-continue\r\nhost"))
    assert b"100 Continue" not in refusing.answer


async def test_a_request_to_change_the_protocol_is_answered_in_this_one() -> None:
    """As curl asks for HTTP/2; then the connection is used on."""
    wire = Wire(answers_at_once)
    fields = b"connection: upgrade\r\nupgrade: h2c\r\n\r\n"
    await wire.sends(GET[:-2] + fields)
    await wire.sends(GET[:-2] + fields)
    await wire.sends(GET)
    assert wire.answer == 3 * OK


async def test_an_early_answer_with_close_lingers_and_takes_no_more() -> None:
    wire = Wire(answering(CLOSE, {"body": b"ok"}))
    await wire.sends(POST % (2 * MIB) + b"x" * 1000)
    assert wire.transport.has_eof
    assert not wire.transport.is_closing()
    for _ in range(64):
        await wire.sends(b"x" * READ_BYTES)
    assert not wire.transport.is_reading_paused
    assert wire.answer.endswith(b"ok")
    await wire.time_passes(LINGER_SECONDS)
    assert wire.transport.aborts


# The end of the server


@pytest.mark.parametrize("data", [b"", GET])
async def test_at_the_end_of_the_server_who_runs_nothing_has_a_moment(data: bytes) -> None:
    wire = Wire(answers_at_once)
    await wire.sends(data)
    wire.registry.draining = True
    wire.connection.shutdown()
    assert not wire.transport.is_closing()
    await wire.time_passes(PARTING_SECONDS)
    assert wire.transport.has_eof
    answer = wire.answer
    await wire.sends(GET)  # too late, and no reset
    assert wire.answer == answer
    assert not wire.transport.is_closing()
    await wire.time_passes(GRACE_SECONDS)
    assert wire.transport.aborts  # its client does not close: it holds up no other


@pytest.mark.parametrize("data", [b"", GET])
async def test_at_the_end_of_the_server_what_is_on_its_way_is_answered(data: bytes) -> None:
    wire = Wire(answers_at_once)
    await wire.sends(data)
    wire.registry.draining = True
    wire.connection.shutdown()
    await wire.sends(GET)
    assert wire.answer.count(b"HTTP/1.1 200 ") == 1 + bool(data)
    assert wire.answer.count(b"connection: close") == 1
    assert wire.transport.is_closed


async def test_at_the_end_of_the_server_half_a_head_has_a_second() -> None:
    wire = Wire(reads_nothing)
    await wire.sends(GET[:9])
    wire.registry.draining = True
    wire.connection.shutdown()
    await wire.time_passes(PARTING_SECONDS)
    assert not wire.transport.has_eof
    await wire.time_passes(GRACE_SECONDS)
    wire.refused(408, "header")


async def test_at_the_end_of_the_server_who_runs_answers_and_is_closed() -> None:
    wire = Wire(reads_all)
    await wire.sends(POST % 2)
    wire.connection.shutdown()
    assert not wire.transport.is_closing()
    await wire.sends(b"xy")
    assert wire.answer.endswith(b"\r\n\r\n2")
    assert b"connection: close" in wire.answer
    assert wire.transport.is_closed


async def test_who_lingers_at_the_end_of_the_server_lingers_a_second() -> None:
    wire = Wire(answers_at_once, Registry(LIMITS))
    await wire.sends(b"nonsense\r\n\r\n")
    wire.registry.draining = True
    wire.connection.shutdown()
    assert not wire.transport.is_closing()
    await wire.time_passes(GRACE_SECONDS)
    assert wire.transport.aborts


# Bodies in chunks: what is wrong with one, and what stands behind one

BAD_CHUNKS = {
    b"zz\r\n": 400,
    b"2\r\nokzz\r\n": 400,
    b"2\r\nok\r\n0\r\nno field\r\n\r\n": 400,
    b"0\r\na: b\nc: d\r\n\r\n": 400,
    b"2;" + b"x" * HEADER_BYTES + b"\r\nok\r\n": 431,
    b"0\r\n" + b"a:\r\n" * HEADER_BYTES + b"\r\n": 431,
}


@over("chunks, status", BAD_CHUNKS.items())
async def test_a_chunk_that_is_none_is_refused_before_an_answer_has_started(
    chunks: bytes, status: int
) -> None:
    wire = Wire(reads_all)
    await wire.sends(CHUNKED + chunks)
    await wire.settled()
    wire.refused(status, "chunks" if status == 431 else "not an HTTP request")
    assert wire.answer.count(b"HTTP/1.1") == 1


@over("chunks", BAD_CHUNKS)
async def test_whoever_reads_a_body_that_is_none_has_no_client_that_left(chunks: bytes) -> None:
    errors: list[Exception] = []

    async def reads(client: AsgiClient) -> None:
        try:
            while await client.part():
                pass
        except (InvalidRequestError, DisconnectedError) as exc:
            errors.append(exc)

    wire = Wire(with_client(reads))
    await wire.sends(CHUNKED)
    await wire.sends(chunks)
    await wire.settled()
    assert [type(exc) for exc in errors] == [InvalidRequestError]


@over("chunks", BAD_CHUNKS)
async def test_an_application_does_not_see_the_answer_that_its_client_got_instead(
    chunks: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    """So an error that it meets then is one of a client that left, and not of the application."""
    started: list[bool] = []

    async def answer(client: AsgiClient) -> None:
        await asyncio.sleep(0)
        started.append(client.is_begun)
        client.start(403, [(b"content-length", b"0")])
        await client.send(b"")

    wire = Wire(with_client(answer))
    wire.connection.data_received(CHUNKED)
    await asyncio.sleep(0)
    await wire.sends(chunks)
    assert started == [False]
    assert wire.answer.count(b"HTTP/1.1") == 1
    assert not caplog.records


@over("chunks, status", BAD_CHUNKS.items())
async def test_a_chunk_that_is_none_after_an_answer_ends_the_connection_without_another(
    chunks: bytes, status: int
) -> None:
    wire = Wire(answers_at_once)
    await wire.sends(CHUNKED)
    await wire.sends(chunks + GET)
    assert wire.answer == OK
    assert wire.transport.has_eof
    await wire.time_passes(LINGER_SECONDS)
    assert wire.transport.aborts


@over("trailer", TRAILERS)
@over("app", [answers_at_once, reads_all])
async def test_fields_after_a_body_say_nothing_of_the_connection(
    app: Application, trailer: bytes
) -> None:
    for chunks in ([CHUNKED, b"1\r\nx\r\n0\r\n" + trailer, b"\r\n", GET, GET], None):
        wire = Wire(app)
        await wire.sends(CHUNKED + b"1\r\nx\r\n0\r\n" + trailer + b"\r\n" + GET + GET)
        for chunk in chunks or ():
            await wire.sends(chunk)
        await wire.settled()
        assert wire.answer.count(b"HTTP/1.1 200") == (6 if chunks else 3)
        assert wire.answer.count(b"HTTP/1.1") == wire.answer.count(b"200 OK")
        assert not wire.transport.is_closing()


@given(st.integers(0, 1 << 40))
@examples(few=20, many=4000)
def test_no_request_has_two_answers(seed: int) -> None:
    answers_fuzzer.run(seed)


@over("method, has_body", [(b"HEAD", False), (b"GET", True)])
async def test_an_error_for_a_request_has_the_form_for_its_method(
    method: bytes, has_body: bool
) -> None:
    async def fails(scope: Scope, receive: Receive, send: Send) -> None:
        raise ValueError("as it happens")

    wire = Wire(fails)
    await wire.sends(GET.replace(b"GET", method))
    head, body = wire.answer.split(b"\r\n\r\n", 1)
    assert head.startswith(b"HTTP/1.1 500")
    assert bool(body) == has_body
