"""What only a real connection shows: a real server on a free port of this machine."""

import asyncio
import contextlib
import json
import signal
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest
import uvicorn

from server.faults import Outcome
from server.metrics.requests import RequestMetrics
from server.operation.service_manager import Notifier
from server.serve import serve
from server.service import Service
from server.transport.listener import PortError, listen
from tests.examples import over
from tests.server.conftest import SettingsFactory, service_threads
from tests.server.support import (
    LIMIT_SECONDS,
    Faults,
    Gate,
    Packs,
    arrays,
    close,
    error,
    inputs_for,
    request,
)

TINY = inputs_for("tiny")
BODY = json.dumps(request(TINY)).encode()
Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@dataclass
class Real:
    """A server with a port; "tiny" waits at a gate until it is opened."""

    port: int
    task: asyncio.Task[None]
    client: httpx.AsyncClient
    gate: Gate
    kernels: list[None]
    outcomes: asyncio.Queue[str]
    arrivals: asyncio.Semaphore
    signals: list[int] = field(default_factory=list)

    def infer(self) -> asyncio.Task[httpx.Response]:
        return asyncio.create_task(self.client.post("/v2/models/tiny/infer", content=BODY))

    async def connect(self, head: str, body: bytes = b"") -> Streams:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        writer.write(f"{head}\r\nHost: localhost\r\n\r\n".encode() + body)
        await writer.drain()
        return reader, writer

    async def raw_infer(self) -> Streams:
        head = f"POST /v2/models/tiny/infer HTTP/1.1\r\nContent-Length: {len(BODY)}"
        return await self.connect(head, BODY)


@pytest.fixture
async def real(
    settings: SettingsFactory,
    faults: Faults,
    arrivals: asyncio.Semaphore,
    monkeypatch: pytest.MonkeyPatch,
) -> AsyncIterator[Real]:
    ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    monkeypatch.setattr(Notifier, "ready", lambda self, status: ready.set_result(None))
    listeners: list[socket.socket] = []

    def listened(host: str, port: int) -> socket.socket:
        listeners.append(listen(host, port))
        return listeners[-1]

    monkeypatch.setattr("server.preflight.listen", listened)
    ended: asyncio.Queue[str] = asyncio.Queue()
    count = RequestMetrics.end

    def end(self: RequestMetrics, model: str, version: str, outcome: Outcome, *more: Any) -> None:
        count(self, model, version, outcome, *more)
        ended.put_nowait(outcome)

    monkeypatch.setattr(RequestMetrics, "end", end)
    gate = Gate()
    kernels: list[None] = []

    def kernel() -> None:
        gate.hold()
        kernels.append(None)

    faults.kernel = kernel
    signals: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, frame: signals.append(number))
    task = asyncio.create_task(serve(settings(port=0, max_body=1 << 20)))
    async with asyncio.timeout(2 * LIMIT_SECONDS):
        await asyncio.wait({task, ready}, return_when=asyncio.FIRST_COMPLETED)
        port = listeners[0].getsockname()[1]
        base = f"http://127.0.0.1:{port}"
        async with httpx.AsyncClient(base_url=base, timeout=None, trust_env=False) as client:
            yield Real(port, task, client, gate, kernels, ended, arrivals, signals)
            gate.open()
        if not task.done():
            signal.raise_signal(signal.SIGTERM)
        await task
    signal.signal(signal.SIGTERM, before)


def announced(closed: asyncio.Event) -> Callable[[uvicorn.Server], Awaitable[None]]:
    """What the server does once its port is closed, and says so."""
    wait = uvicorn.Server._wait_tasks_to_complete

    async def announce(self: uvicorn.Server) -> None:
        closed.set()
        await wait(self)

    return announce


async def test_a_request_over_a_socket(real: Real, packs: Packs) -> None:
    real.gate.open()
    response = await real.infer()
    close(arrays(response), packs.expected("tiny", TINY))
    assert "server" not in response.headers


@pytest.mark.parametrize("where", ["running", "waiting"])
async def test_a_closed_connection_cancels_its_own_work(
    real: Real, packs: Packs, where: str
) -> None:
    tasks = []
    if where == "waiting":
        tasks.append(real.infer())
        await real.arrivals.acquire()
        await real.gate.reached()
    _, writer = await real.raw_infer()
    await real.arrivals.acquire()
    await real.gate.reached()
    tasks.append(real.infer())
    await real.arrivals.acquire()
    writer.close()
    assert await real.outcomes.get() == "cancelled"
    real.gate.open()
    for task in tasks:
        close(arrays(await task), packs.expected("tiny", TINY))
    # A request that runs ends before its next kernel; one that waits never starts.
    started, done = (1 if where == "running" else 0), len(real.kernels)
    await real.infer()
    pieces = len(real.kernels) - done
    assert done == started + len(tasks) * pieces


