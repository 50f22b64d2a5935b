"""What is looked at while the service runs: models that load, and engines that are stuck."""

import asyncio
import os
import socket
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from server.app import create_app
from server.operation import watching
from server.operation.service_manager import Notifier
from server.operation.starting import StartupError
from server.operation.watching import replace_engine, stuck
from server.repository import planning_threads
from server.repository.entry import Entry, Loading, Unloaded
from server.repository.instances import Instance, State, Uses
from server.repository.preparing import Preparer
from server.service import Service
from tests.server.conftest import SettingsFactory
from tests.server.support import (
    LIMIT_SECONDS,
    Faults,
    Gate,
    Packs,
    ServiceUnderTest,
    arrays,
    close,
    error,
    hold_up,
    inputs_for,
    serving,
    until,
)

# A start that makes progress gets more time; one that makes none is left to the service manager.


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(str(tmp_path / "notify"))
        listener.setblocking(False)
        yield listener


async def test_only_progress_gets_more_time(
    manager: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watching, "_LOOK_SECONDS", 0.0)
    seen = ["loading a", "loading a", "loading a", "loading b"]
    looked: list[str] = []
    enough = asyncio.Event()

    def look() -> str:
        looked.append(seen[min(len(looked), len(seen) - 1)])
        if len(looked) > len(seen) + 2:
            enough.set()
        return looked[-1]

    address = os.fsdecode(manager.getsockname())
    task = asyncio.create_task(watching.tell(Notifier(address, None), look))
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
    lines = [watching.describe([], 0), watching.describe([first], 0)]
    first.condition = Loading()
    lines += [watching.describe([first], 0), watching.describe([first], 1 << 20)]
    first.condition.progress("search", 3, 20)
    lines.append(watching.describe([first], 1 << 20))
    nothing: Any = None
    first.condition = Instance("a", nothing, nothing, Uses())
    lines.append(watching.describe([first], 1 << 20))
    first.condition, second.condition = Unloaded(), Loading()
    lines.append(watching.describe([first, second], 1 << 20))
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
    service = Service(chosen)
    tested = ServiceUnderTest.of(create_app(service))
    await service.__aenter__()
    try:
        assert await asyncio.to_thread(begun.wait, LIMIT_SECONDS)
        assert (await tested.client.get("/v2/health/live")).status_code == 200
        ready = await tested.client.get("/v2/health/ready")
        assert (ready.status_code, ready.json()["ready"]) == (503, False)
        assert "0 of 2" in ready.json()["reason"]
        assert (await tested.client.get("/v2/models/tiny/ready")).status_code == 503
        assert (await tested.client.get("/metrics")).status_code == 200
        refused = await tested.infer("tiny", inputs_for("tiny"))
        words = {"least": "the server starts", "prepare": "tiny"}
        error(refused, 503, words[method])
        go_on.set()
        await service.loaded()
        assert (await tested.client.get("/v2/health/ready")).json() == {"ready": True}
        assert (await tested.infer("tiny", inputs_for("tiny"))).status_code == 200
    finally:
        go_on.set()
        await service.close()
        await tested.client.aclose()


