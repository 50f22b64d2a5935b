"""The load of many clients behind one address: what counts as lost, and what is said without nginx."""

import shutil
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from benchmarks.load.paced import paced_loop
from benchmarks.load.shared_address import main
from benchmarks.servers.nginx import NoNginxError, check_nginx
from tests.examples import over

REQUEST = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"
BUSY = b"HTTP/1.1 503 Busy\r\nContent-Length: 0\r\n%sConnection: close\r\n\r\n"


@contextmanager
def answering(answer: Callable[[socket.socket], None]) -> Iterator[int]:
    """A server on a thread that has one connection after the other ``answer`` ed; yields its port."""
    with socket.create_server(("127.0.0.1", 0), backlog=64) as listener:

        def serve() -> None:
            while True:
                try:
                    client, _ = listener.accept()
                except OSError:
                    return
                with client:
                    client.recv(1 << 16)
                    answer(client)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield listener.getsockname()[1]
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join()


CASES = [
    (OK.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"), "200"),
    (BUSY % b"Retry-After: 1\r\n", "503"),
    (BUSY % b"", "503 without Retry-After"),
    (b"", "lost"),
    (OK[:20], "lost"),
]


@over("answer, outcome", CASES)
def test_every_request_has_one_outcome(answer: bytes, outcome: str) -> None:
    with answering(lambda client: client.sendall(answer)) as port:
        found = paced_loop(port, REQUEST, clients=3, seconds=0.1, rate=50.0, within=0.01)
    assert found["sent"] == found["opened"] >= 3
    assert found["outcomes"] == {outcome: found["sent"]}


def test_a_kept_connection_that_ends_between_two_requests_loses_none() -> None:
    with answering(lambda client: client.sendall(OK)) as port:
        found = paced_loop(port, REQUEST, clients=1, seconds=0.2, rate=20.0)
    assert found["outcomes"] == {"200": found["sent"]}
    assert found["opened"] == found["sent"]


def test_without_nginx_it_says_what_is_missing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(shutil, "which", lambda *_, **__: None)
    with pytest.raises(NoNginxError, match="apt-get install"):
        check_nginx()
    monkeypatch.setattr("sys.argv", ["shared_address", "--ways", "direct,nginx"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    assert "nginx is not installed" in capsys.readouterr().err
