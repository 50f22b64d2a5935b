"""Versions side by side, and packs that are changed under a model: no request is lost."""

import asyncio
import shutil
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from loader.errors import ReadError
from tests.server.conftest import SettingsFactory
from tests.server.support import (
    Faults,
    Gate,
    Packs,
    ServiceUnderTest,
    arrays,
    close,
    error,
    inputs_for,
    serving,
)

TINY = inputs_for("tiny")
LOAD = "/v2/repository/models/tiny/load"
ROOMY = 64 << 20


@pytest.fixture
def repository(packs: Packs, tmp_path: Path) -> Path:
    """A repository with "tiny" and "pair"; tests add versions to it."""
    for name in ("tiny", "pair"):
        shutil.copytree(packs.repository / name, tmp_path / "packs" / name)
    return tmp_path / "packs"


def add(repository: Path, packs: Packs, source: str, number: int) -> Path:
    """Put the pack of ``source`` there as a version of "tiny", all at once."""
    hidden = repository / ".coming"
    shutil.copytree(packs.repository / source / "1", hidden)
    folder = repository / "tiny" / str(number)
    if folder.exists():
        shutil.rmtree(folder)
    hidden.rename(folder)
    return folder


async def is_like(
    service: ServiceUnderTest, packs: Packs, source: str, version: str | None = None
) -> None:
    """Check that ``version`` of "tiny" answers as the model ``source`` does."""
    named = "tiny" if version is None else f"tiny/versions/{version}"
    answer = await service.infer(named, TINY)
    close(arrays(answer), packs.expected(source, TINY))


@pytest.fixture
async def roomy(settings: SettingsFactory, repository: Path) -> AsyncIterator[ServiceUnderTest]:
    changes = {"models_budget": ROOMY, "repository": repository}
    async with serving(settings(**changes)) as service:
        yield service


async def test_versions_side_by_side(
    settings: SettingsFactory, packs: Packs, repository: Path
) -> None:
    add(repository, packs, "twin", 2)
    config = repository / "tiny" / "config.pbtxt"
    config.write_text("version_policy { all { } }")
    changes = {"models_budget": ROOMY, "repository": repository}
    async with serving(settings(**changes)) as service:
        await is_like(service, packs, "tiny", "1")
        await is_like(service, packs, "twin", "2")
        await is_like(service, packs, "twin")
        error(await service.infer("tiny/versions/3", TINY), 404, "version '3'")
        described = (await service.client.get("/v2/models/tiny")).json()
        assert described["versions"] == ["1", "2"]
        index = (await service.client.post("/v2/repository/index")).json()
        assert [(row["name"], row["version"], row["state"]) for row in index] == [
            ("pair", "1", "READY"),
            ("tiny", "1", "READY"),
            ("tiny", "2", "READY"),
        ]
        assert {"tiny/1", "tiny/2", "pair"} == set(service.inside.budget.held())
        assert await service.metric("layerstream_model_ready", model="tiny/2") == 1
        counted = (await service.client.get("/v2/models/tiny/versions/2/stats")).json()
        (row,) = counted["model_stats"]
        assert (row["name"], row["version"], row["inference_count"]) == ("tiny", "2", 2)
        assert [(row["code"], row["generation"], row["observed_generation"]) for row in index] == [
            (None, 1, 1)
        ] * 3
        # Fewer are wanted: one of them goes, the other is served under the model's name.
        config.write_text("version_policy { specific { versions: 1 } }")
        assert (await service.client.post(LOAD)).json() == {"name": "tiny", "state": "READY"}
        await is_like(service, packs, "tiny")
        error(await service.infer("tiny/versions/2", TINY), 404, "version '2'")
        assert {"tiny", "pair"} == set(service.inside.budget.held())
        await service.client.post(LOAD.replace("load", "unload"))
        error(await service.infer("tiny", TINY), 404, "unloaded")


async def test_a_version_that_goes_from_between_others_is_closed(
    settings: SettingsFactory, packs: Packs, repository: Path
) -> None:
    for version in (2, 3):
        add(repository, packs, "twin", version)
    (repository / "tiny" / "config.pbtxt").write_text("version_policy { all { } }")
    changes = {"models_budget": ROOMY, "repository": repository}
    async with serving(settings(**changes)) as service:
        shutil.rmtree(repository / "tiny" / "2")
        assert (await service.client.post(LOAD)).status_code == 200
        error(await service.infer("tiny/versions/2", TINY), 404, "version '2'")
        assert {"tiny/1", "tiny/3", "pair"} == set(service.inside.budget.held())


