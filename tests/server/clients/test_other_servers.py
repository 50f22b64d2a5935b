"""Servers of others run the application, over loopback: all works that does not need our own."""

import asyncio
import contextlib
import json
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from typing import Any, cast

import httpx
import pytest
import uvicorn
from starlette.types import Receive, Scope, Send

from server.requests.exchange import FREE_BYTES
from tests.server.asgi import Asgi
from tests.server.support import (
    LIMIT_SECONDS,
    ServiceUnderTest,
    error,
    inputs_for,
    picture,
    request,
    until,
)

pytestmark = pytest.mark.asyncio(loop_scope="module")

INFER = "/v2/models/tiny/infer"
Serving = Callable[[Asgi], AbstractAsyncContextManager[int]]


def _without_lifespan(app: Asgi) -> Asgi:
    """Return ``app`` for a server that would enter it, which was entered."""

    async def entered(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            raise RuntimeError("its lifespan runs")
        await app(scope, receive, send)

    return entered


def _listener() -> socket.socket:
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    return listener


def _uvicorn(protocol: Any) -> Serving:
    @contextlib.asynccontextmanager
    async def serve(app: Asgi) -> AsyncIterator[int]:
        config = uvicorn.Config(
            cast(Any, app), http=protocol, ws="none", lifespan="off", log_config=None
        )
        server, listener = uvicorn.Server(config), _listener()
        config.load()
        server.lifespan = config.lifespan_class(config)
        await server.startup(sockets=[listener])
        try:
            yield listener.getsockname()[1]
        finally:
            await server.shutdown(sockets=[listener])

    return serve


@contextlib.asynccontextmanager
async def _hypercorn(app: Asgi) -> AsyncIterator[int]:
    from hypercorn.asyncio import serve
    from hypercorn.config import Config

    config, listener, end = Config(), _listener(), asyncio.Event()
    port = listener.getsockname()[1]
    config.bind = [f"fd://{listener.detach()}"]
    entered = cast(Any, _without_lifespan(app))
    running = asyncio.create_task(serve(entered, config, shutdown_trigger=end.wait))
    try:
        yield port
    finally:
        end.set()
        await running


@contextlib.asynccontextmanager
async def _granian(app: Asgi) -> AsyncIterator[int]:
    from granian.constants import Interfaces
    from granian.server.embed import Server

    with _listener() as listener:
        port = listener.getsockname()[1]
    server = Server(app, "127.0.0.1", port, interface=Interfaces.ASGINL, log_enabled=False)
    running = asyncio.create_task(server.serve())
    try:
        yield port
    finally:
        cast(Any, server).stop()
        await running


SERVERS = [
    pytest.param(_uvicorn("httptools"), id="uvicorn-httptools"),
    pytest.param(_uvicorn("h11"), id="uvicorn-h11", marks=pytest.mark.slow),
    pytest.param(_hypercorn, id="hypercorn", marks=pytest.mark.slow),
    pytest.param(_granian, id="granian", marks=pytest.mark.slow),
]


@contextlib.asynccontextmanager
async def client_of(serving: Serving, app: Asgi) -> AsyncIterator[httpx.AsyncClient]:
    async with (
        serving(app) as port,
        httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=LIMIT_SECONDS) as client,
    ):
        async with asyncio.timeout(LIMIT_SECONDS):
            while True:
                try:
                    await client.get("/v2/health/live")
                except httpx.ConnectError:
                    await asyncio.sleep(0.01)  # it opens its port in a thread
                else:
                    break
        yield client


@pytest.mark.parametrize("serving", SERVERS)
async def test_requests_are_answered(shared: ServiceUnderTest, serving: Serving) -> None:
    body = json.dumps(request(inputs_for("tiny"))).encode()

    async def parts() -> AsyncIterator[bytes]:
        for start in range(0, len(body), 1000):
            yield body[start : start + 1000]

    async with client_of(serving, shared.app) as client:
        expected = (await shared.client.post(INFER, content=body)).json()["outputs"]
        for content in (body, body + b" " * (4 * FREE_BYTES), parts()):
            answer = await client.post(INFER, content=content)
            assert answer.status_code == 200, answer.text
            assert answer.json()["outputs"] == expected
        url, kind = "/v2/models/tiny:classify?top_k=2", {"content-type": "image/png"}
        answer = await client.post(url, content=picture(), headers=kind)
        assert len(answer.json()["predictions"]) == 2
        page = await client.get("/")
        assert int(page.headers["content-length"]) == len(page.content)
        head = await client.head("/v2")
        assert head.status_code == 200
        assert head.content == b""
    assert shared.inside.request_memory.used_bytes == 0


@pytest.mark.parametrize("serving", SERVERS)
async def test_a_refusal_reads_no_body(shared: ServiceUnderTest, serving: Serving) -> None:
    async with client_of(serving, shared.app) as client:
        error(await client.post("/v2/models/nobody/infer", json={}), 404, "nobody")
        error(await client.post(INFER, content=b"{"), 400)
        error(await client.put("/v2"), 405)
        port = client.base_url.port
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        length = shared.inside.settings.max_body + 1
        head = f"POST {INFER} HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: {length}\r\n\r\n"
        writer.write(head.encode())
        assert b" 413 " in await asyncio.wait_for(reader.readline(), LIMIT_SECONDS)
        writer.close()
    assert len(shared.inside.exchanges) == 0


@pytest.mark.parametrize("serving", SERVERS)
async def test_a_client_that_leaves_is_noticed(shared: ServiceUnderTest, serving: Serving) -> None:
    watchers = shared.app.state.watchers
    async with client_of(serving, shared.app) as client:
        async with client.stream("GET", "/page/events") as answer:
            assert answer.status_code == 200
            await anext(answer.aiter_raw())
            assert watchers._count == 1
        await until(lambda: watchers._count == 0)
