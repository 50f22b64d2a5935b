"""Faults of a disk at every span, by the shipped faulty reader: each is named, and over with its cause."""

from collections.abc import AsyncIterator
from pathlib import Path

import numpy as np
import pytest

from loader.errors import ChecksumError, LoaderError, ReadError
from loader.readers.fakes import FaultKind, FaultyReader, MemoryReader, ReadFault
from models.packs.records.spans import Span
from server.repository.worker import Worker
from tests.pipeline.writes import streamed as streamed_spans
from tests.server.conftest import SettingsFactory
from tests.server.support import (
    LIMIT_SECONDS,
    Packs,
    ServiceUnderTest,
    SwitchedReader,
    close,
    error,
    inputs_for,
    serving,
)

TINY = inputs_for("tiny")
LOAD = "/v2/repository/models/tiny/load"
#: Architectures that read in each sweep.
RINGS = ("2s", "async", "auto")
ERRORS: dict[FaultKind, tuple[type[LoaderError], str]] = {
    "io error": (ReadError, "Input/output error"),
    "short": (ReadError, "short of"),
    "wrong bytes": (ChecksumError, "are damaged"),
}


@pytest.fixture
def disks(monkeypatch: pytest.MonkeyPatch) -> dict[str, SwitchedReader]:
    """Readers by model, for services started afterwards."""
    found: dict[str, SwitchedReader] = {}

    def open_reader(path: Path) -> SwitchedReader:
        reader = SwitchedReader(MemoryReader(path.read_bytes()))
        return found.setdefault(path.parent.parent.name, reader)

    monkeypatch.setattr("server.repository.environment.open_reader", open_reader)
    return found


@pytest.fixture
async def service(
    architecture: str, settings: SettingsFactory, disks: dict[str, SwitchedReader]
) -> AsyncIterator[ServiceUnderTest]:
    changes = {"architecture": architecture, "verify": "always", "models_budget": 2 << 20}
    async with serving(settings(**changes)) as started:
        yield started


def streamed(worker: Worker) -> list[Span]:
    (plan,) = worker.engine.plan.partitions
    spans = [worker.engine.program.pack.manifest.spans[index] for index in streamed_spans(plan)]
    assert len(spans) > 3
    return spans


def head(worker: Worker) -> set[int]:
    """Offsets of spans that are read before a request comes."""
    (plan,) = worker.engine.plan.partitions
    spans = worker.engine.program.pack.manifest.spans
    reads = plan.reads[: plan.stages[0].ahead]
    return {spans[index].offset for read in reads for index in read.spans}


@pytest.mark.parametrize(
    ("architecture", "kind"),
    [
        pytest.param(architecture, kind, marks=() if (one + other) % 3 == 0 else pytest.mark.slow)
        for one, architecture in enumerate(RINGS)
        for other, kind in enumerate(ERRORS)
    ],
)
async def test_one_fault_costs_one_request(
    service: ServiceUnderTest, disks: dict[str, SwitchedReader], kind: FaultKind
) -> None:
    worker, disk = service.worker("tiny"), disks["tiny"]
    expected = (await worker.infer(TINY, LIMIT_SECONDS)).outputs
    kinds, words = ERRORS[kind]
    ahead = head(worker)
    for span in streamed(worker)[::3]:
        worker.engine.settle()
        faulty = FaultyReader(disk.sound, [ReadFault(kind, span.offset, span.offset + span.length)])
        disk.current = faulty
        if span.offset in ahead:
            # The next request has it already; the one after that reads it again.
            await worker.infer(TINY, LIMIT_SECONDS)
            worker.engine.settle()
        else:
            with pytest.raises(kinds, match=words) as caught:
                await worker.infer(TINY, LIMIT_SECONDS)
            assert type(caught.value) is kinds
            # Nothing is in flight: no read writes into the ring any more.
            assert isinstance(disk.sound, MemoryReader)
            assert disk.sound.in_progress == 0
        for _ in range(2):
            got = (await worker.infer(TINY, LIMIT_SECONDS)).outputs
            for name, array in expected.items():
                np.testing.assert_array_equal(got[name], array)
        assert faulty.struck == [1]
    assert worker.fault is None
    assert (await service.infer("pair", inputs_for("pair"))).status_code == 200


@pytest.mark.parametrize(
    "architecture", [*(pytest.param(name, marks=pytest.mark.slow) for name in RINGS[:2]), RINGS[2]]
)
async def test_a_slow_read_costs_time_only(
    service: ServiceUnderTest, disks: dict[str, SwitchedReader], packs: Packs
) -> None:
    worker, disk = service.worker("tiny"), disks["tiny"]
    expected = packs.expected("tiny", TINY)
    slept: list[float] = []
    for span in streamed(worker):
        worker.engine.settle()
        disk.current = FaultyReader(
            disk.sound, [ReadFault("slow", span.offset, span.offset + span.length)], slept.append
        )
        for _ in range(2):
            got = (await worker.infer(TINY, LIMIT_SECONDS)).outputs
            close(got, expected)
    worker.engine.settle()
    assert len(slept) == len(streamed(worker))


async def test_a_fault_while_loading(
    settings: SettingsFactory,
    packs: Packs,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with serving(settings(architecture="pre", models_budget=64 << 20)) as service:
        spans = service.worker("tiny").engine.program.pack.manifest.spans
        places = (spans[0], spans[len(spans) // 2], spans[-1])
        for number, (kind, (_, words)) in enumerate(ERRORS.items()):
            for span in (places[number % len(places)],):
                await service.client.post("/v2/repository/models/tiny/unload")
                faults = [ReadFault(kind, span.offset, span.offset + span.length)]

                def open_reader(path: Path, faults: list[ReadFault] = faults) -> FaultyReader:
                    return FaultyReader(MemoryReader(path.read_bytes()), faults)

                with monkeypatch.context() as patch:
                    patch.setattr("server.repository.environment.open_reader", open_reader)
                    error(await service.client.post(LOAD), 503, words)
                error(await service.infer("tiny", TINY), 503, "'tiny'", words)
                assert service.inside.budget.held().keys() == {"pair"}
                assert (await service.client.post(LOAD)).status_code == 200
        answer = await service.worker("tiny").infer(TINY, LIMIT_SECONDS)
        close(answer.outputs, packs.expected("tiny", TINY))
