"""Infer past the router: what it answers is what the router would have answered."""

import json
import math
import time
from dataclasses import dataclass
from typing import Any

import httpx
import pytest

from benchmarks.load.messages import ResponseReader
from server.errors import BusyError, LateError, NotServingError
from server.protocol.front import Front, InferReception
from tests.server.support import Connection, Service, inputs_for, request

pytestmark = pytest.mark.asyncio(loop_scope="module")

TINY = json.dumps(request(inputs_for("tiny"))).encode()
PAIR = json.dumps(request(inputs_for("pair"), id="7", outputs=[{"name": "best"}])).encode()

REQUESTS: dict[str, tuple[str, str, bytes]] = {
    "an answer": ("POST", "/v2/models/tiny/infer", TINY),
    "an answer with an id": ("POST", "/v2/models/pair/infer", PAIR),
    "a version": ("POST", "/v2/models/tiny/versions/1/infer", TINY),
    "no such version": ("POST", "/v2/models/tiny/versions/9/infer", TINY),
    "no such model": ("POST", "/v2/models/nobody/infer", TINY),
    "a model with a space": ("POST", "/v2/models/a%20b/infer", TINY),
    "a model with a slash": ("POST", "/v2/models/a%2Fb/infer", TINY),
    "a model with a line break": ("POST", "/v2/models/a%0Ab/infer", TINY),
    "no name": ("POST", "/v2/models//infer", TINY),
    "a slash behind": ("POST", "/v2/models/tiny/infer/", TINY),
    "a line break behind": ("POST", "/v2/models/tiny/infer%0A", TINY),
    "in capitals": ("POST", "/v2/models/tiny/INFER", TINY),
    "a query": ("POST", "/v2/models/tiny/infer?x=1", TINY),
    "no body": ("POST", "/v2/models/tiny/infer", b""),
    "a number": ("POST", "/v2/models/tiny/infer", b"1"),
    "a string": ("POST", "/v2/models/tiny/infer", b'"x"'),
    "half a body": ("POST", "/v2/models/tiny/infer", TINY[:-9]),
    "another model's": ("POST", "/v2/models/tiny/infer", PAIR),
    "GET": ("GET", "/v2/models/tiny/infer", b""),
    "HEAD": ("HEAD", "/v2/models/tiny/infer", b""),
    "OPTIONS": ("OPTIONS", "/v2/models/tiny/infer", b""),
    "PUT": ("PUT", "/v2/models/tiny/infer", TINY),
    "DELETE of nobody": ("DELETE", "/v2/models/nobody/infer", b""),
}


def shape(response: httpx.Response) -> Any:
    """What must be the same: not the id of the request."""
    fields = {name: value for name, value in response.headers.items() if name != "x-request-id"}
    return response.status_code, fields, response.content


