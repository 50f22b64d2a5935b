"""Which requests are let in, wait, or give up: the queue, deadlines, disconnects, the drain."""

import asyncio
import contextlib
import itertools
import json
from collections.abc import AsyncIterator, Awaitable
from pathlib import Path
from typing import Any

import pytest

from pipeline.devices.base import DeviceLostError
from pipeline.execution.errors import DeadlineError
from server.app import create_app
from server.errors import BusyError, NotServingError
from server.faults import Outcome
from server.metrics.requests import RequestMetrics
from server.repository.worker import Worker
from tests.examples import over
from tests.server.conftest import SettingsFactory, service_threads
from tests.server.support import (
    LIMIT_SECONDS,
    Connection,
    Faults,
    Gate,
    Packs,
    ServiceUnderTest,
    arrays,
    close,
    error,
    inputs_for,
    request,
    serving,
)

TINY = inputs_for("tiny")
BODY = json.dumps(request(TINY)).encode()


def open_descriptors() -> set[str]:
    """What this process has open, without the directory that is read to find out."""
    found = set()
    for link in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            found.add(f"{link.name} {link.readlink()}")
    return {item for item in found if "/proc/" not in item}


class Held:
    """A service whose "tiny" waits at a gate before its first kernel; counts the kernels that ran."""

    def __init__(self, service: ServiceUnderTest, faults: Faults, packs: Packs) -> None:
        self.service = service
        self.gate = Gate()
        self.kernels = 0
        (plan,) = service.worker("tiny").engine.plan.partitions
        self.pieces = len(plan.steps)
        self._packs = packs
        faults.kernel = self._kernel

    def _kernel(self) -> None:
        self.gate.hold()
        self.kernels += 1

    async def is_right(self, response: Awaitable[object]) -> None:
        answer = await response
        close(arrays(answer), self._packs.expected("tiny", TINY))  # type: ignore[arg-type]


@pytest.fixture
async def outcomes(monkeypatch: pytest.MonkeyPatch) -> asyncio.Queue[str]:
    """Outcomes of requests in the order in which they end."""
    ended: asyncio.Queue[str] = asyncio.Queue()
    count = RequestMetrics.end

    def end(self: RequestMetrics, model: str, version: str, outcome: Outcome, *more: Any) -> None:
        count(self, model, version, outcome, *more)
        ended.put_nowait(outcome)

    monkeypatch.setattr(RequestMetrics, "end", end)
    return ended


@contextlib.asynccontextmanager
async def holding(
    settings: SettingsFactory, faults: Faults, packs: Packs, **changes: object
) -> AsyncIterator[Held]:
    async with asyncio.timeout(LIMIT_SECONDS), serving(settings(**changes)) as service:
        held = Held(service, faults, packs)
        try:
            yield held
        finally:
            held.gate.open()


async def test_a_full_queue(
    settings: SettingsFactory, faults: Faults, packs: Packs, arrivals: asyncio.Semaphore
) -> None:
    async with holding(settings, faults, packs, queue_limit=2) as held:
        infer = held.service.infer
        running = asyncio.create_task(infer("tiny", TINY))
        await held.gate.reached()
        waiting = [asyncio.create_task(infer("tiny", TINY)) for _ in range(2)]
        for _ in range(3):
            await arrivals.acquire()
        assert await held.service.metric("layerstream_queue_length", model="tiny") == 2

        for _ in range(3):
            refused = await infer("tiny", TINY)
            error(refused, 503, "'tiny'", "2 requests")
            assert refused.headers["retry-after"] == "1"
        busy = await held.service.metric("layerstream_requests_total", model="tiny", outcome="busy")
        assert busy == 3

        held.gate.open()
        for task in (running, *waiting):
            await held.is_right(task)
        assert await held.service.metric("layerstream_queue_length", model="tiny") == 0


async def test_a_full_queue_leaves_other_models_alone(
    settings: SettingsFactory, faults: Faults, packs: Packs, arrivals: asyncio.Semaphore
) -> None:
    async with holding(settings, faults, packs, queue_limit=1) as held:
        gate = Gate()
        faults.kernel = lambda: None
        faults.readers["tiny"].hook = lambda *_: gate.hold()
        tasks = [asyncio.create_task(held.service.infer("tiny", TINY))]
        await gate.reached()
        tasks.append(asyncio.create_task(held.service.infer("tiny", TINY)))
        await arrivals.acquire()
        await arrivals.acquire()
        error(await held.service.infer("tiny", TINY), 503)
        gate.open()
        assert (await held.service.infer("pair", inputs_for("pair"))).status_code == 200
        for task in tasks:
            await held.is_right(task)


async def test_a_deadline_missed_while_running(
    settings: SettingsFactory, faults: Faults, packs: Packs, arrivals: asyncio.Semaphore
) -> None:
    async with holding(settings, faults, packs, request_timeout=0.5) as held:
        late = asyncio.create_task(held.service.infer("tiny", TINY))
        await held.gate.reached()
        error(await late, 504, "0.5 s")
        await arrivals.acquire()
        # With a limit that a busy machine keeps.
        worker = held.service.worker("tiny")
        following = asyncio.create_task(worker.infer(TINY, LIMIT_SECONDS))
        await arrivals.acquire()
        held.gate.open()
        close((await following).outputs, packs.expected("tiny", TINY))
        # The late one ended at the gate.
        assert held.kernels == 1 + held.pieces
        missed = await held.service.metric(
            "layerstream_requests_total", model="tiny", outcome="deadline"
        )
        assert missed == 1


