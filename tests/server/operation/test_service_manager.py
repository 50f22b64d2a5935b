"""What systemd is told, and what is read again when it says so."""

import asyncio
import logging
import os
import socket
import time
import uuid
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from server.operation.service_manager import Notifier, Reloading, Step, beat
from tests.examples import over
from tests.server.support import LIMIT_SECONDS

WATCHDOG_USEC = "4000"  # an interval of 2 ms


class Manager:
    """The receiving end: a bound datagram socket and the variables that lead to it."""

    def __init__(self, address: str) -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(address.replace("@", "\0", 1))
        self.socket.setblocking(False)
        self.environ = {"NOTIFY_SOCKET": address, "WATCHDOG_USEC": WATCHDOG_USEC}

    def received(self) -> list[str]:
        messages = []
        while True:
            try:
                messages.append(self.socket.recv(4096).decode())
            except BlockingIOError:
                return messages

    async def next(self) -> str:
        data = await asyncio.get_running_loop().sock_recv(self.socket, 4096)
        return data.decode()


@pytest.fixture(params=["path", "abstract"])
def manager(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Manager]:
    path = str(tmp_path / "notify")
    manager = Manager(path if request.param == "path" else f"@layerstream-{uuid.uuid4().hex}")
    with manager.socket:
        yield manager


def test_each_state_is_one_datagram(manager: Manager) -> None:
    notifier = Notifier.from_environment(manager.environ)
    notifier.ready("2 models serve")
    notifier.status("1 model serves,\nWATCHDOG=trigger")
    notifier.starting("loading m\nREADY=1", more_seconds=90)
    notifier.watchdog()
    notifier.stopping()
    before = time.monotonic_ns() // 1000
    notifier.reloading()
    *others, reloading = manager.received()
    first, usec = reloading.split("\nMONOTONIC_USEC=")
    assert first == "RELOADING=1"
    assert before <= int(usec) <= time.monotonic_ns() // 1000
    assert others == [
        "READY=1\nSTATUS=2 models serve",
        "STATUS=1 model serves, WATCHDOG=trigger",
        "EXTEND_TIMEOUT_USEC=90000000\nSTATUS=loading m READY=1",
        "WATCHDOG=1",
        "STOPPING=1",
    ]


def test_a_status_of_any_length_and_bytes_arrives(manager: Manager) -> None:
    """systemd drops a message of more than 4096 bytes: then it would not show why the process ended."""
    Notifier.from_environment(manager.environ).status("ended: \udcff" + "ü" * 9999)
    (message,) = manager.received()
    assert message.startswith("STATUS=ended: \\udcffüü")
    assert message.endswith("...")


@over(
    "environ, interval",
    [
        ({"WATCHDOG_USEC": "30000000"}, 15.0),
        ({"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": str(os.getpid())}, 15.0),
        ({"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": str(os.getppid())}, None),
        ({"WATCHDOG_USEC": "0"}, None),
        ({"WATCHDOG_USEC": "soon"}, None),
        ({}, None),
    ],
)
def test_watchdog_interval(environ: dict[str, str], interval: float | None) -> None:
    notifier = Notifier.from_environment({"NOTIFY_SOCKET": "/run/notify", **environ})
    assert notifier.watchdog_interval_seconds == interval


@pytest.mark.asyncio
async def test_no_heartbeat_with_a_fault(
    manager: Manager, caplog: pytest.LogCaptureFixture
) -> None:
    fault = ""
    asked = asyncio.Event()

    def look() -> str:
        asked.set()
        return fault

    async def asked_again() -> None:
        asked.clear()
        await asked.wait()

    task = asyncio.create_task(beat(Notifier.from_environment(manager.environ), look))
    async with asyncio.timeout(5):
        assert [await manager.next() for _ in range(3)] == ["WATCHDOG=1"] * 3
        fault = "model m: stuck"
        manager.received()
        await asked_again()
        await asked_again()
        assert manager.received() == ["STATUS=no heartbeat: model m: stuck"]
        assert caplog.text.count("model m: stuck") == 1
        fault = ""
        assert await manager.next() == "WATCHDOG=1"
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task