async def test_sigterm_drains(real: Real, packs: Packs, faults: Faults) -> None:
    accepted = [real.infer() for _ in range(3)]
    await real.gate.reached()
    for _ in accepted:
        await real.arrivals.acquire()
    stopping = asyncio.Event()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(uvicorn.Server, "_wait_tasks_to_complete", announced(stopping))
        signal.raise_signal(signal.SIGTERM)
        await stopping.wait()
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("127.0.0.1", real.port)
        assert not real.task.done()
        real.gate.open()
        for task in accepted:
            close(arrays(await task), packs.expected("tiny", TINY))
        await real.task
    assert real.signals == []
    assert service_threads() == []
    assert all(reader.closed for reader in faults.readers.values())


async def receive(reader: asyncio.StreamReader) -> httpx.Response:
    head = (await reader.readuntil(b"\r\n\r\n")).decode()
    status, *lines = head.split("\r\n")
    headers = dict(line.split(": ", 1) for line in lines if line)
    body = await reader.readexactly(int(headers["content-length"]))
    return httpx.Response(int(status.split()[1]), headers=headers, content=body)


async def test_a_declared_body_over_the_limit_is_not_waited_for(real: Real) -> None:
    real.gate.open()
    reader, writer = await real.connect(
        f"POST /v2/models/tiny/infer HTTP/1.1\r\nContent-Length: {10**12}"
    )
    response = await receive(reader)
    error(response, 413, str(1 << 20))
    assert response.headers["connection"] == "close"
    assert await reader.read() == b""
    writer.close()
    assert (await real.infer()).status_code == 200


@pytest.mark.parametrize("path", ["/v2/models/tiny/infer", "/v2/models/tiny:classify"])
async def test_a_streamed_body_over_the_limit_is_cut_off(real: Real, path: str) -> None:
    real.gate.open()
    reader, writer = await real.connect(f"POST {path} HTTP/1.1\r\nTransfer-Encoding: chunked")
    spaces = b" " * (1 << 16)
    for chunk in (b'{"inputs": [{"data": [', *[spaces] * 16):
        writer.write(f"{len(chunk):x}\r\n".encode() + chunk + b"\r\n")
    await writer.drain()
    error(await receive(reader), 413, str(1 << 20))
    writer.close()
    assert (await real.infer()).status_code == 200


async def test_what_is_not_http_is_answered_and_forgotten(real: Real) -> None:
    real.gate.open()
    for head in ("nonsense", "GET /v2 HTTP/9.9\r\nContent-Length: x", "POST /v2 HTTP/1.1\r\n: x"):
        reader, writer = await real.connect(head)
        assert (await reader.readline()).startswith(b"HTTP/1.1 400 ")
        writer.close()
    assert (await real.infer()).status_code == 200


async def test_a_client_that_leaves_in_the_middle_of_its_body(real: Real) -> None:
    real.gate.open()
    for path in ("/v2/models/tiny/infer", "/v2/models/tiny:classify"):
        _, writer = await real.connect(
            f"POST {path} HTTP/1.1\r\nContent-Length: {len(BODY)}", BODY[:100]
        )
        writer.close()
        await writer.wait_closed()
    assert (await real.infer()).status_code == 200


async def test_a_port_in_use(settings: SettingsFactory) -> None:
    with listen("127.0.0.1", 0) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(PortError, match=f"127.0.0.1:{port}: Address already in use"):
            await serve(settings(port=port))
    assert service_threads() == []


@over("host", ["192.0.2.1", "not a host", ""])
def test_an_address_that_is_not_ours(host: str) -> None:
    if host:
        with pytest.raises(PortError, match="cannot listen on"):
            listen(host, 0)
    else:
        listen(host, 0).close()


async def test_a_start_that_fails_leaves_nothing(
    settings: SettingsFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fails(self: Service) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(Service, "loaded", fails)
    with contextlib.suppress(ZeroDivisionError):
        await serve(settings(port=0))
    assert service_threads() == []
