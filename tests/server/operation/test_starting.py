"""A start that makes progress gets more time; one that makes none is left to the service manager."""

import asyncio
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from server.operation import starting
from server.operation.notify import Notifier
from server.repository.entry import Entry, Loading, Unloaded


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(str(tmp_path / "notify"))
        listener.setblocking(False)
        yield listener


async def test_only_progress_gets_more_time(
    manager: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(starting, "_LOOK_SECONDS", 0.0)
    seen = ["loading a", "loading a", "loading a", "loading b"]
    looked: list[str] = []
    enough = asyncio.Event()

    def look() -> str:
        looked.append(seen[min(len(looked), len(seen) - 1)])
        if len(looked) > len(seen) + 2:
            enough.set()
        return looked[-1]

    address = os.fsdecode(manager.getsockname())
    task = asyncio.create_task(starting.tell(Notifier(address, None), look))
    await enough.wait()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert [manager.recv(4096).decode() for _ in range(2)] == [
        f"EXTEND_TIMEOUT_USEC=90000000\nSTATUS={status}" for status in ("loading a", "loading b")
    ]
    with pytest.raises(BlockingIOError):
        manager.recv(4096)


def test_every_kind_of_progress_changes_the_line() -> None:
    first, second = Entry("a"), Entry("b")
    lines = [starting.describe([], 0), starting.describe([first], 0)]
    first.condition = Loading()
    lines += [starting.describe([first], 0), starting.describe([first], 1 << 20)]
    first.condition, second.condition = Unloaded(), Loading()
    lines.append(starting.describe([first, second], 1 << 20))
    assert len(set(lines)) == len(lines)
    assert "loading b" in lines[-1]