@pytest.mark.asyncio
async def test_unwatched_heartbeat_waits_for_cancellation() -> None:
    task = asyncio.create_task(beat(Notifier.from_environment({}), lambda: ""))
    done, _ = await asyncio.wait([task], timeout=0.002)
    assert not done
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


@pytest.mark.parametrize("environ", [{}, {"NOTIFY_SOCKET": ""}])
def test_without_a_manager_nothing_is_sent(
    environ: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("a socket was opened")

    notifier = Notifier.from_environment({**environ, "WATCHDOG_USEC": WATCHDOG_USEC})
    assert notifier.watchdog_interval_seconds is None
    monkeypatch.setattr(socket, "socket", refuse)
    notifier.ready("ready")
    notifier.status("status")
    notifier.watchdog()
    notifier.stopping()


def test_a_dead_socket_is_reported_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    address = str(tmp_path / "gone")
    notifier = Notifier.from_environment({"NOTIFY_SOCKET": address})
    with caplog.at_level(logging.WARNING, logger="server.operation.service_manager"):
        notifier.ready("ready")
        notifier.stopping()
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert address in caplog.text


# Reading again: every step each time, whatever fails.


class Said(Notifier):
    """Keeps what the service manager would be told."""

    def __init__(self) -> None:
        super().__init__("@nobody", None)
        self.messages: list[str] = []
        self.ready_again = asyncio.Semaphore(0)

    def _send(self, message: str) -> None:
        self.messages.append(message.partition("\n")[0])
        if message.startswith("READY=1"):
            self.ready_again.release()


async def test_each_asking_takes_every_step(caplog: pytest.LogCaptureFixture) -> None:
    taken: list[str] = []
    notifier = Said()

    def step(name: str) -> Step:
        async def take() -> None:
            taken.append(name)
            if name == "bad":
                raise ValueError("spoilt")

        return take

    names = ("first", "bad", "last")
    reloading = Reloading({name: step(name) for name in names}, notifier, lambda: "2 models")
    reloading.ask()  # before it has begun: not forgotten
    reloading.begin()
    await asyncio.wait_for(notifier.ready_again.acquire(), LIMIT_SECONDS)
    reloading.ask()
    await asyncio.wait_for(notifier.ready_again.acquire(), LIMIT_SECONDS)
    reloading.end()
    reloading.ask()
    assert taken == [*names, *names]
    assert notifier.messages == ["RELOADING=1", "READY=1"] * 2
    assert "bad not read again: spoilt" in caplog.text
    assert "ValueError: spoilt" in caplog.text, "a fault of the program has its traceback"
    assert caplog.messages[-1] == "not read again, and as before: bad; 2 models"


async def test_who_asks_while_models_are_read_has_keys_read_at_once() -> None:
    notifier, gate, keys = Said(), asyncio.Event(), asyncio.Semaphore(0)
    turns = Counter[str]()

    async def quick() -> None:
        turns["keys"] += 1
        keys.release()

    async def slow() -> None:
        turns["models"] += 1
        await gate.wait()

    reloading = Reloading({"models": slow, "keys": quick}, notifier, str)
    reloading.begin()
    for _ in range(3):
        reloading.ask()
        await asyncio.wait_for(keys.acquire(), LIMIT_SECONDS)
    assert turns == {"keys": 3, "models": 1}
    assert notifier.messages == ["RELOADING=1"] * 3
    gate.set()
    await asyncio.wait_for(notifier.ready_again.acquire(), LIMIT_SECONDS)
    reloading.end()
    assert turns == {"keys": 3, "models": 2}, "what was read may be older than the wish"
    assert notifier.messages == ["RELOADING=1"] * 3 + ["READY=1"]
