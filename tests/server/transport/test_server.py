"""The server from its start to its end, in this process and in one that gets signals."""

import asyncio
import contextlib
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest
import uvicorn

from server.transport.listener import listen
from server.transport.registry import Registry
from server.transport.server import Server
from tests.server.support import LIMIT_SECONDS, REQUEST_MEMORY, Packs, serving_port
from tests.server.transport.wire import LIMITS, answers_at_once

POST = b"POST /v2/models/tiny/infer HTTP/1.1\r\nhost: localhost\r\ncontent-length: 100\r\n\r\n{"


def make(
    listener: socket.socket,
    begin: Callable[[], Awaitable[None]],
    said: list[str],
    *,
    waits: bool = False,
) -> Server:
    return Server(
        uvicorn.Config(answers_at_once, log_config=None, ws="none", lifespan="off"),
        listener,
        Registry(LIMITS),
        begin=begin,
        stopping=lambda: said.append("stopping"),
        waits=waits,
    )


async def test_told_to_end_before_it_starts_it_ends() -> None:
    said: list[str] = []

    async def begin() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            said.append("cancelled")

    with listen("127.0.0.1", 0) as listener:
        stop = asyncio.Event()
        stop.set()
        await asyncio.wait_for(make(listener, begin, said).run_until(stop), LIMIT_SECONDS)
        assert listener.fileno() == -1
    assert said == ["stopping", "cancelled"]


async def test_requests_are_answered_while_it_begins_and_the_end_cancels_that() -> None:
    said: list[str] = []

    async def begin() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            said.append("cancelled")

    with listen("127.0.0.1", 0) as listener:
        port, stop = listener.getsockname()[1], asyncio.Event()
        server, tasks = make(listener, begin, said), asyncio.all_tasks()
        running = asyncio.create_task(server.run_until(stop))
        async with asyncio.timeout(LIMIT_SECONDS):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n")
            assert (await reader.readline()).startswith(b"HTTP/1.1 200")
            writer.close()
            stop.set()
            await running
        assert asyncio.all_tasks() == tasks, "none of the server is left"
    assert said == ["stopping", "cancelled"]


async def test_what_cannot_begin_ends_the_server_with_its_error() -> None:
    said: list[str] = []

    async def begin() -> None:
        raise ValueError("no model")

    with listen("127.0.0.1", 0) as listener, pytest.raises(ValueError, match="no model"):
        await asyncio.wait_for(
            make(listener, begin, said).run_until(asyncio.Event()), LIMIT_SECONDS
        )
    assert said == ["stopping"]


async def test_who_knocks_between_two_servers_is_answered_by_the_second() -> None:
    """The first cannot begin; another process holds the listener open, as systemd does."""
    said: list[str] = []
    begun = asyncio.Event()

    async def fails() -> None:
        await asyncio.sleep(0)
        raise ValueError("no model")

    async def begin() -> None:
        await begun.wait()

    async with asyncio.timeout(LIMIT_SECONDS):
        with listen("127.0.0.1", 0) as held:
            reader, writer = await asyncio.open_connection(*held.getsockname())
            writer.write(b"GET / HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")
            with pytest.raises(ValueError, match="no model"):
                await make(held.dup(), fails, said, waits=True).run_until(asyncio.Event())
            stop, server = asyncio.Event(), make(held.dup(), begin, said, waits=True)
            running = asyncio.create_task(server.run_until(stop))
            answer = asyncio.create_task(reader.read())
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(asyncio.shield(answer), 0.2)
            begun.set()
            assert (await answer).startswith(b"HTTP/1.1 200")
            writer.close()
            stop.set()
            await running


@contextlib.contextmanager
def process(packs: Packs) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """A server with "tiny" in a process of its own; its port."""
    flags = ("--model", "tiny", "--port", "0", "--budget", str(REQUEST_MEMORY + (64 << 20)))
    code = "from cli.process import main; main()"
    command = [sys.executable, "-c", code, "serve", "--repository", str(packs.repository), *flags]
    root = Path(__file__).parents[3]
    with subprocess.Popen(command, stderr=subprocess.PIPE, cwd=root) as server:
        try:
            yield server, serving_port(server)
        finally:
            server.kill()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("sent", "answer"), [(POST, b"HTTP/1.1 408"), (POST[:20], b""), (b"", b"")]
)
def test_sigterm_waits_for_no_client_that_stalls(packs: Packs, sent: bytes, answer: bytes) -> None:
    """Not even for one that holds its end open."""
    with process(packs) as (server, port), socket.create_connection(("127.0.0.1", port)) as client:
        client.sendall(sent)
        time.sleep(0.2)  # in another process: nothing says that the bytes have come
        began = time.monotonic()
        server.send_signal(signal.SIGTERM)
        client.settimeout(LIMIT_SECONDS)
        assert client.recv(1 << 16).startswith(answer)
        assert server.wait(LIMIT_SECONDS) in {0, -signal.SIGTERM}
        assert time.monotonic() - began < 4.0


@pytest.mark.slow
def test_a_second_signal_ends_it_at_once(packs: Packs) -> None:
    with process(packs) as (server, port), socket.create_connection(("127.0.0.1", port)) as client:
        client.sendall(POST)
        time.sleep(0.2)
        server.send_signal(signal.SIGTERM)
        server.send_signal(signal.SIGTERM)  # as GNU timeout does: it is one
        time.sleep(0.2)
        assert server.poll() is None
        began = time.monotonic()
        server.send_signal(signal.SIGTERM)
        assert server.wait(LIMIT_SECONDS) == -signal.SIGTERM
        assert time.monotonic() - began < 0.5
