"""The server from its start to its end, in this process and in one that gets signals."""

import asyncio
import contextlib
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import uvicorn

from server.transport.listener import listen
from server.transport.registry import Registry
from server.transport.server import Server
from tests.server.support import LIMIT_SECONDS, REQUEST_MEMORY, Packs, serving_port
from tests.server.transport.wire import LIMITS, answers_at_once

POST = b"POST /v2/models/tiny/infer HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\n\r\n{"


async def test_told_to_end_while_it_starts_it_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    config = uvicorn.Config(answers_at_once, log_config=None, ws="none", lifespan="off")
    with listen("127.0.0.1", 0) as listener:
        server = Server(
            config,
            listener,
            Registry(LIMITS),
            ready=lambda: said.append("ready"),
            stopping=lambda: said.append("stopping"),
            sweep=lambda now: None,
        )
        server.should_exit = True  # what the handler of a signal sets
        await asyncio.wait_for(server.serve(), LIMIT_SECONDS)
        assert listener.fileno() == -1
    assert said == ["stopping"]


@contextlib.contextmanager
def process(packs: Packs) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """A server with "tiny" in a process of its own; its port."""
    flags = ("--model", "tiny", "--port", "0", "--budget", str(REQUEST_MEMORY + (64 << 20)))
    code = "from server.cli import main; main()"
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
        time.sleep(0.2)
        began = time.monotonic()
        server.send_signal(signal.SIGTERM)
        assert server.wait(LIMIT_SECONDS) == -signal.SIGTERM
        assert time.monotonic() - began < 0.5
