"""Infer past the router: what it answers is what the router would have answered."""

import json
from typing import Any

import httpx
import pytest

from server.protocol.front import Front
from tests.server.support import Service, inputs_for, request

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
