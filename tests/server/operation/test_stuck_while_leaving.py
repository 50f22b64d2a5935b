"""A sweep that does not come back while its model leaves, changes its plan, or the server ends."""

import asyncio
import shutil
from collections.abc import AsyncIterator, Awaitable
from pathlib import Path
from typing import TypeVar

import httpx
import pytest

from pipeline.budget.errors import RefusedError
from server.errors import NotServingError
from server.repository.worker import Worker
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

TINY, PAIR = inputs_for("tiny"), inputs_for("pair")
BUDGET = 64 << 20
UNLOAD = "/v2/repository/models/tiny/unload"
T = TypeVar("T")


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """What takes longer than its requests had is stuck, and that is looked for all the time."""
    monkeypatch.setattr("server.operation.watching.LEAST_SECONDS", 0.0)
    monkeypatch.setattr("server.operation.watching._LOOK_SECONDS", 0.001)


@pytest.fixture
async def service(settings: SettingsFactory, faults: Faults) -> AsyncIterator[ServiceUnderTest]:
    async with serving(settings(BUDGET, architecture="2s")) as started:
        yield started


async def in_time(work: Awaitable[T]) -> T:
    async with asyncio.timeout(LIMIT_SECONDS):
        return await work


async def held_up(
    service: ServiceUnderTest, faults: Faults, name: str = "tiny"
) -> tuple[Gate, asyncio.Task[httpx.Response]]:
    """A request to ``name`` in a kernel that does not come back before the gate is opened."""
    return await hold_up(service, faults, name, limit_seconds=0.3)


async def freed(service: ServiceUnderTest) -> None:
    """Wait until nothing that was stuck holds memory."""
    await until(lambda: not any("stuck" in name for name in service.inside.budget.held()))


async def replaced(service: ServiceUnderTest, before: Worker, name: str) -> None:
    """Wait until the slot ``name`` has another worker."""
    (entry,) = (each for each in service.inside.repository.entries() if each.name == name)
    await until(lambda: entry.serves and entry.worker is not before)


async def test_a_model_that_is_unloaded_holds_up_nobody(
    service: ServiceUnderTest, faults: Faults, packs: Packs
) -> None:
    gate, late = await held_up(service, faults)
    try:
        assert (await in_time(service.client.post(UNLOAD))).status_code == 200
        assert (await late).status_code in (503, 504)
        assert "tiny (stuck 1)" in service.inside.budget.held()
        close(arrays(await service.infer("pair", PAIR)), packs.expected("pair", PAIR))
        error(await service.infer("tiny", TINY), 404, "unloaded")
        await in_time(service.inside.repository.load("tiny"))
        close(arrays(await service.infer("tiny", TINY)), packs.expected("tiny", TINY))
    finally:
        gate.open()
    await in_time(freed(service))


async def test_the_server_ends(settings: SettingsFactory, faults: Faults) -> None:
    async with serving(settings(BUDGET, architecture="2s")) as service:
        gate, late = await held_up(service, faults)
        worker = service.worker("tiny")
        late.cancel()
        try:
            await in_time(service.inside.close())
        finally:
            gate.open()
        await asyncio.to_thread(worker.wait)


async def test_partitions_that_wait_for_another_plan(
    settings: SettingsFactory, faults: Faults, packs: Packs
) -> None:
    async with serving(settings(BUDGET, workers="tiny=2")) as service:
        gate, late = await held_up(service, faults)
        path = "/v2/repository/models/tiny/replan"
        least = {"memory_bytes": sum(service.inside.budget.held()["tiny"].values()) // 2}
        try:
            answer = await in_time(service.client.post(path, json=least))
            assert answer.status_code in (409, 503), answer.text
            assert (await late).status_code in (503, 504)
            await in_time(service.inside.repository.load("tiny"))
            close(arrays(await service.infer("tiny", TINY)), packs.expected("tiny", TINY))
        finally:
            gate.open()
        await in_time(freed(service))


@pytest.mark.parametrize("workers", ["1", "tiny=2"])
async def test_a_model_that_waits_for_another_plan_comes_back_by_itself(
    settings: SettingsFactory, faults: Faults, packs: Packs, workers: str
) -> None:
    async with serving(settings(BUDGET, architecture="2s", workers=workers)) as service:
        gate, late = await held_up(service, faults)
        repository, before = service.inside.repository, service.worker("tiny")
        least = sum(service.inside.budget.held()["tiny"].values()) // 2
        try:
            with pytest.raises((NotServingError, RefusedError)):
                await in_time(repository.replan("tiny", least))
            assert (await late).status_code in (503, 504)
            await in_time(replaced(service, before, "tiny"))
            close(arrays(await service.infer("tiny", TINY)), packs.expected("tiny", TINY))
        finally:
            gate.open()
        await in_time(freed(service))


async def test_one_of_several_versions_is_replaced(
    settings: SettingsFactory, faults: Faults, packs: Packs, tmp_path: Path
) -> None:
    for name in ("tiny", "pair"):
        shutil.copytree(packs.repository / name, tmp_path / "packs" / name)
    shutil.copytree(packs.repository / "twin" / "1", tmp_path / "packs" / "tiny" / "2")
    (tmp_path / "packs" / "tiny" / "config.pbtxt").write_text("version_policy { all { } }")
    changes = {"architecture": "2s", "repository": tmp_path / "packs"}
    async with serving(settings(BUDGET, **changes)) as service:
        gate, late = await held_up(service, faults, "tiny/versions/1")
        try:
            before = service.inside.repository.models.find("tiny", "1").worker
            assert before is not None
            assert (await late).status_code in (503, 504)
            await in_time(replaced(service, before, "tiny/1"))
            answer = await in_time(service.infer("tiny/versions/1", TINY))
            close(arrays(answer), packs.expected("tiny", TINY))
        finally:
            gate.open()
        await in_time(freed(service))
