"""What is listened on: a path of the file system, or a socket that the service manager gave."""

import os
import socket
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from server.transport.listener import PortError, UnixListener, inherited, listen
from tests.examples import over


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@over("wanted", [0o600, 0o660, 0o666])
def test_its_mode_and_its_end(tmp_path: Path, wanted: int) -> None:
    path = tmp_path / "socket"
    listener = UnixListener(path, wanted)
    assert mode(path) == wanted
    listener.close()
    listener.close()
    assert not path.exists()


def test_what_a_server_left_that_was_killed_makes_room(tmp_path: Path) -> None:
    path = tmp_path / "socket"
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(path))
        left.listen()
    assert path.exists()
    with UnixListener(path, 0o600), socket.socket(socket.AF_UNIX) as client:
        client.connect(str(path))


@pytest.mark.parametrize("backlog", [8, 0])
def test_who_listens_keeps_his_place(tmp_path: Path, backlog: int) -> None:
    """Also one whose line is full, where no client gets in for now."""
    path = tmp_path / "socket"
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(str(path))
        other.listen(backlog)
        waiting = [socket.socket(socket.AF_UNIX) for _ in range(backlog + 2)]
        for client in waiting:
            client.setblocking(False)
            client.connect_ex(str(path))
        with pytest.raises(PortError, match="socket: Address already in use"):
            UnixListener(path, 0o600)
        assert path.exists()
        for client in waiting:
            client.close()


def test_it_removes_no_other_servers_socket(tmp_path: Path) -> None:
    path = tmp_path / "socket"
    first = UnixListener(path, 0o600)
    path.unlink()
    with UnixListener(path, 0o600):
        first.close()
        assert path.exists()


def test_where_it_cannot_be(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("kept")
    (tmp_path / "folder").mkdir()
    for path, words in (
        (tmp_path / "file", "no socket"),
        (tmp_path / "folder", "no socket"),
        (tmp_path / "nowhere" / "socket", "No such file"),
        (tmp_path / ("s" * 120), "too long"),
    ):
        with pytest.raises(PortError, match=words) as caught:
            UnixListener(path, 0o600)
        assert "\n" not in str(caught.value)
    assert (tmp_path / "file").read_text() == "kept"


# From the service manager


@pytest.fixture
def number() -> Iterator[int]:
    """The number of a file that no other code closes."""
    with listen("127.0.0.1", 0) as given:
        yield os.dup(given.fileno())


def told(**changes: str) -> dict[str, str]:
    return {"LISTEN_FDS": "1", "LISTEN_PID": str(os.getpid()), "LISTEN_FDNAMES": "http", **changes}


def test_a_socket_that_the_manager_listens_on(number: int) -> None:
    environ = told(PATH="/bin")
    found = inherited(environ, number)
    assert found is not None
    assert environ == {"PATH": "/bin"}  # children get nothing of it
    assert not os.get_inheritable(number)
    with found, socket.create_connection(found.getsockname()):
        found.setblocking(True)
        found.accept()[0].close()
    assert inherited(environ, number) is None


@over("environ", [{}, told(LISTEN_PID="1"), told(LISTEN_PID=""), {"LISTEN_FDS": "1"}])
def test_what_is_for_another_process_is_left_alone(environ: dict[str, str]) -> None:
    assert inherited(environ, 1 << 20) is None


def test_what_cannot_be_listened_on(tmp_path: Path) -> None:
    with pytest.raises(PortError, match="2"):
        inherited(told(LISTEN_FDS="2"))
    with (tmp_path / "file").open("wb") as file, pytest.raises(PortError, match="manager's socket"):
        inherited(told(), os.dup(file.fileno()))
    with socket.socket() as quiet, pytest.raises(PortError, match="no stream that listens"):
        inherited(told(), os.dup(quiet.fileno()))