async def test_a_deadline_missed_in_the_queue(
    settings: SettingsFactory, faults: Faults, packs: Packs
) -> None:
    async with holding(settings, faults, packs) as held:
        worker = held.service.worker("tiny")
        running = asyncio.create_task(held.service.infer("tiny", TINY))
        await held.gate.reached()
        with pytest.raises(DeadlineError, match=r"0\.01 s"):
            await worker.infer(TINY, 0.01)
        held.gate.open()
        await held.is_right(running)
        await held.is_right(held.service.infer("tiny", TINY))
        assert held.kernels == 2 * held.pieces


async def test_a_deadline_missed_while_reading(
    settings: SettingsFactory, faults: Faults, packs: Packs
) -> None:
    async with holding(settings, faults, packs, request_timeout=0.5) as held:
        held.gate.open()
        gate = Gate()
        faults.read = lambda *_: gate.hold()
        error(await held.service.infer("tiny", TINY), 504, "0.5 s")
        gate.open()
        assert held.kernels < held.pieces
        answer = await held.service.worker("tiny").infer(TINY, LIMIT_SECONDS)
        close(answer.outputs, packs.expected("tiny", TINY))


async def test_a_client_that_goes_away_while_its_request_runs(
    settings: SettingsFactory, faults: Faults, packs: Packs, outcomes: asyncio.Queue[str]
) -> None:
    async with holding(settings, faults, packs) as held:
        connection = Connection("/v2/models/tiny/infer", BODY)
        call = asyncio.create_task(connection.call(held.service.asgi))
        await held.gate.reached()
        others = [asyncio.create_task(held.service.infer("tiny", TINY)) for _ in range(2)]
        connection.go_away()
        assert await outcomes.get() == "cancelled"
        await call
        assert connection.status == 499
        held.gate.open()
        for other in others:
            await held.is_right(other)
        assert held.kernels == 1 + 2 * held.pieces


async def test_a_client_that_goes_away_while_its_request_waits(
    settings: SettingsFactory,
    faults: Faults,
    packs: Packs,
    outcomes: asyncio.Queue[str],
    arrivals: asyncio.Semaphore,
) -> None:
    async with holding(settings, faults, packs) as held:
        running = asyncio.create_task(held.service.infer("tiny", TINY))
        await held.gate.reached()
        await arrivals.acquire()
        connection = Connection("/v2/models/tiny/infer", BODY)
        call = asyncio.create_task(connection.call(held.service.asgi))
        await arrivals.acquire()
        connection.go_away()
        assert await outcomes.get() == "cancelled"
        await call
        held.gate.open()
        await held.is_right(running)
        await held.is_right(held.service.infer("tiny", TINY))
        assert held.kernels == 2 * held.pieces


@over("path", ["/v2/models/tiny/infer", "/v2/models/tiny:classify"])
@over("kind", ["application/json", "multipart/form-data; boundary=b"])
async def test_a_client_that_goes_away_while_sending(
    service: ServiceUnderTest, path: str, kind: str
) -> None:
    part = b'{"inputs":[' if path.endswith("infer") else b"--b\r\n"
    connection = Connection(path, part, ("content-type", kind), more=True)
    connection.go_away()
    await connection.call(service.asgi)
    assert connection.status == 499
    assert (await service.infer("tiny", TINY)).status_code == 200


async def cancelled(task: asyncio.Task[object]) -> None:
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task


async def test_cancelling_at_any_step_leaves_the_worker_usable(
    settings: SettingsFactory, faults: Faults, packs: Packs
) -> None:
    async with serving(settings(queue_limit=100)) as service:
        worker = service.worker("tiny")
        expected = packs.expected("tiny", TINY)
        for steps in itertools.chain(range(20), range(20, 400, 40)):
            task = asyncio.create_task(worker.infer(TINY, LIMIT_SECONDS))
            for _ in range(steps):
                await asyncio.sleep(0)
            await cancelled(task)
        close((await worker.infer(TINY, LIMIT_SECONDS)).outputs, expected)
        worker.engine.settle()
        assert faults.readers["tiny"].in_progress == 0


@pytest.mark.parametrize("where", ["kernel", "read"])
async def test_cancelling_at_any_kernel_or_read_leaves_the_worker_usable(
    settings: SettingsFactory, faults: Faults, packs: Packs, where: str
) -> None:
    async with serving(settings()) as service:
        worker = service.worker("tiny")
        (plan,) = worker.engine.plan.partitions
        expected = packs.expected("tiny", TINY)
        for number in range(0, len(plan.reads), 5):
            gate, calls = Gate(), itertools.count()

            def hook(*_: int, gate: Gate = gate, at: int = number) -> None:
                if next(calls) == at:  # noqa: B023  used within this turn of the loop only
                    gate.hold()

            if where == "kernel":
                faults.kernel = hook
            else:
                faults.read = hook
            task = asyncio.create_task(worker.infer(TINY, LIMIT_SECONDS))
            await gate.reached()
            await cancelled(task)
            gate.open()
            close((await worker.infer(TINY, LIMIT_SECONDS)).outputs, expected)


