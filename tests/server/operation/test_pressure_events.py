"""Events of memory pressure: the service manager's protocol, and the kernel's files."""

import base64
import contextlib
import os
import select
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from server.operation.pressure_events import (
    PressureError,
    PressureEvents,
    is_off,
    open_events,
)


class Loop:
    """Calls what it was given for descriptors that can be read now."""

    def __init__(self) -> None:
        self.readers: dict[int, Callable[[], object]] = {}

    def add_reader(self, fd: int, callback: Callable[[], object]) -> None:
        self.readers[fd] = callback

    def remove_reader(self, fd: int) -> None:
        del self.readers[fd]

    def read_ready(self) -> None:
        ready = select.poll()  # which takes descriptors of any size
        for fd in self.readers:
            ready.register(fd, select.POLLIN)
        for fd, _ in ready.poll(0):
            self.readers[fd]()


class Heard:
    """Opens what the environment names, and counts its events."""

    def __init__(self, **environ: str) -> None:
        self.loop, self.count = Loop(), 0
        events = open_events(environ)
        assert events is not None
        self.events = events
        self.events.begin(self.loop, self._hear)

    def _hear(self) -> None:
        self.count += 1

    def read_ready(self) -> int:
        """Return how many events there were by the end of a read_ready."""
        self.loop.read_ready()
        return self.count


@contextlib.contextmanager
def hearing(**environ: str) -> Iterator[Heard]:
    heard = Heard(**environ)
    try:
        yield heard
    finally:
        heard.events.close()
        heard.events.close()
    assert not heard.loop.readers


@pytest.fixture
def fifo(tmp_path: Path) -> Path:
    os.mkfifo(tmp_path / "fifo")
    return tmp_path / "fifo"


def test_a_fifo_reports_by_bytes(fifo: Path) -> None:
    with hearing(MEMORY_PRESSURE_WATCH=str(fifo)) as heard:
        assert heard.read_ready() == 0
        for count in (1, 2, 3):
            fifo.write_bytes(b"x" * count)  # whoever writes closes it each time
            assert heard.read_ready() == count
            assert heard.read_ready() == count, "it was not read"
        assert not heard.events.lost


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("some avg10=0.00 total=2500000\nfull total=1\n", 2.5), ("", None), ("some total=x\n", None)],
)
def test_how_long_tasks_waited_is_read_from_the_file(
    tmp_path: Path, text: str, seconds: float | None
) -> None:
    file = tmp_path / "memory.pressure"
    file.write_text(text)
    with contextlib.closing(PressureEvents(str(file), -1, is_psi=True)) as events:
        assert events.stalled_seconds() == seconds
        file.unlink()
        assert events.stalled_seconds() is None


def test_many_bytes_are_one_event_or_two(fifo: Path) -> None:
    with hearing(MEMORY_PRESSURE_WATCH=str(fifo)) as heard:
        fifo.write_bytes(b"x" * 65536)
        heard.read_ready()
        assert heard.read_ready() <= 2
        assert heard.read_ready() == heard.count


def test_a_fifo_that_only_others_may_write_to_ends_with_its_writer(
    fifo: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(os, "access", lambda *_: False)
    with hearing(MEMORY_PRESSURE_WATCH=str(fifo)) as heard:
        fifo.write_bytes(b"x")
        assert heard.read_ready() == 1
        heard.read_ready()
        assert heard.count == 1
        assert heard.events.lost
        assert not heard.loop.readers
    assert "other end was closed" in caplog.text


def test_a_socket_is_written_to_and_reports_by_bytes(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(str(tmp_path / "s"))
        listener.listen()
        encoded = base64.b64encode(b"some 1 2").decode()
        with hearing(
            MEMORY_PRESSURE_WATCH=str(tmp_path / "s"), MEMORY_PRESSURE_WRITE=encoded
        ) as heard:
            manager, _ = listener.accept()
            with manager:
                assert manager.recv(100) == b"some 1 2"
                assert heard.read_ready() == 0
                manager.send(b"!")
                assert heard.read_ready() == 1
            heard.read_ready()
            assert heard.count == 1
            assert heard.events.lost


def test_dev_null_is_off() -> None:
    assert open_events({"MEMORY_PRESSURE_WATCH": "/dev/null"}) is None
    assert is_off({"MEMORY_PRESSURE_WATCH": "/dev/null"})
    assert not is_off({})


def test_a_plain_file_cannot_be_waited_on(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    events = open_events({"MEMORY_PRESSURE_WATCH": str(tmp_path / "file")})
    assert events is not None
    with pytest.raises(PressureError, match=r"file cannot be waited on.*stall"):
        events.begin(Loop(), lambda: None)


@pytest.mark.parametrize(
    ("watch", "write", "reason"),
    [
        ("relative/file", "", "no absolute path"),
        ("/no/such/file", "", "No such file"),
        ("/", "", "no file, no FIFO"),
        ("/proc/self/status", "no base64!", "not Base64"),
    ],
)
def test_what_cannot_be_used_is_named(watch: str, write: str, reason: str) -> None:
    with pytest.raises(PressureError, match=reason):
        open_events({"MEMORY_PRESSURE_WATCH": watch, "MEMORY_PRESSURE_WRITE": write})


def test_no_descriptor_is_left_where_the_trigger_is_refused(tmp_path: Path) -> None:
    before = len(list(Path("/proc/self/fd").iterdir()))
    with pytest.raises(PressureError):
        open_events({"MEMORY_PRESSURE_WATCH": "/proc/self/comm", "MEMORY_PRESSURE_WRITE": "!"})
    with pytest.raises(PressureError):
        open_events(
            {"MEMORY_PRESSURE_WATCH": "/proc/self/oom_score", "MEMORY_PRESSURE_WRITE": "eA=="}
        )
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def opened_of(
    tmp_path: Path, membership: str, *there: str, machine: bool = True
) -> PressureEvents | None:
    """Return what is found for a process in that group, where those files are there."""
    tmp_path.mkdir(exist_ok=True)
    (tmp_path / "membership").write_text(membership)
    for name in there:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(b"")
    if machine:
        (tmp_path / "machine").write_bytes(b"")
    mounts = tmp_path / "cgroup", tmp_path / "cgroup/unified"
    return open_events({}, tmp_path / "membership", mounts, tmp_path / "machine")


@pytest.mark.parametrize("folder", ["cgroup/a/b", "cgroup/unified/a/b"])
def test_the_group_in_both_mounts_of_version_2(tmp_path: Path, folder: str) -> None:
    file = f"{folder}/memory.pressure"
    events = opened_of(tmp_path, "4:memory:/m\n0::/a/b\n", file)
    assert events is not None
    assert events.name == str(tmp_path / file)
    events.close()
    assert (tmp_path / file).read_bytes() == b"some 200000 2000000\0"


def test_the_group_of_all_processes_is_the_machine(tmp_path: Path) -> None:
    events = opened_of(tmp_path, "0::/\n")
    assert events is not None
    assert events.name == str(tmp_path / "machine")
    events.close()


def test_pressure_of_other_groups_is_ignored(tmp_path: Path) -> None:
    assert opened_of(tmp_path, "0::/a\n") is None
    assert opened_of(tmp_path, "4:memory:/a\n") is None
    assert opened_of(tmp_path / "other", "0::/\n", machine=False) is None
