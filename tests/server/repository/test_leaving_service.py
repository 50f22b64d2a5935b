"""A pack that changes under a loaded model, a disk that disappears: the model leaves, nothing else does."""

import asyncio
import itertools
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from loader.readers.fakes import FaultyReader, ReadFault
from loader.readers.files import open_reader
from loader.readers.interface import Reader
from pipeline.execution.errors import ArenaLostError, CancelledError
from server import faults
from server.repository.instances import Uses
from tests.examples import thinned
from tests.server.conftest import SettingsFactory
from tests.server.support import (
    LIMIT_SECONDS,
    Packs,
    ServiceUnderTest,
    SwitchedReader,
    arrays,
    close,
    error,
    inputs_for,
    serving,
)

TINY = inputs_for("tiny")
MODEL = "/v2/models/tiny"
LOAD = "/v2/repository/models/tiny/load"


@pytest.fixture
def repository(packs: Packs, tmp_path: Path) -> Path:
    """A copy of the packs, which tests may damage."""
    return Path(shutil.copytree(packs.repository, tmp_path / "packs"))


async def test_an_unload_waits_for_no_request_that_is_still_read(settings: SettingsFactory) -> None:
    """Unlike a model that goes for another one, or for its next version."""
    async with serving(settings(models=("tiny",), request_timeout=10 * LIMIT_SECONDS)) as service:
        use = await service.inside.repository.find("tiny", None, LIMIT_SECONDS)
        assert use.uses is not None
        async with asyncio.timeout(LIMIT_SECONDS):
            await service.inside.repository.unload("tiny")
        assert len(use.uses) == 1
        use.end()


async def test_uses_are_over_with_the_last_one_however_often() -> None:
    """A wait that has ended, or was given up, does not keep later uses from ending."""
    clock = itertools.count()
    uses = Uses(lambda: next(clock))
    for _ in range(2):
        uses.begin()
    waiting = asyncio.create_task(uses.over(LIMIT_SECONDS))
    await asyncio.sleep(0)
    uses.end()
    began_last = uses.used_at
    for _ in range(8):  # as many turns of the loop as its end would take
        await asyncio.sleep(0)
    assert (len(uses), waiting.done()) == (1, False)
    uses.end()
    assert uses.used_at > began_last  # of models not in use the one goes whose last use ended first
    await waiting
    uses.begin()
    uses.end()
    assert len(uses) == 0


async def test_uses_in_parts_are_over_before_others() -> None:
    uses = Uses()
    for _ in range(3):
        uses.begin()
    await uses.over(LIMIT_SECONDS, in_parts=True)  # there are none
    uses.begin_parts()
    waiting = asyncio.create_task(uses.over(LIMIT_SECONDS, in_parts=True))
    await asyncio.sleep(0)
    uses.end()
    for _ in range(8):
        await asyncio.sleep(0)
    assert not waiting.done()
    uses.end(in_parts=True)
    await waiting
    assert len(uses) == 1


def written_to(weights: Path) -> None:
    with weights.open("r+b") as file:
        file.seek(5000)
        file.write(b"\1" * 100)
    later = weights.stat().st_mtime_ns + 1_000_000_000
    os.utime(weights, ns=(later, later))