async def test_a_start_that_is_cancelled_leaves_nothing(
    settings: SettingsFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, go_on = threading.Event(), threading.Event()

    def slow(*_: object) -> None:
        begun.set()
        go_on.wait(LIMIT_SECONDS)

    monkeypatch.setattr(Preparer, "prepare", slow)
    monkeypatch.setattr(planning_threads, "_END_SECONDS", 0.01)
    service = Service(settings(models=("tiny",)))
    async with service:
        assert await asyncio.to_thread(begun.wait, LIMIT_SECONDS)
        waiting = asyncio.create_task(service.loaded())
        await asyncio.sleep(0)
        service.drain()
        with pytest.raises(StartupError, match="ended before"):
            await waiting
        go_on.set()
    assert service.budget.held() == {}


# A sweep that does not come back costs its requests and its engine, not the server.

TINY = inputs_for("tiny")
BUDGET = 64 << 20


@pytest.fixture
async def service(settings: SettingsFactory, faults: Faults) -> AsyncIterator[ServiceUnderTest]:
    async with serving(settings(BUDGET, architecture="2s")) as started:
        yield started


class Stuck:
    """A kernel of "tiny" that does not come back until it is let go; another request waits behind it."""

    def __init__(self, service: ServiceUnderTest, faults: Faults) -> None:
        self.service, self.faults = service, faults
        self.worker = service.worker("tiny")

    async def begin(self) -> None:
        self.gate, self.late = await hold_up(self.service, self.faults, "tiny", limit_seconds=0.2)
        assert (await self.late).status_code == 504
        self.behind = asyncio.create_task(self.service.infer("tiny", TINY))
        await until(lambda: len(self.worker.line) == 1)


async def test_a_stuck_engine_is_replaced_and_its_memory_counted_until_it_ends(
    service: ServiceUnderTest, faults: Faults, packs: Packs
) -> None:
    case = Stuck(service, faults)
    repository, budget = service.inside.repository, service.inside.budget
    await case.begin()
    assert not list(stuck(repository, 1000.0, 0.0)), "late is not stuck"
    assert not list(stuck(repository, 1.0, 1000.0))
    before = budget.held()["tiny"]
    (entry,) = stuck(repository, 1.0, 0.0)
    await replace_engine(repository, entry)
    error(await case.behind, 503, "tiny", "did not come back")
    assert budget.held()["tiny (stuck 1)"] == before
    close(arrays(await service.infer("tiny", TINY)), packs.expected("tiny", TINY))
    pair = inputs_for("pair")
    close(arrays(await service.infer("pair", pair)), packs.expected("pair", pair))
    case.gate.open()
    await asyncio.to_thread(case.worker.wait)
    await until(lambda: "tiny (stuck 1)" not in budget.held())
    assert not list(stuck(repository, 1.0, 0.0))
    close(arrays(await service.infer("tiny", TINY)), packs.expected("tiny", TINY))


async def test_without_room_for_another_it_says_so_and_others_are_served(
    settings: SettingsFactory, faults: Faults, packs: Packs
) -> None:
    async with serving(settings(architecture="2s")) as service:
        case = Stuck(service, faults)
        await case.begin()
        (entry,) = stuck(service.inside.repository, 1.0, 0.0)
        await replace_engine(service.inside.repository, entry)
        error(await case.behind, 503, "did not come back")
        error(await service.infer("tiny", TINY), 409, "tiny", "does not fit")
        pair = inputs_for("pair")
        close(arrays(await service.infer("pair", pair)), packs.expected("pair", pair))
        case.gate.open()
        await asyncio.to_thread(case.worker.wait)
        await until(lambda: "tiny (stuck 1)" not in service.inside.budget.held())
        await service.inside.repository.load("tiny")
        close(arrays(await service.infer("tiny", TINY)), packs.expected("tiny", TINY))


async def test_what_found_no_room_comes_with_a_request_once_there_is(
    settings: SettingsFactory, faults: Faults, packs: Packs
) -> None:
    changes = {"architecture": "2s", "budget_policy": "evict-lru", "evictable": "tiny"}
    async with serving(settings(**changes)) as service:
        case = Stuck(service, faults)
        await case.begin()
        (entry,) = stuck(service.inside.repository, 1.0, 0.0)
        await replace_engine(service.inside.repository, entry)
        error(await case.behind, 503, "did not come back")
        error(await service.infer("tiny", TINY), 409, "tiny", "does not fit")
        case.gate.open()
        await until(lambda: "tiny (stuck 1)" not in service.inside.budget.held())
        close(arrays(await service.infer("tiny", TINY)), packs.expected("tiny", TINY))


async def test_what_somebody_unloads_meanwhile_stays_away(
    service: ServiceUnderTest, faults: Faults, packs: Packs
) -> None:
    case, repository, gate = Stuck(service, faults), service.inside.repository, Gate()
    await case.begin()
    faults.read = lambda offset, length: gate.hold()
    other = asyncio.create_task(repository.load("twin"))
    await gate.reached()
    unloading = asyncio.create_task(repository.unload("tiny"))
    await asyncio.sleep(0)  # it waits for the load
    (entry,) = stuck(repository, 1.0, 0.0)
    replacing = asyncio.create_task(replace_engine(repository, entry))
    await asyncio.sleep(0)
    faults.read = lambda offset, length: None
    gate.open()
    await asyncio.gather(other, unloading, replacing)
    error(await case.behind, 503, "did not come back")
    error(await service.infer("tiny", TINY), 404, "unloaded")
    case.gate.open()
    await asyncio.to_thread(case.worker.wait)


@pytest.mark.parametrize("activations", ["shared", "own"])
async def test_only_what_others_need_is_a_fault_of_the_process(
    settings: SettingsFactory, faults: Faults, monkeypatch: pytest.MonkeyPatch, activations: str
) -> None:
    changes = {"architecture": "2s", "activations": activations}
    async with serving(settings(BUDGET, **changes)) as service:
        case, inside = Stuck(service, faults), service.inside
        await case.begin()
        (entry,) = stuck(inside.repository, 1.0, 0.0)
        await replace_engine(inside.repository, entry)
        error(await case.behind, 503, "did not come back")
        assert not inside.restart_reason(), "it may come back yet"
        monkeypatch.setattr("server.service._HUNG_SECONDS", 1e-9 - inside.settings.request_timeout)
        assert ("tiny" in inside.restart_reason()) == (activations == "shared")
        monkeypatch.undo()
        case.gate.open()
        await until(lambda: not inside.repository.workers(State.STUCK))
        assert not inside.restart_reason()
        assert arrays(await service.infer("tiny", TINY))
