"""Disks and kernels that fail: one request pays with a reason, the next one is answered."""

import errno
import itertools
import logging
import os
from collections.abc import AsyncIterator, Iterable
from pathlib import Path
from typing import Any

import pytest

from loader.errors import ReadError
from loader.readers.fakes import MemoryReader
from pipeline.devices.base import KernelError
from pipeline.execution.answering import Answering
from pipeline.execution.errors import DrainError
from pipeline.execution.opened import open_answering
from pipeline.profiles.delay_limits import BoundWatch, DelayVerdict
from pipeline.program.program import Program
from pipeline.schedule.trace import TraceEvent
from server.errors import NotServingError
from server.operation.starting import StartupError
from server.repository.served_engine import Running
from tests.server.conftest import SettingsFactory
from tests.server.support import (
    LIMIT_SECONDS,
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
)


@pytest.fixture
async def faulty(faults: Faults, settings: SettingsFactory) -> AsyncIterator[ServiceUnderTest]:
    """A service that verifies every sweep, so that damage never goes unseen."""
    async with serving(settings(verify="always", architecture="2s")) as service:
        yield service


async def answers(service: ServiceUnderTest, packs: Packs) -> None:
    for name in ("tiny", "pair"):
        inputs = inputs_for(name)
        close(arrays(await service.infer(name, inputs)), packs.expected(name, inputs))


def refuse(offset: int, length: int) -> None:
    cause = OSError(errno.EIO, os.strerror(errno.EIO))
    raise ReadError(
        f"weights.bin: bytes [{offset}, {offset + length}): {cause.strerror}"
    ) from cause


async def test_any_read_that_fails(faulty: ServiceUnderTest, faults: Faults, packs: Packs) -> None:
    (plan,) = faulty.worker("tiny").engine.plan.partitions
    reads = len(plan.reads)
    assert reads > 3
    for number in range(reads):
        faults.read = Once(ReadError("weights.bin: Input/output error"), number)
        error(await faulty.infer("tiny", inputs_for("tiny")), 503, "Input/output error")
        assert faults.readers["tiny"].in_progress == 0
    await answers(faulty, packs)
    failed = await faulty.metric("layerstream_requests_total", model="tiny", outcome="failed")
    assert failed == reads
    assert faulty.worker("tiny").engine.statistics().failures == reads


async def test_every_read_fails_until_the_disk_is_back(
    faulty: ServiceUnderTest, faults: Faults, packs: Packs
) -> None:
    faults.read = refuse
    for _ in range(3):
        error(await faulty.infer("tiny", inputs_for("tiny")), 503, "Input/output error")
    faults.read = lambda offset, length: None
    await answers(faulty, packs)


async def test_a_reader_with_a_bug(faulty: ServiceUnderTest, faults: Faults, packs: Packs) -> None:
    faults.read = Once(ZeroDivisionError("a bug"), 2)
    error(await faulty.infer("tiny", inputs_for("tiny")), 503, "a bug")
    await answers(faulty, packs)


