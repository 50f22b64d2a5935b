"""A server whose log is not read: it answers, counts the lines that it drops, says how many, and ends."""

import contextlib
import http.client
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.examples import over
from tests.server.support import LIMIT_SECONDS, REQUEST_MEMORY, Packs, samples, serving_port

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[3]
#: Longer than a pipe and the queue before it, as the log has them.
REQUESTS = 4000


@contextlib.contextmanager
def client_of(server: "subprocess.Popen[bytes]") -> Iterator[http.client.HTTPConnection]:
    """A connection to ``server``, which is killed at the end if it still runs."""
    try:
        port = serving_port(server)
        with contextlib.closing(
            http.client.HTTPConnection("127.0.0.1", port, timeout=30)
        ) as client:
            yield client
    finally:
        server.kill()


def server_of(packs: Packs, *flags: str) -> "subprocess.Popen[bytes]":
    options = (
        "--model",
        "tiny",
        "--port",
        "0",
        "--budget",
        str(REQUEST_MEMORY + (64 << 20)),
        *flags,
    )
    code = "from cli.process import main; main()"
    command = [sys.executable, "-c", code, "serve", "--repository", str(packs.repository), *options]
    return subprocess.Popen(command, stderr=subprocess.PIPE, cwd=ROOT)


def dropped(client: http.client.HTTPConnection) -> int:
    client.request("GET", "/metrics")
    text = client.getresponse().read().decode()
    return int(samples(text)["layerstream_log_lines_dropped_total", frozenset()])


@over("log_format", ["text", "json"])
@over("reader", ["stalled", "closed"])
def test_a_server_answers_while_its_log_is_not_read(
    packs: Packs, log_format: str, reader: str
) -> None:
    with server_of(packs, "--log-format", log_format) as server, client_of(server) as client:
        assert server.stderr is not None
        if reader == "closed":
            server.stderr.close()
        for _ in range(REQUESTS):
            client.request("POST", "/v2/models/tiny/infer", b"not JSON")
            response = client.getresponse()
            response.read()
            assert response.status == 400
        client.request("GET", "/v2/health/live")
        assert client.getresponse().read()
        lines = dropped(client)
        assert 0 < lines <= REQUESTS
        if reader == "stalled":
            log = b""
            while not (match := re.search(rb"(\d+) log lines were dropped", log)):
                log += server.stderr.read1(1 << 16)  # type: ignore[attr-defined]
            assert int(match[1]) == lines == dropped(client)
            assert log.count(b"/v2/models/tiny/infer") == REQUESTS - lines
        server.send_signal(signal.SIGTERM)
        assert server.wait(LIMIT_SECONDS) in {0, -signal.SIGTERM}


def test_a_server_stops_on_sigterm_while_its_log_is_not_read(packs: Packs) -> None:
    with server_of(packs, "--access-log", "all") as server, client_of(server) as client:
        while not dropped(client):
            for _ in range(100):
                client.request("POST", "/v2/models/tiny/infer", b"not JSON")
                client.getresponse().read()
        server.send_signal(signal.SIGTERM)
        assert server.wait(LIMIT_SECONDS) in {0, -signal.SIGTERM}
