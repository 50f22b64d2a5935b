"""A model in two partitions: the same answers, two requests at once, and everything that ends a request."""

import asyncio
import logging
from collections.abc import AsyncIterator

import pytest

from pipeline.devices.base import KernelError
from pipeline.planning.plan import PartitionedPlan
from tests.server.conftest import SettingsFactory
from tests.server.support import (
    Faults,
    Gate,
    Once,
    Packs,
    ServiceUnderTest,
    arrays,
    close,
    error,
    inputs_for,
    serving,
    until,
)

BUDGET = 64 << 20


@pytest.fixture
async def service(settings: SettingsFactory, faults: Faults) -> AsyncIterator[ServiceUnderTest]:
    """ "tiny" has two workers, "pair" none."""
    async with serving(settings(BUDGET, workers="tiny=2")) as started:
        yield started


async def test_requests_at_once_get_their_own_answers(
    service: ServiceUnderTest, packs: Packs
) -> None:
    given = [inputs_for("tiny", seed) for seed in range(8)]
    responses = await asyncio.gather(*(service.infer("tiny", each) for each in given))
    for each, response in zip(given, responses, strict=True):
        close(arrays(response), packs.expected("tiny", each))
    assert await service.metric("layerstream_sweep_seconds_count", model="tiny") == len(given)
    assert await service.metric("layerstream_queue_length", model="tiny") == 0


async def test_two_requests_compute_while_others_wait(
    service: ServiceUnderTest, faults: Faults, packs: Packs, arrivals: asyncio.Semaphore
) -> None:
    """One is held in a kernel, the next one passes the first partition: both count as running."""
    worker = service.worker("tiny")
    assert worker.engine.callers == 3, "one a partition, and one whose frame is next"
    gate = Gate()
    held = [gate]
    faults.kernel = lambda: held.pop().hold() if held else None
    given = [inputs_for("tiny", seed) for seed in range(4)]
    asked = [asyncio.create_task(service.infer("tiny", each)) for each in given]
    await gate.reached()
    await until(lambda: len(worker.line) == 1)
    assert worker.stuck_seconds() > 0
    gate.open()
    for each, task in zip(given, asked, strict=True):
        close(arrays(await task), packs.expected("tiny", each))
    await until(lambda: not worker.stuck_seconds())


async def test_a_request_that_fails_leaves_the_one_beside_it(
    service: ServiceUnderTest, faults: Faults, packs: Packs
) -> None:
    faults.kernel = Once(KernelError("broken"), 3)
    given = [inputs_for("tiny", seed) for seed in range(4)]
    responses = await asyncio.gather(*(service.infer("tiny", each) for each in given))
    statuses = sorted(response.status_code for response in responses)
    assert statuses == [200, 200, 200, 500]
    for each, response in zip(given, responses, strict=True):
        if response.status_code == 200:
            close(arrays(response), packs.expected("tiny", each))


async def test_unloading_answers_what_is_in_flight(
    service: ServiceUnderTest, faults: Faults, packs: Packs
) -> None:
    gate = Gate()
    held = [gate]
    faults.kernel = lambda: held.pop().hold() if held else None
    given = [inputs_for("tiny", seed) for seed in range(4)]
    asked = [asyncio.create_task(service.infer("tiny", each)) for each in given]
    await gate.reached()
    worker = service.worker("tiny")
    await until(lambda: len(worker.line) == 1)
    before = service.inside.budget.used_bytes
    leaving = asyncio.create_task(service.inside.repository.unload("tiny"))
    await asyncio.sleep(0)
    gate.open()
    for each, task in zip(given, asked, strict=True):
        close(arrays(await task), packs.expected("tiny", each))
    await leaving
    assert service.inside.budget.used_bytes < before
    assert "tiny" not in service.inside.budget.held()
    error(await service.infer("tiny", given[0]), 404, "tiny", "unloaded")
    await service.inside.repository.load("tiny")
    close(arrays(await service.infer("tiny", given[0])), packs.expected("tiny", given[0]))


async def test_another_plan_waits_for_both_partitions(
    service: ServiceUnderTest, faults: Faults, packs: Packs
) -> None:
    """Requests go on coming while the engine is replaced; none meets a closed one."""
    entry = next(each for each in service.inside.repository.entries() if each.name == "tiny")
    assert entry.prepared is not None
    assert entry.place is not None
    model, place, worker = entry.prepared, entry.place, service.worker("tiny")
    opener = service.inside.repository._opener

    def again() -> object:
        return opener.reopen("tiny", model, place)

    given = [inputs_for("tiny", seed) for seed in range(12)]
    asked = [asyncio.create_task(service.infer("tiny", each)) for each in given]
    await asyncio.sleep(0)
    await asyncio.gather(*(worker.reopen(again, again) for _ in range(3)))  # type: ignore[arg-type]
    for each, task in zip(given, asked, strict=True):
        close(arrays(await task), packs.expected("tiny", each))


async def test_the_log_and_a_metric_say_how_many_there_are(
    settings: SettingsFactory, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    async with serving(settings(BUDGET, workers="tiny=2")) as service:
        assert await service.metric("layerstream_model_workers", model="tiny") == 2
        assert await service.metric("layerstream_model_workers", model="pair") == 1
    assert "model tiny: 2 workers" in caplog.text
    assert not any("model pair" in line and "workers" in line for line in caplog.messages)


async def test_memory_is_planned_for_both_and_what_is_between(service: ServiceUnderTest) -> None:
    entry = next(each for each in service.inside.repository.entries() if each.name == "tiny")
    assert entry.fitted is not None
    plan = entry.fitted.plan
    assert isinstance(plan, PartitionedPlan)
    assert plan.edge_bytes > 0
    parts = sum(part.total_bytes for part in plan.partitions)
    assert plan.total_bytes == parts + plan.edge_bytes
    assert service.inside.budget.held()["tiny"] == plan.memory
    arena = await service.metric("layerstream_memory_bytes", model="tiny", kind="arena")
    assert arena == service.worker("tiny").engine.statistics().memory["arena"] <= plan.arena_bytes


async def test_partitions_take_no_turns_with_other_models(settings: SettingsFactory) -> None:
    """Where activations are shared, those of a model with workers are its own."""
    asked = settings(BUDGET, workers={"tiny": 2}, activations="shared")
    async with serving(asked) as service:
        assert not service.worker("tiny").engine.takes_turns
        assert service.worker("pair").engine.takes_turns
        held = service.inside.budget.held()
        account = service.inside.budget.account()
        assert account["tiny"] == held["tiny"]


async def test_what_cannot_be_cut_is_refused_by_name(
    settings: SettingsFactory, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    async with serving(settings(BUDGET, workers={"tiny": 64})) as service:
        said = error(await service.infer("tiny", inputs_for("tiny")), 503, "tiny", "64 partitions")
        assert "may begin one" in said
        assert (await service.infer("pair", inputs_for("pair"))).status_code == 200
