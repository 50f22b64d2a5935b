"""Infer requests before they begin: by when they have to be answered, and what is refused unread."""

import asyncio
import contextlib
import json
import math
import time
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from server.errors import BusyError, LateError, NotServingError
from server.protocol import http_request
from server.protocol.infer import InferReception
from server.protocol.serving import Inference
from server.requests.exchange import Exchange
from server.scheduling.line import Line
from server.transport.http1 import Head
from server.transport.intake import PAUSE_SECONDS, Refused
from tests.examples import over
from tests.server.requests.test_exchange import Client
from tests.server.support import Connection, ServiceUnderTest, inputs_for, request, settled, until

pytestmark = pytest.mark.asyncio(loop_scope="module")

TINY = json.dumps(request(inputs_for("tiny"))).encode()

# By when a request has to be answered


@dataclass
class Came:
    """A request as an intake has it; ``age``: seconds since its first byte came."""

    body: bytes = TINY
    path: str = "/v2/models/tiny/infer"
    method: str = "POST"
    age: float = 0.0
    headers: tuple[tuple[bytes, bytes], ...] = ()
    declared_bytes: int = 0
    expected: Any = field(default=None, init=False)

    def __post_init__(self) -> None:
        self.arrived_at = self.answerable_at = time.monotonic() - self.age
        self.head = Head(
            *(self.method, "1.1", self.path, self.path.encode(), b"", list(self.headers)),
            keeps=True,
            expects=False,
        )

    def begin(self) -> None: ...

    def refuse(self, answer: Refused) -> None: ...


def hurried(microseconds: int) -> bytes:
    return json.dumps(request(inputs_for("tiny"), parameters={"timeout": microseconds})).encode()


async def test_a_deadline_counts_from_the_first_byte(shared: ServiceUnderTest) -> None:
    reception, limit = (
        InferReception(shared.inside),
        shared.inside.settings.request_timeout,
    )
    for came, seconds in (
        (Came(hurried(150_000)), 0.15),
        (Came(hurried(150_000), age=9.0), 0.15),
        (Came(hurried(0)), limit),
        (Came(TINY), limit),
        (Came(hurried(10**15 - 1)), limit),
        (Came(hurried(150_000)[:-2]), limit),  # the number may go on
        (Came(b'"timeout": 5}' + bytes(1 << 20)), 5e-6),
        (Came(bytes(1 << 20) + b'"timeout": 5}'), limit),
    ):
        deadline = reception.deadline(came, is_free=False)
        assert deadline == pytest.approx(came.arrived_at + seconds)
        shared.worker("tiny").line.came(came.expected)
        assert reception.deadline(came, is_free=True) == math.inf


@over(
    "came",
    [
        Came(path="/v2/health/live", method="GET"),
        Came(path="/v2/models/tiny/infer", method="GET"),
        Came(path="/v2/models/nobody/infer"),
        Came(path="/v2/models/tiny/versions/9/infer"),
        Came(path="/v2/models/tiny:classify"),
    ],
)
async def test_other_requests_wait_for_nobody(shared: ServiceUnderTest, came: Came) -> None:
    assert InferReception(shared.inside).deadline(came, is_free=False) is None


async def test_a_refusal_says_when_to_come_again_and_is_counted(shared: ServiceUnderTest) -> None:
    metric = "layerstream_requests_total"
    before = await shared.metric(metric, model="tiny", outcome="late") or 0
    came = Came(headers=((b"x-request-id", b"mine"),))
    answer = InferReception(shared.inside).refusal(came, LateError('no "time"', 2.5))
    headers = dict(answer.raw_headers)
    assert answer.status_code == 503
    assert headers[b"retry-after"] == b"3"
    assert headers[b"x-request-id"] == b"mine"
    assert isinstance(answer.content, bytes)
    assert headers[b"content-length"] == b"%d" % len(answer.content)
    assert json.loads(answer.content) == {"error": 'no "time"', "code": "late"}
    assert await shared.metric(metric, model="tiny", outcome="late") == before + 1


