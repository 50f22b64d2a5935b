"""A start that makes progress gets more time; one that makes none is left to the service manager."""

import asyncio
import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from server.app import create_app
from server.context import Context
from server.operation import starting
from server.operation.notify import Notifier
from server.repository import planning_threads
from server.repository.entry import Entry, Loading, Unloaded
from server.repository.preparing import Preparer
from tests.server.conftest import SettingsFactory
from tests.server.support import LIMIT_SECONDS, Service, error, inputs_for


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
    first.condition.progress("search", 3, 20)
    lines.append(starting.describe([first], 1 << 20))
    first.read()
    lines.append(starting.describe([first], 1 << 20))
    first.condition, second.condition = Unloaded(), Loading()
    lines.append(starting.describe([first, second], 1 << 20))
    assert len(set(lines)) == len(lines)
    assert "b: loading: planning" in lines[-1]


@pytest.mark.parametrize("method", ["least", "prepare"])
async def test_probes_are_answered_while_models_are_planned(
    settings: SettingsFactory, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    """While it is found out what requests may hold, and while a model is planned."""
    begun, go_on = threading.Event(), threading.Event()
    planned = getattr(Preparer, method)

    def slow(*arguments: object) -> object:
        begun.set()
        assert go_on.wait(LIMIT_SECONDS)
        return planned(*arguments)

    monkeypatch.setattr(Preparer, method, slow)
    chosen = settings(models=("tiny", "pair"))
    context = Context(chosen)
    service = Service.of(create_app(chosen, context))
    start = asyncio.create_task(context.start())
    try:
        assert await asyncio.to_thread(begun.wait, LIMIT_SECONDS)
        assert (await service.client.get("/v2/health/live")).status_code == 200
        ready = await service.client.get("/v2/health/ready")
        assert (ready.status_code, ready.json()["ready"]) == (503, False)
        assert "0 of 2" in ready.json()["reason"]
        assert (await service.client.get("/v2/models/tiny/ready")).status_code == 503
        assert (await service.client.get("/metrics")).status_code == 200
        refused = await service.infer("tiny", inputs_for("tiny"))
        words = {"least": "the server starts", "prepare": "tiny"}
        error(refused, 503, words[method])
        go_on.set()
        await start
        assert (await service.client.get("/v2/health/ready")).json() == {"ready": True}
        assert (await service.infer("tiny", inputs_for("tiny"))).status_code == 200
    finally:
        go_on.set()
        await asyncio.gather(start, return_exceptions=True)
        await context.stop()
        await service.client.aclose()


async def test_a_start_that_is_cancelled_leaves_nothing(
    settings: SettingsFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, go_on = threading.Event(), threading.Event()

    def slow(*_: object) -> None:
        begun.set()
        go_on.wait(LIMIT_SECONDS)

    monkeypatch.setattr(Preparer, "prepare", slow)
    monkeypatch.setattr(planning_threads, "_END_SECONDS", 0.01)
    context = Context(settings(models=("tiny",)))
    start = asyncio.create_task(context.start())
    assert await asyncio.to_thread(begun.wait, LIMIT_SECONDS)
    start.cancel()
    with pytest.raises(asyncio.CancelledError):
        await start
    go_on.set()
    await context.stop()
    assert context.budget.held() == {}
