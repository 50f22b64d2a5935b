"""Models that sleep while no request comes: what they answer then, and what they do not do asleep."""

import asyncio

import pytest

from loader.errors import ReadError
from tests.server.conftest import SettingsFactory
from tests.server.repository.test_eviction import loaded, right
from tests.server.support import (
    Faults,
    Gate,
    Once,
    Packs,
    ServiceUnderTest,
    error,
    inputs_for,
    serving,
)

CAPACITY = 16 << 20


def rest(service: ServiceUnderTest, seconds: float = 601) -> None:
    """Let no request have come for so long."""
    for entry in service.inside.repository.entries():
        entry.uses.used_at -= seconds


async def test_an_idle_model_sleeps_and_the_next_request_wakes_it(
    settings: SettingsFactory, packs: Packs
) -> None:
    async with serving(settings(CAPACITY, idle_after="tiny=600,pair=6000")) as service:
        repository, reserved = service.inside.repository, service.inside.budget.held()
        await right(service, packs, "tiny")
        assert await repository.sleep_idle() == []
        for _ in range(3):
            rest(service)
            assert await repository.sleep_idle() == ["tiny"]
            assert await repository.sleep_idle() == [], "it sleeps already"
            assert await service.metric("layerstream_model_asleep", model="tiny") == 1
            assert service.inside.budget.held() == reserved
            await right(service, packs, "tiny")
            assert await service.metric("layerstream_model_asleep", model="tiny") == 0


async def test_neither_a_model_in_use_sleeps_nor_one_that_is_pinned(
    settings: SettingsFactory, packs: Packs, faults: Faults
) -> None:
    async with serving(settings(CAPACITY, idle_after="600", pin="pair=1KiB")) as service:
        gate = Gate()
        faults.kernel = gate.hold
        using = asyncio.create_task(right(service, packs, "tiny"))
        await gate.reached()
        rest(service)
        assert await service.inside.repository.sleep_idle() == []
        faults.kernel = lambda: None
        gate.open()
        await using


async def test_a_read_that_fails_while_it_wakes_fails_one_request(
    settings: SettingsFactory, packs: Packs, faults: Faults
) -> None:
    async with serving(settings(CAPACITY, idle_after="600", models=("tiny",))) as service:
        await right(service, packs, "tiny")
        rest(service)
        assert await service.inside.repository.sleep_idle() == ["tiny"]
        faults.read = Once(ReadError("a bad block"))
        error(await service.infer("tiny", inputs_for("tiny")), 503, "a bad block")
        await right(service, packs, "tiny")


@pytest.mark.parametrize("what", ["replan", "unload", "relieve", "end"])
async def test_a_model_may_change_or_go_asleep(
    settings: SettingsFactory, packs: Packs, what: str
) -> None:
    async with serving(settings(CAPACITY, idle_after="600", models=("tiny",))) as service:
        repository = service.inside.repository
        await repository.at_rest()
        await right(service, packs, "tiny")
        rest(service)
        assert await repository.sleep_idle() == ["tiny"]
        match what:
            case "replan":
                await repository.replan("tiny", packs.smallest("tiny"))
                await right(service, packs, "tiny")
            case "relieve":
                await repository.relieve(service.inside.budget.used_bytes - 1024)
                await right(service, packs, "tiny")
            case "unload":
                await repository.unload("tiny")
                assert loaded(service) == set()
