"""Requests that wait share the next sweep: the same answers, and one that stops stops alone."""

import asyncio
from collections.abc import AsyncIterator

import httpx
import pytest

from pipeline.devices.base import KernelError
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
async def laned(settings: SettingsFactory, faults: Faults) -> AsyncIterator[ServiceUnderTest]:
    """ "tiny" streams through a small ring, its sweeps carry four requests."""
    async with serving(
        settings(BUDGET, lanes="tiny=4", models=("tiny",), architecture="2s")
    ) as started:
        yield started


class Waiting:
    """Requests of which the first is held in a kernel, while the others wait."""

    def __init__(self, service: ServiceUnderTest, faults: Faults, requests: int) -> None:
        self.service, self.faults = service, faults
        self.gate = Gate()
        self.inputs = [inputs_for("tiny", seed) for seed in range(requests)]

    async def ask(self) -> "list[asyncio.Task[httpx.Response]]":
        held = [self.gate]
        self.faults.kernel = lambda: held.pop().hold() if held else None
        first = asyncio.create_task(self.service.infer("tiny", self.inputs[0]))
        await self.gate.reached()
        others = [
            asyncio.create_task(self.service.infer("tiny", inputs)) for inputs in self.inputs[1:]
        ]
        await until(lambda: len(self.service.worker("tiny").line) == len(others))
        return [first, *others]


async def test_who_waits_shares_the_next_sweep(
    laned: ServiceUnderTest, faults: Faults, packs: Packs
) -> None:
    waiting = Waiting(laned, faults, 8)
    asked = await waiting.ask()
    waiting.gate.open()
    for inputs, task in zip(waiting.inputs, asked, strict=True):
        close(arrays(await task), packs.expected("tiny", inputs))
    # One alone, four, and the three that are left.
    assert await laned.metric("layerstream_sweep_seconds_count", model="tiny") == 3
    assert await laned.metric("layerstream_swept_requests_total", model="tiny") == 8


async def test_one_that_leaves_takes_no_lane(
    laned: ServiceUnderTest, faults: Faults, packs: Packs
) -> None:
    waiting = Waiting(laned, faults, 4)
    asked = await waiting.ask()
    asked[1].cancel()
    await asyncio.gather(asked[1], return_exceptions=True)
    waiting.gate.open()
    for number in (0, 2, 3):
        close(arrays(await asked[number]), packs.expected("tiny", waiting.inputs[number]))
    assert len(laned.worker("tiny").line) == 0
    assert laned.inside.request_memory.used_bytes == 0


async def test_one_that_fails_leaves_the_others_of_its_sweep(
    laned: ServiceUnderTest, faults: Faults, packs: Packs
) -> None:
    waiting = Waiting(laned, faults, 4)
    asked = await waiting.ask()
    (plan,) = laned.worker("tiny").engine.plan.partitions
    pieces = len(plan.steps)
    broken = Once(KernelError("broken"), pieces + 4)
    faults.kernel = broken
    waiting.gate.open()
    answers = await asyncio.gather(*asked)
    failed = [answer.status_code for answer in answers].count(500)
    assert failed == 1
    for inputs, answer in zip(waiting.inputs, answers, strict=True):
        if answer.status_code == 200:
            close(arrays(answer), packs.expected("tiny", inputs))


@pytest.mark.parametrize("count", [2, 4])
async def test_lanes_are_in_the_budget_and_only_where_it_has_room(
    settings: SettingsFactory, packs: Packs, count: int
) -> None:
    async with serving(settings(BUDGET, lanes=count, models=("tiny",))) as service:
        (plan,) = service.worker("tiny").engine.plan.partitions
        assert plan.batch_size == count
        assert service.inside.budget.held()["tiny"] == plan.memory
        measured = service.worker("tiny").engine.statistics().memory
        assert measured["arena"] == plan.arena_bytes == count * plan.lane_bytes
    tight = settings(packs.smallest("tiny"), lanes=count, models=("tiny",))
    async with serving(tight) as service:
        assert service.worker("tiny").engine.plan.batch_size == 1


async def test_without_lanes_requests_run_one_by_one(
    settings: SettingsFactory, faults: Faults, packs: Packs
) -> None:
    async with serving(settings(BUDGET, models=("tiny",))) as service:
        waiting = Waiting(service, faults, 3)
        asked = await waiting.ask()
        waiting.gate.open()
        for inputs, task in zip(waiting.inputs, asked, strict=True):
            close(arrays(await task), packs.expected("tiny", inputs))
        assert await service.metric("layerstream_sweep_seconds_count", model="tiny") == 3


async def test_a_deadline_that_cannot_be_met_is_refused_at_once(
    laned: ServiceUnderTest, faults: Faults
) -> None:
    for seed in range(3):
        assert (await laned.infer("tiny", inputs_for("tiny", seed))).status_code == 200
    waiting = Waiting(laned, faults, 1)
    (first,) = await waiting.ask()
    parameters = {"timeout": 2}
    late = await laned.infer("tiny", inputs_for("tiny"), parameters=parameters)
    error(late, 503)
    assert int(late.headers["Retry-After"]) == 1
    waiting.gate.open()
    assert (await first).status_code == 200
    costs = laned.worker("tiny")._dispatcher.costs
    for _ in range(40):
        costs.see(laned.worker("tiny").line.key, 1, 60.0)
    refused = await laned.infer("tiny", inputs_for("tiny"))
    error(refused, 503, "tiny", "no answer in time")
    assert int(refused.headers["Retry-After"]) > 30
    assert await laned.metric("layerstream_requests_total", model="tiny", outcome="late") == 2


async def test_what_its_model_can_never_answer_in_time_is_refused_unread(
    settings: SettingsFactory, faults: Faults
) -> None:
    """The body of a picture is not read: that it is nonsense is not found."""
    asked = settings(BUDGET, models=("tiny",), deadline="tiny=0.5", architecture="2s")
    async with serving(asked) as service:
        worker = service.worker("tiny")
        worker._dispatcher.expect(worker.line.key, 2.0, None)
        nonsense = await service.client.post("/v2/models/tiny:classify", content=b"nonsense")
        error(nonsense, 503, "tiny", "no answer in time")
        assert nonsense.headers["Retry-After"] == "2"
        # It was a guess, and no other request was there.
        assert (await service.infer("tiny", inputs_for("tiny"))).status_code == 200


@pytest.mark.parametrize("requests", [1, 2, 5])
async def test_requests_that_wait_for_others_are_answered_without_them(
    settings: SettingsFactory, packs: Packs, requests: int
) -> None:
    delayed = settings(BUDGET, lanes=4, lane_delay=0.002, models=("tiny",), request_timeout=5.0)
    async with serving(delayed) as service:
        sent = [inputs_for("tiny", seed) for seed in range(requests)]
        answers = await asyncio.gather(*(service.infer("tiny", inputs) for inputs in sent))
        for inputs, answer in zip(sent, answers, strict=True):
            close(arrays(answer), packs.expected("tiny", inputs))