async def test_cancelling_all_that_wait(
    settings: SettingsFactory, faults: Faults, packs: Packs
) -> None:
    async with holding(settings, faults, packs, queue_limit=5) as held:
        worker = held.service.worker("tiny")
        running = asyncio.create_task(worker.infer(TINY, LIMIT_SECONDS))
        await held.gate.reached()
        waiting = [asyncio.create_task(worker.infer(TINY, LIMIT_SECONDS)) for _ in range(5)]
        await asyncio.sleep(0)
        assert len(worker.line) == 5
        with pytest.raises(BusyError):
            await worker.infer(TINY, LIMIT_SECONDS)
        for task in waiting:
            await cancelled(task)
        held.gate.open()
        close((await running).outputs, packs.expected("tiny", TINY))
        await worker.infer(TINY, LIMIT_SECONDS)
        assert held.kernels == 2 * held.pieces


async def test_the_drain_answers_what_was_accepted(
    settings: SettingsFactory, faults: Faults, packs: Packs, arrivals: asyncio.Semaphore
) -> None:
    app = create_app(settings())
    lifespan = app.router.lifespan_context(app)
    await lifespan.__aenter__()
    await app.state.service.loaded()
    service = ServiceUnderTest.of(app)
    held = Held(service, faults, packs)
    worker = service.worker("tiny")
    async with asyncio.timeout(LIMIT_SECONDS), service.client:
        accepted = [asyncio.create_task(service.infer("tiny", TINY)) for _ in range(3)]
        await held.gate.reached()
        for _ in accepted:
            await arrivals.acquire()
        closing = asyncio.Event()
        close_worker = Worker.close

        async def closes(self: Worker) -> None:
            closing.set()
            await close_worker(self)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Worker, "close", closes)
            stop = asyncio.create_task(lifespan.__aexit__(None, None, None))
            await closing.wait()
            error(await service.infer("tiny", TINY), 503, "'tiny'")
            assert not stop.done()
            held.gate.open()
            for task in accepted:
                await held.is_right(task)
            await stop
        with pytest.raises(NotServingError):
            await worker.infer(TINY, LIMIT_SECONDS)
        error(await service.infer("tiny", TINY), 503, "the service has ended")
        error(await service.infer("pair", inputs_for("pair")), 503, "the service has ended")
    assert service_threads() == []
    assert all(reader.closed for reader in faults.readers.values())
    assert service.inside.budget.held() == {}


async def test_start_and_stop_again_and_again(settings: SettingsFactory, packs: Packs) -> None:
    for _ in range(3):
        descriptors = open_descriptors()
        async with serving(settings()) as service:
            assert (await service.infer("tiny", TINY)).status_code == 200
        assert service_threads() == []
        assert open_descriptors() == descriptors


async def test_a_service_that_hangs_does_not_count_as_alive(
    settings: SettingsFactory, faults: Faults, packs: Packs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("server.service._HUNG_SECONDS", -30 + 1e-9)
    async with holding(settings, faults, packs, request_timeout=30.0) as held:
        inside, worker = held.service.inside, held.service.worker("tiny")
        assert not inside.restart_reason()
        running = asyncio.create_task(held.service.infer("tiny", TINY))
        await held.gate.reached()
        assert worker.stuck_seconds() > 0
        assert inside.restart_reason()
        held.gate.open()
        await held.is_right(running)
        await held.service.client.post("/v2/repository/models/tiny/unload")
        assert worker.stuck_seconds() == 0
        assert not inside.restart_reason()


async def test_who_is_cut_off_at_the_end_is_told_so(
    settings: SettingsFactory, faults: Faults, packs: Packs
) -> None:
    async with holding(settings, faults, packs) as held:
        client = Connection("/v2/models/tiny/infer", BODY)
        asked = asyncio.create_task(client.call(held.service.asgi))
        await held.gate.reached()
        asked.cancel()  # what uvicorn does when the time to drain is over
        with pytest.raises(asyncio.CancelledError):
            await asked
        assert client.status == 503
        assert "stopping" in json.loads(client.answer)["error"]
        held.gate.open()


async def test_a_lost_device_takes_models_out_of_service_and_the_server_lives(
    settings: SettingsFactory, faults: Faults, packs: Packs
) -> None:
    def lose() -> None:
        raise DeviceLostError("the CUDA device is lost until a restart: illegal address")

    async with holding(settings, faults, packs) as held:
        faults.kernel = lose
        assert (await held.service.infer("tiny", TINY)).status_code >= 500
        error(await held.service.infer("tiny", TINY), 503, "lost until a restart")
        assert (await held.service.client.get("/v2/health/live")).status_code == 200
        # Under a service manager with a watchdog this ends in a restart.
        assert held.service.inside.restart_reason()