async def test_what_the_line_would_refuse_is_refused_unread(
    shared: ServiceUnderTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = shared.worker("tiny")
    line = worker.line

    def full(deadline: float | None = None, *_: object) -> None:
        raise BusyError("full")

    monkeypatch.setattr(line, "check_room", full)
    monkeypatch.setattr(type(line), "idle", False)
    with pytest.raises(BusyError):
        InferReception(shared.inside).deadline(Came(), is_free=True)

    def closed(deadline: float | None = None, *_: object) -> None:
        raise NotServingError("closed")

    monkeypatch.setattr(line, "check_room", closed)
    assert InferReception(shared.inside).deadline(Came(), is_free=True) is None


@pytest.mark.parametrize(("waited", "status"), [(4.0, 200), (21.0, 503)])
async def test_what_waited_in_a_socket_counts(
    shared: ServiceUnderTest, waited: float, status: int
) -> None:
    """It is refused before anything is computed, and not with 504 when its client is gone."""
    arrived_at = time.monotonic() - waited
    client = Connection("/v2/models/tiny/infer", hurried(20_000_000), arrived_at=arrived_at)
    await client.call(shared.asgi)
    assert client.status == status, client.answer


@over(
    "limit, answerable, pauses",
    [
        (20.0, 0.0, [PAUSE_SECONDS]),
        (20.0, -PAUSE_SECONDS / 2, [PAUSE_SECONDS / 2]),
        (20.0, -9.0, [0.0]),
        (20.0, None, []),
        (30.0, 0.0, []),
    ],
)
async def test_also_what_is_refused_when_it_was_read_is_refused_after_a_pause(
    shared: ServiceUnderTest, limit: float, answerable: float | None, pauses: list[float]
) -> None:
    now, slept_seconds, slept = time.monotonic(), list[float](), asyncio.sleep
    task = asyncio.current_task()

    async def sleep(seconds: float) -> None:
        if asyncio.current_task() is task:
            slept_seconds.append(seconds)
        await slept(0.0 if asyncio.current_task() is task else seconds)

    body = hurried(round(limit * 1e6))
    answerable_at = None if answerable is None else now + answerable
    client = Connection(
        "/v2/models/tiny/infer", body, arrived_at=now - 21.0, answerable_at=answerable_at
    )
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(asyncio, "sleep", sleep)
        # The clock by which the pause is calculated stands still; deadlines go by the real one.
        patched.setattr(http_request, "time", SimpleNamespace(monotonic=lambda: now))
        await client.call(shared.asgi)
    assert client.status == (503 if limit == 20.0 else 200)
    assert slept_seconds == pytest.approx(pauses)


async def test_a_refusal_that_is_cancelled_in_its_pause_says_nothing(
    shared: ServiceUnderTest,
) -> None:
    now = time.monotonic()
    client = Connection(
        "/v2/models/tiny/infer", hurried(20_000_000), arrived_at=now - 21.0, answerable_at=now + 9.0
    )
    call = asyncio.create_task(client.call(shared.asgi))
    await settled()
    await until(lambda: not len(shared.inside.exchanges))
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert client.status == 0
    assert not len(shared.inside.exchanges)


@over(
    "passed, rest, is_contended, is_late",
    [
        (5.0, 1.0, True, False),
        (5.0, 16.0, True, True),
        (5.0, 16.0, False, False),  # nobody else wants its time
        (1.0, 1e9, True, False),  # its first parts say nothing of its pace
    ],
)
async def test_what_comes_too_slowly_is_refused_before_it_is_there(
    shared: ServiceUnderTest,
    monkeypatch: pytest.MonkeyPatch,
    passed: float,
    rest: float,
    is_contended: bool,
    is_late: bool,
) -> None:
    monkeypatch.setattr(Exchange, "rest_seconds", rest)
    monkeypatch.setattr(Line, "is_contended", is_contended)
    with shared.inside.exchanges.exchange(Client(100_000)) as exchange:
        exchange.arrived_at -= passed
        async with Inference(shared.inside, exchange, "tiny", None) as model:
            model.check(20.0)
            with pytest.raises(LateError) if is_late else contextlib.nullcontext():
                model.check(20.0)


@over(
    "passed, is_expected, is_slow, noted",
    [
        (5.0, True, False, [True]),
        (3.0, True, False, [False]),
        (5.0, True, True, [False]),  # its client has itself to blame
        (5.0, False, False, []),
    ],
)
async def test_a_refusal_after_a_fifth_of_the_time_is_a_late_one(
    shared: ServiceUnderTest,
    monkeypatch: pytest.MonkeyPatch,
    passed: float,
    is_expected: bool,
    is_slow: bool,
    noted: list[bool],
) -> None:
    monkeypatch.setattr(Exchange, "is_slow", is_slow)
    refusals: list[bool] = []
    monkeypatch.setattr(Line, "note_refusal", lambda line, is_late: refusals.append(is_late))
    client = Client(100_000)
    worker = shared.inside.repository.models.find("tiny").worker
    assert worker is not None
    if is_expected:
        monkeypatch.setattr(client, "expected", worker.expect(20.0, 100_000))
    with (
        shared.inside.exchanges.exchange(client) as exchange,
        contextlib.suppress(LateError),
    ):
        exchange.arrived_at -= passed
        async with Inference(shared.inside, exchange, "tiny", None) as model:
            model.check(20.0)
            raise LateError("it would be late", 1.0)
    assert refusals == noted
