"""A sweep that does not come back costs its requests and its engine, not the server."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from server.operation.watchdog import replace_engine, stuck
from tests.server.conftest import SettingsFactory
from tests.server.support import (
    Faults,
    Gate,
    Packs,
    Service,
    arrays,
    close,
    error,
    inputs_for,
    serving,
)

TINY = inputs_for("tiny")
BUDGET = 64 << 20


@pytest.fixture
async def service(settings: SettingsFactory, faults: Faults) -> AsyncIterator[Service]:
    async with serving(settings(BUDGET, architecture="2s")) as started:
        yield started


class Stuck:
    """A kernel of "tiny" that does not come back until it is let go; another request waits behind it."""

    def __init__(self, service: Service, faults: Faults) -> None:
        self.service = service
        self.gate = Gate()
        self.worker = service.worker("tiny")
        held = [self.gate]
        faults.kernel = lambda: held.pop().hold() if held else None

    async def begin(self) -> None:
        self.late = asyncio.create_task(
            self.service.infer("tiny", TINY, parameters={"timeout": 200_000})
        )
        await self.gate.reached()
        assert (await self.late).status_code == 504
        self.behind = asyncio.create_task(self.service.infer("tiny", TINY))
        while self.worker.waiting != 1:  # noqa: ASYNC110  the line signals nothing
            await asyncio.sleep(0)


async def test_a_stuck_engine_is_replaced_and_its_memory_counted_until_it_ends(
    service: Service, faults: Faults, packs: Packs
) -> None:
    case = Stuck(service, faults)
    repository, budget = service.context.repository, service.context.budget
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
    while "tiny (stuck 1)" in budget.held():  # noqa: ASYNC110  a thread of its own
        await asyncio.sleep(0.001)
    assert not list(stuck(repository, 1.0, 0.0))
    close(arrays(await service.infer("tiny", TINY)), packs.expected("tiny", TINY))


async def test_without_room_for_another_it_says_so_and_others_are_served(
    settings: SettingsFactory, faults: Faults, packs: Packs
) -> None:
    async with serving(settings(architecture="2s")) as service:
        case = Stuck(service, faults)
        await case.begin()
        (entry,) = stuck(service.context.repository, 1.0, 0.0)
        await replace_engine(service.context.repository, entry)
        error(await case.behind, 503, "did not come back")
        error(await service.infer("tiny", TINY), 409, "tiny", "does not fit")
        pair = inputs_for("pair")
        close(arrays(await service.infer("pair", pair)), packs.expected("pair", pair))
        case.gate.open()
        await asyncio.to_thread(case.worker.wait)
        while "tiny (stuck 1)" in service.context.budget.held():  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        await service.context.repository.load("tiny")
        close(arrays(await service.infer("tiny", TINY)), packs.expected("tiny", TINY))


async def test_what_found_no_room_comes_with_a_request_once_there_is(
    settings: SettingsFactory, faults: Faults, packs: Packs
) -> None:
    changes = {"architecture": "2s", "budget_policy": "evict-lru", "evictable": "tiny"}
    async with serving(settings(**changes)) as service:
        case = Stuck(service, faults)
        await case.begin()
        (entry,) = stuck(service.context.repository, 1.0, 0.0)
        await replace_engine(service.context.repository, entry)
        error(await case.behind, 503, "did not come back")
        error(await service.infer("tiny", TINY), 409, "tiny", "does not fit")
        case.gate.open()
        while "tiny (stuck 1)" in service.context.budget.held():  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        close(arrays(await service.infer("tiny", TINY)), packs.expected("tiny", TINY))


async def test_what_somebody_unloads_meanwhile_stays_away(
    service: Service, faults: Faults, packs: Packs
) -> None:
    case, repository, gate = Stuck(service, faults), service.context.repository, Gate()
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
        case, context = Stuck(service, faults), service.context
        await case.begin()
        (entry,) = stuck(context.repository, 1.0, 0.0)
        await replace_engine(context.repository, entry)
        error(await case.behind, 503, "did not come back")
        assert not context._fault(), "it may come back yet"
        monkeypatch.setattr("server.context._HUNG_SECONDS", 1e-9 - context.settings.request_timeout)
        assert ("tiny" in context._fault()) == (activations == "shared")
        monkeypatch.undo()
        case.gate.open()
        while context.repository.left_behind():  # noqa: ASYNC110  a thread of its own
            await asyncio.sleep(0.001)
        assert not context._fault()
        assert arrays(await service.infer("tiny", TINY))