@pytest.mark.parametrize("name", REQUESTS)
async def test_the_front_answers_as_the_router_does(
    shared: Service, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    method, path, body = REQUESTS[name]

    async def ask() -> Any:
        return shape(await shared.client.request(method, path, content=body))

    by_front = await ask()

    async def past(self: Front, scope: Any, receive: Any, send: Any) -> None:
        await self._others(scope, receive, send)

    monkeypatch.setattr(Front, "__call__", past)
    assert by_front == await ask()
    assert by_front[0] < 500


async def test_both_ways_count_the_same_outcomes(
    shared: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def counts() -> dict[str, float | None]:
        for body in (TINY, b"{", PAIR):
            await shared.client.post("/v2/models/tiny/infer", content=body)
        return {
            outcome: await shared.metric(
                "layerstream_requests_total", model="tiny", outcome=outcome
            )
            for outcome in ("ok", "invalid", "failed")
        }

    async def past(self: Front, scope: Any, receive: Any, send: Any) -> None:
        await self._others(scope, receive, send)

    first, second = await counts(), await counts()
    monkeypatch.setattr(Front, "__call__", past)
    third = await counts()
    steps = [
        {name: (after[name] or 0) - (before[name] or 0) for name in after}
        for before, after in ((first, second), (second, third))
    ]
    assert steps[0] == steps[1] == {"ok": 1, "invalid": 2, "failed": 0}


# By when a request has to be answered


@dataclass
class Came:
    """A request as an intake has it; ``age``: seconds since its first byte came."""

    body: bytes = TINY
    path: str = "/v2/models/tiny/infer"
    method: str = "POST"
    is_whole: bool = True
    age: float = 0.0
    headers: tuple[tuple[bytes, bytes], ...] = ()

    def __post_init__(self) -> None:
        self.at = time.monotonic() - self.age
        self.scope = {"method": self.method, "path": self.path, "headers": self.headers}

    def begin(self) -> None: ...

    def refuse(self, answer: bytes) -> None: ...


def hurried(microseconds: int) -> bytes:
    return json.dumps(request(inputs_for("tiny"), parameters={"timeout": microseconds})).encode()


async def test_a_deadline_counts_from_the_first_byte(shared: Service) -> None:
    reception, limit = InferReception(shared.context), shared.context.settings.request_timeout
    for came, seconds in (
        (Came(hurried(150_000)), 0.15),
        (Came(hurried(150_000), age=9.0), 0.15),
        (Came(hurried(0)), limit),
        (Came(TINY), limit),
        (Came(hurried(10**15 - 1)), limit),
        (Came(hurried(150_000)[:-9], is_whole=False), limit),  # it may say otherwise yet
        (Came(b'"timeout": 5'), 5e-6),
    ):
        deadline = reception.deadline(came, is_free=False)
        assert deadline == pytest.approx(came.at + seconds)
        assert reception.deadline(came, is_free=True) == math.inf


@pytest.mark.parametrize(
    "came",
    [
        Came(path="/v2/health/live", method="GET"),
        Came(path="/v2/models/tiny/infer", method="GET"),
        Came(path="/v2/models/nobody/infer"),
        Came(path="/v2/models/tiny/versions/9/infer"),
        Came(path="/v2/models/tiny:classify"),
    ],
)
async def test_other_requests_wait_for_nobody(shared: Service, came: Came) -> None:
    assert InferReception(shared.context).deadline(came, is_free=False) is None


async def test_a_refusal_says_when_to_come_again_and_is_counted(shared: Service) -> None:
    metric = "layerstream_requests_total"
    before = await shared.metric(metric, model="tiny", outcome="late") or 0
    came = Came(headers=((b"x-request-id", b"mine"),))
    answer = InferReception(shared.context).refusal(came, LateError('no "time"', 2.5))
    response = ResponseReader().feed(answer)
    assert response is not None
    assert response.status == 503
    assert response.header("retry-after") == "3"
    assert response.header("x-request-id") == "mine"
    assert response.json() == {"error": 'no "time"'}
    assert await shared.metric(metric, model="tiny", outcome="late") == before + 1


async def test_what_the_line_would_refuse_is_refused_unread(
    shared: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = shared.worker("tiny")
    line = worker._line

    def full(deadline: float | None = None) -> None:
        raise BusyError("full")

    monkeypatch.setattr(line, "check_room", full)
    monkeypatch.setattr(type(line), "idle", False)
    with pytest.raises(BusyError):
        InferReception(shared.context).deadline(Came(), is_free=True)

    def closed(deadline: float | None = None) -> None:
        raise NotServingError("closed")

    monkeypatch.setattr(line, "check_room", closed)
    assert InferReception(shared.context).deadline(Came(), is_free=True) is None


@pytest.mark.parametrize(("waited", "status"), [(4.0, 200), (21.0, 503)])
async def test_what_waited_in_a_socket_counts(shared: Service, waited: float, status: int) -> None:
    """It is refused before anything is computed, and not with 504 when its client is gone."""
    arrived_at = time.monotonic() - waited
    client = Connection("/v2/models/tiny/infer", hurried(20_000_000), arrived_at=arrived_at)
    await client.call(shared.app)
    assert client.status == status, client.answer