async def test_a_file_that_became_shorter(
    faulty: ServiceUnderTest, faults: Faults, packs: Packs
) -> None:
    reader = faults.readers["tiny"]
    whole = reader.content
    for length in (0, 4096, len(whole) // 2, len(whole) - 1):
        reader.content = whole[:length]
        error(await faulty.infer("tiny", inputs_for("tiny")), 503, "short")
    reader.content = whole
    await answers(faulty, packs)


async def test_damage_in_any_span(faulty: ServiceUnderTest, faults: Faults, packs: Packs) -> None:
    reader = faults.readers["tiny"]
    whole = reader.content
    streamed = [
        span
        for span in faulty.worker("tiny").engine.program.pack.manifest.spans
        if not span.resident
    ]
    await answers(faulty, packs)
    for span in streamed:
        damaged = bytearray(whole)
        damaged[span.offset + span.length // 2] ^= 1
        reader.content = bytes(damaged)
        message = error(await faulty.infer("tiny", inputs_for("tiny")), 503, "damaged")
        assert f"[{span.offset}, {span.offset + span.length})" in message
    reader.content = whole
    await answers(faulty, packs)


async def test_the_first_sweep_is_verified_until_one_is_whole(
    faults: Faults, settings: SettingsFactory, packs: Packs
) -> None:
    async with serving(settings()) as service:
        reader = faults.readers["tiny"]
        whole = reader.content
        reader.content = whole[:-100] + bytes(byte ^ 1 for byte in whole[-100:])
        for _ in range(2):
            error(await service.infer("tiny", inputs_for("tiny")), 503, "damaged")
        reader.content = whole
        await answers(service, packs)


async def test_any_kernel_that_fails(
    faulty: ServiceUnderTest, faults: Faults, packs: Packs
) -> None:
    (plan,) = faulty.worker("tiny").engine.plan.partitions
    pieces = len(plan.steps)
    for number in range(pieces):
        faults.kernel = Once(KernelError("no such instruction"), number)
        error(await faulty.infer("tiny", inputs_for("tiny")), 500, "no such instruction")
        assert faults.readers["tiny"].in_progress == 0
    await answers(faulty, packs)


async def test_a_fault_that_nobody_thought_of(
    faulty: ServiceUnderTest, faults: Faults, packs: Packs, caplog: pytest.LogCaptureFixture
) -> None:
    faults.kernel = Once(ZeroDivisionError("the secret"))
    with caplog.at_level(logging.INFO):
        response = await faulty.infer("tiny", inputs_for("tiny"))
    message = error(response, 500, "internal error")
    assert "secret" not in message
    assert response.headers["x-request-id"]
    access = [record for record in caplog.records if record.name == "server.access"]
    assert [record.__dict__["status"] for record in access] == [500]
    assert "ZeroDivisionError: the secret" in caplog.text
    await answers(faulty, packs)


async def test_a_resident_span_that_cannot_be_read(
    faults: Faults, settings: SettingsFactory, packs: Packs
) -> None:
    faults.read = Once(ReadError("weights.bin: Input/output error"))
    async with serving(settings()) as service:
        client = service.client
        error(await client.get("/v2/models/tiny/ready"), 503, "'tiny'", "Input/output error")
        error(await service.infer("tiny", inputs_for("tiny")), 503, "Input/output error")
        assert (await service.infer("pair", inputs_for("pair"))).status_code == 200
        assert service.inside.budget.held().keys() == {"pair"}
        assert (await client.post("/v2/repository/models/tiny/load")).status_code == 200
        await answers(service, packs)


async def test_a_damaged_resident_span(
    faults: Faults, settings: SettingsFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    def damaged(path: Path) -> MemoryReader:
        reader = faults.open_reader(path)
        reader.content = b"\1" * len(reader.content)
        return reader

    monkeypatch.setattr("server.repository.environment.open_reader", damaged)
    with pytest.raises(StartupError, match="damaged") as caught:
        async with serving(settings()):
            pass
    assert not caught.value.may_pass  # the next start reads the same bytes


async def test_a_read_that_never_ends_takes_its_model_only(
    faults: Faults, settings: SettingsFactory, packs: Packs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pipeline.execution.deadlines.DRAIN_SECONDS", 1.0)
    async with serving(settings(request_timeout=0.5)) as service:
        gate = Gate()
        first = itertools.count()
        faults.readers["tiny"].hook = lambda *_: None if next(first) else gate.hold()
        worker = service.worker("tiny")
        error(await service.infer("tiny", inputs_for("tiny")), 504, "0.5 s")
        with pytest.raises(NotServingError, match="have not ended"):
            await worker.infer(inputs_for("tiny"), LIMIT_SECONDS)
        error(await service.infer("tiny", inputs_for("tiny")), 503, "have not ended")
        answer = await service.worker("pair").infer(inputs_for("pair"), LIMIT_SECONDS)
        close(answer.outputs, packs.expected("pair", inputs_for("pair")))
        # Its memory is the disk's for ever: loading it again would take memory twice.
        held = service.inside.budget.held()
        for _ in range(2):
            loaded = await service.client.post("/v2/repository/models/tiny/load")
            error(loaded, 503, "have not ended", "restart the server")
        assert service.inside.budget.held() == held
        gate.open()


class Unjudging(BoundWatch):
    """Fails on what it sees, in any way."""

    def __init__(self) -> None:
        self.seen = 0

    def see(self, events: Iterable[TraceEvent], delay_seconds: float) -> DelayVerdict:
        self.seen += 1
        raise KeyError("a piece that the profile does not know")


async def test_a_sweep_that_cannot_be_judged_is_answered(
    faulty: ServiceUnderTest, packs: Packs, caplog: pytest.LogCaptureFixture
) -> None:
    worker, watch = faulty.worker("tiny"), Unjudging()
    worker.served.running = worker.served.running._replace(watch=watch)
    for _ in range(3):
        await answers(faulty, packs)
    await worker.close()
    assert watch.seen == 3
    assert "cannot be judged" in caplog.text


async def test_an_engine_that_cannot_be_closed_leaves_service(
    faulty: ServiceUnderTest, packs: Packs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is to be opened with another plan; the thread outlives it, and says why it answers no more."""
    worker = faulty.worker("tiny")
    monkeypatch.setattr(worker.engine, "close", Once(ZeroDivisionError("a bug")))
    with pytest.raises(NotServingError, match="a bug"):
        await worker.reopen(never, never)
    error(await faulty.infer("tiny", inputs_for("tiny")), 503, "could not be closed: a bug")


async def test_a_model_that_cannot_be_closed_keeps_its_memory_and_the_others_serve(
    faulty: ServiceUnderTest, packs: Packs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What still uses it is unknown."""
    repository, engine = faulty.inside.repository, faulty.worker("tiny").engine
    held = faulty.inside.budget.held()["tiny"]
    with monkeypatch.context() as patched:
        patched.setattr(engine, "close", Once(ZeroDivisionError("a bug")))
        await repository.unload("tiny")
    assert faulty.inside.budget.held()["tiny"] == held
    with pytest.raises(NotServingError, match="a bug; restart the server"):
        await repository.load("tiny")
    inputs = inputs_for("pair")
    close(arrays(await faulty.infer("pair", inputs)), packs.expected("pair", inputs))
    engine.close()


def never() -> Running:
    raise AssertionError("the engine before is still there")


async def test_a_read_that_never_ends_while_a_model_loads_keeps_its_memory(
    settings: SettingsFactory, packs: Packs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk may still write there; the other models are served."""
    real = open_answering

    def stuck(program: Program, *arguments: Any, **options: Any) -> Answering:
        if program.name == "pair":
            raise DrainError("span 0 has not been read")
        return real(program, *arguments, **options)

    monkeypatch.setattr("server.repository.environment.open_answering", stuck)
    async with serving(settings()) as service:
        inputs = inputs_for("tiny")
        close(arrays(await service.infer("tiny", inputs)), packs.expected("tiny", inputs))
        held = service.inside.budget.held()
        assert held["pair"]
        monkeypatch.setattr("server.repository.environment.open_answering", real)
        with pytest.raises(NotServingError, match="restart"):
            await service.inside.repository.load("pair")
        assert service.inside.budget.held() == held