async def test_one_bad_version_takes_no_other_with_it(
    settings: SettingsFactory, packs: Packs, repository: Path
) -> None:
    folder = add(repository, packs, "twin", 2)
    (folder / "pieces.bin").write_bytes(b"x")
    (repository / "tiny" / "config.pbtxt").write_text("version_policy { all { } }")
    changes = {"models_budget": ROOMY, "repository": repository}
    async with serving(settings(**changes)) as service:
        await is_like(service, packs, "tiny")
        error(await service.infer("tiny/versions/2", TINY), 503, "pieces.bin")
        error(await service.client.post(LOAD), 503, "pieces.bin")


async def test_versions_that_are_named_and_not_there_are_said(
    settings: SettingsFactory, packs: Packs, repository: Path, caplog: pytest.LogCaptureFixture
) -> None:
    named = "\nversion_policy { specific { versions: [1, 3] } }"
    (repository / "tiny" / "config.pbtxt").write_text(named)
    changes = {"models_budget": ROOMY, "repository": repository}

    async def rows() -> list[tuple[str, str, str]]:
        index = (await service.client.post("/v2/repository/index")).json()
        return [(row["version"], row["state"], row["reason"]) for row in index[1:]]

    async with serving(settings(**changes)) as service:
        why = "tiny/config.pbtxt:2: version_policy: version 3 is not there"
        assert await rows() == [("1", "READY", ""), ("3", "UNAVAILABLE", why)]
        assert sum(why in line for line in caplog.messages) == 1  # at the start
        assert (await service.client.post(LOAD)).json() == {"name": "tiny", "state": "READY"}
        assert sum(why in line for line in caplog.messages) == 2
        error(await service.infer("tiny/versions/3", TINY), 503, why)
        await is_like(service, packs, "tiny")
        add(repository, packs, "twin", 3)
        assert (await service.client.post(LOAD)).status_code == 200
        assert await rows() == [("1", "READY", ""), ("3", "READY", "")]
        await is_like(service, packs, "twin", "3")
        shutil.rmtree(repository / "tiny" / "3")
        assert (await service.client.post(LOAD)).status_code == 200
        assert await rows() == [("1", "READY", ""), ("3", "UNAVAILABLE", why)]
        assert set(service.inside.budget.held()) == {"pair", "tiny/1"}
        (repository / "tiny" / "config.pbtxt").unlink()
        assert (await service.client.post(LOAD)).status_code == 200
        assert await rows() == [("1", "READY", "")]