def truncated(weights: Path) -> None:
    os.truncate(weights, weights.stat().st_size // 2)


def removed(weights: Path) -> None:
    weights.unlink()


async def out_of_service(service: ServiceUnderTest, *words: str) -> None:
    """Check that "tiny" is, for a reason that has ``words``, and that "pair" is not."""
    client = service.client
    for _ in range(2):
        error(await service.infer("tiny", TINY), 503, "'tiny'", *words)
    error(await client.get(f"{MODEL}/ready"), 503, "'tiny'", *words)
    index = {entry["name"]: entry for entry in (await client.post("/v2/repository/index")).json()}
    assert index["tiny"]["state"] == "UNAVAILABLE"
    assert all(word in index["tiny"]["reason"] for word in words)
    assert index["pair"]["state"] == "READY"
    assert await service.metric("layerstream_model_ready", model="tiny") == 0
    assert await service.metric("layerstream_model_ready", model="pair") == 1
    assert (await client.get("/v2/health/ready")).status_code == 200
    assert "tiny" not in service.inside.describe()
    assert (await service.infer("pair", inputs_for("pair"))).status_code == 200


async def back_in_service(service: ServiceUnderTest, packs: Packs) -> None:
    assert (await service.client.post(LOAD)).json() == {"name": "tiny", "state": "READY"}
    assert (await service.client.get(f"{MODEL}/ready")).status_code == 200
    close(arrays(await service.infer("tiny", TINY)), packs.expected("tiny", TINY))
    assert service.inside.budget.held().keys() == {"tiny", "pair"}


@pytest.mark.parametrize(
    ("change", "architecture"),
    thinned(
        [
            *((written_to, "auto"), (written_to, "pre")),
            *((truncated, "pre"), (truncated, "auto")),
            *((removed, "auto"), (removed, "pre")),
        ],
        2,
    ),
)
async def test_a_pack_changed_under_a_loaded_model(
    settings: SettingsFactory,
    packs: Packs,
    repository: Path,
    change: Callable[[Path], None],
    architecture: str,
) -> None:
    weights = repository / "tiny" / "1" / "weights.bin"
    whole = weights.read_bytes()
    changes = {"repository": repository, "architecture": architecture, "models_budget": 8 << 20}
    async with serving(settings(**changes)) as service:
        close(arrays(await service.infer("tiny", TINY)), packs.expected("tiny", TINY))
        held = service.inside.budget.used_bytes
        change(weights)
        error(await service.infer("tiny", TINY), 503, "tiny/1/weights.bin")
        await out_of_service(service, "tiny/1/weights.bin")
        # Still bad: it is tried, and its memory is free for others.
        if change is not written_to:
            assert (await service.client.post(LOAD)).status_code == 503
            assert service.inside.budget.held().keys() == {"pair"}
        weights.write_bytes(whole)
        await back_in_service(service, packs)
        assert service.inside.budget.used_bytes == held


async def test_a_disk_that_disappears(
    settings: SettingsFactory, packs: Packs, monkeypatch: pytest.MonkeyPatch
) -> None:
    disks: list[SwitchedReader] = []

    def opened(path: Path) -> Reader:
        disks.append(SwitchedReader(open_reader(path)))
        return disks[-1]

    monkeypatch.setattr("server.repository.environment.open_reader", opened)
    async with serving(settings(models=("tiny", "pair"))) as service:
        for span in (0, 1, 2):
            offset = service.worker("tiny").engine.program.pack.manifest.spans[-1 - span].offset
            disk = next(disk for disk in reversed(disks) if "tiny" in disk.name)
            disk.current = FaultyReader(disk.sound, [ReadFault("gone", offset)])
            error(await service.infer("tiny", TINY), 503, "No such device")
            await out_of_service(service, "No such device")
            await back_in_service(service, packs)


async def test_requests_in_line_are_told(
    settings: SettingsFactory, packs: Packs, repository: Path
) -> None:
    async with serving(settings(repository=repository)) as service:
        worker = service.worker("tiny")
        removed(repository / "tiny" / "1" / "weights.bin")
        answers = await asyncio.gather(*(service.infer("tiny", TINY) for _ in range(5)))
        for answer in answers:
            error(answer, 503, "weights.bin")
        assert worker.fault


async def test_the_last_model_takes_readiness_with_it(
    settings: SettingsFactory, repository: Path
) -> None:
    async with serving(settings(repository=repository, models=("tiny",))) as service:
        removed(repository / "tiny" / "1" / "weights.bin")
        error(await service.infer("tiny", TINY), 503, "weights.bin")
        assert (await service.client.get("/v2/health/ready")).status_code == 503
        assert (await service.client.get("/v2/health/live")).status_code == 200


async def test_a_fault_stays_whatever_ends_beside_it(
    service: ServiceUnderTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Requests of a model in partitions compute at once: one meets a fault, another is cancelled."""
    served = service.worker("tiny").served

    def cancelled_beside_a_fault(*_: object, **__: object) -> list[Exception]:
        served.leave(faults.Fault(faults.Code.READ_FAILED, "the disk is gone"))
        return [CancelledError("cancelled")]

    monkeypatch.setattr(served.engine, "run_lanes", cancelled_beside_a_fault)
    await service.infer("tiny", TINY)
    await out_of_service(service, "the disk is gone")


async def test_who_shares_a_lost_arena_leaves_service(
    service: ServiceUnderTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object, **__: object) -> list[Exception]:
        return [ArenaLostError("the arena is lost")]

    monkeypatch.setattr(service.worker("tiny").engine, "run_lanes", refused)
    error(await service.infer("tiny", TINY), 503, "the arena is lost")
    await out_of_service(service, "the arena is lost")


async def test_what_no_engine_should_raise_ends_its_request_and_no_thread(
    service: ServiceUnderTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("no engine says this")

    with monkeypatch.context() as patch:
        patch.setattr(service.worker("tiny").engine, "run_lanes", broken)
        assert (await service.infer("tiny", TINY)).status_code == 500
    assert (await service.infer("tiny", TINY)).status_code == 200