async def test_a_configuration_that_cannot_be(
    settings: SettingsFactory, packs: Packs, repository: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = repository / "tiny" / "config.pbtxt"
    config.write_text("max_batch_size: 8\nplatform: 'x'\ndynamic_batching: 4")
    async with serving(settings(repository=repository)) as service:
        error(await service.infer("tiny", TINY), 503, "config.pbtxt:3", "dynamic_batching")
        row = (await service.client.post("/v2/repository/index")).json()[1]
        assert (row["name"], row["state"]) == ("tiny", "UNAVAILABLE")
        assert row["reason"].startswith("tiny/config.pbtxt:3: dynamic_batching")
        config.write_text("max_batch_size: 8\nplatform: 'x'\n")
        caplog.set_level("INFO")
        for _ in range(2):
            assert (await service.client.post(LOAD)).status_code == 200
        assert [line for line in caplog.messages if "ignored" in line] == [
            "model tiny: config.pbtxt: ignored: platform (line 2)"
        ]
        config.write_text("max_batch_size: 8 }")
        error(await service.client.post(LOAD), 503, "config.pbtxt:1")
        await is_like(service, packs, "tiny")  # what was loaded goes on


async def test_a_default_timeout_is_the_models(
    settings: SettingsFactory, repository: Path, faults: Faults
) -> None:
    (repository / "tiny" / "config.pbtxt").write_text(
        "dynamic_batching { default_queue_policy { default_timeout_microseconds: 1 } }"
    )
    async with serving(settings(repository=repository)) as service:
        late = await service.infer("tiny", TINY)
        error(late, late.status_code, "time")
        assert late.status_code in {503, 504}  # refused at once, or over already
        patient = await service.infer("tiny", TINY, parameters={"timeout": 20_000_000})
        assert patient.status_code == 200, patient.text


Change = Callable[[Path, Packs], object]


def next_version(repository: Path, packs: Packs) -> None:
    add(repository, packs, "twin", 2)


def same_version(repository: Path, packs: Packs) -> None:
    add(repository, packs, "twin", 1)


@pytest.mark.parametrize(
    ("change", "tight"),
    [
        (next_version, False),
        (same_version, True),
        pytest.param(next_version, True, marks=pytest.mark.slow),
        pytest.param(same_version, False, marks=pytest.mark.slow),
    ],
)
async def test_a_changed_pack_loses_no_request(
    settings: SettingsFactory,
    packs: Packs,
    repository: Path,
    faults: Faults,
    change: Change,
    tight: bool,
) -> None:
    """``tight``: there is room for one of both alone, so requests wait while they change places."""
    budget = packs.smallest("tiny") + 4096 if tight else ROOMY
    changes = {"models_budget": budget, "repository": repository, "models": ("tiny",)}
    async with serving(settings(**changes)) as service:
        gate = Gate()
        faults.kernel = gate.hold
        first = [asyncio.create_task(service.infer("tiny", TINY)) for _ in range(4)]
        await gate.reached()
        change(repository, packs)
        loading = asyncio.create_task(service.client.post(LOAD))
        later = [asyncio.create_task(service.infer("tiny", TINY)) for _ in range(4)]
        gate.open()
        assert (await loading).json() == {"name": "tiny", "state": "READY"}
        for task in first:
            close(arrays(await task), packs.expected("tiny", TINY))
        for task in later:
            assert (await task).status_code == 200
        await is_like(service, packs, "twin")
        budget_now = service.inside.budget
        assert set(budget_now.held()) == {"tiny"}
        assert budget_now.used_bytes <= budget_now.total_bytes


@pytest.mark.parametrize("tight", [pytest.param(False, marks=pytest.mark.slow), True])
async def test_a_changed_pack_that_cannot_be_opened_leaves_the_old_one(
    settings: SettingsFactory, packs: Packs, repository: Path, faults: Faults, tight: bool
) -> None:
    budget = packs.smallest("tiny") + 4096 if tight else ROOMY
    changes = {"models_budget": budget, "repository": repository, "models": ("tiny",)}
    async with serving(settings(**changes)) as service:
        add(repository, packs, "twin", 2)
        faults.read = failing_once()
        response = await service.client.post(LOAD)
        assert response.status_code == 503, response.text
        await is_like(service, packs, "tiny")
        assert set(service.inside.budget.held()) == {"tiny"}
        assert (await service.client.post(LOAD)).status_code == 200
        await is_like(service, packs, "twin")


def failing_once() -> Callable[[int, int], None]:
    left = [1]

    def read(offset: int, length: int) -> None:
        if left:
            left.pop()
            raise ReadError("a bad block")

    return read


async def test_load_of_what_is_loaded_and_the_same_changes_nothing(roomy: ServiceUnderTest) -> None:
    before = roomy.worker("tiny")
    assert (await roomy.client.post(LOAD)).status_code == 200
    assert roomy.worker("tiny") is before


async def test_a_replaced_pack_is_served_until_it_is_loaded(
    settings: SettingsFactory, packs: Packs, repository: Path
) -> None:
    """What was opened is whole; others that come and go do not make it open the new file as the old."""
    changes = {"models_budget": packs.smallest("tiny") + packs.smallest("pair") + (256 << 10)}
    async with serving(settings(repository=repository, **changes)) as service:
        add(repository, packs, "twin", 1)
        await is_like(service, packs, "tiny")
        await service.client.post("/v2/repository/models/pair/unload")
        await service.client.post("/v2/repository/models/pair/load")
        await is_like(service, packs, "tiny")
        assert (await service.client.post(LOAD)).status_code == 200
        await is_like(service, packs, "twin")


async def test_a_model_that_is_gone_is_forgotten(roomy: ServiceUnderTest, repository: Path) -> None:
    shutil.rmtree(repository / "tiny")
    await roomy.inside.repository.remove("tiny")
    error(await roomy.infer("tiny", TINY), 404, "'tiny'")
    assert set(roomy.inside.budget.held()) == {"pair"}
    error(await roomy.client.post(LOAD), 404, "'tiny'")
