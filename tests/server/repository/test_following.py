"""Models follow the disk when an operator asks for it."""

import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from server.repository.polling import follow
from tests.server.conftest import SettingsFactory
from tests.server.support import Packs, Service, inputs_for, serving


@pytest.fixture
async def lively(
    settings: SettingsFactory, packs: Packs, tmp_path: Path
) -> AsyncIterator[tuple[Service, Path]]:
    """A service on a repository of its own with "tiny"."""
    repository = tmp_path / "repository"
    shutil.copytree(packs.repository / "tiny", repository / "tiny")
    async with serving(settings(repository=repository, models=(), budget=128 << 20)) as service:
        yield service, repository


async def test_models_follow_the_disk(lively: tuple[Service, Path], packs: Packs) -> None:
    service, repository = lively

    async def statuses() -> list[int]:
        return [(await service.infer(n, inputs_for(n))).status_code for n in ("tiny", "pair")]

    worker = service.worker("tiny")
    await follow(service.context.repository)
    assert service.worker("tiny") is worker  # nothing has changed
    shutil.copytree(packs.repository / "pair", repository / "pair")
    await follow(service.context.repository)
    assert await statuses() == [200, 200]
    shutil.copytree(packs.repository / "twin" / "1", repository / "tiny" / "2")  # a new version
    await follow(service.context.repository)
    assert service.worker("tiny") is not worker
    assert (await service.client.get("/v2/models/tiny")).json()["versions"] == ["2"]
    shutil.rmtree(repository / "pair")
    await follow(service.context.repository)
    assert await statuses() == [200, 404]
    shutil.copytree(packs.repository / "pair", repository / "pair")
    await follow(service.context.repository)
    assert await statuses() == [200, 200]  # no operator wished that it was gone
    await service.client.post("/v2/repository/models/pair/unload")
    await follow(service.context.repository)
    assert await statuses() == [200, 404]  # that it was unloaded was


async def test_a_pack_that_was_replaced_or_is_damaged(
    lively: tuple[Service, Path], packs: Packs, caplog: pytest.LogCaptureFixture
) -> None:
    service, repository = lively
    shutil.rmtree(repository / "tiny")
    shutil.copytree(packs.repository / "tiny", repository / "tiny")  # the same, in other files
    await follow(service.context.repository)
    assert (await service.infer("tiny", inputs_for("tiny"))).status_code == 200
    (repository / "broken" / "1").mkdir(parents=True)
    await follow(service.context.repository)
    assert "not served: model broken" in caplog.text
    assert (await service.infer("tiny", inputs_for("tiny"))).status_code == 200


async def test_a_repository_that_is_away_changes_nothing(
    lively: tuple[Service, Path],
) -> None:
    service, repository = lively
    repository.rename(repository.with_name("away"))
    with pytest.raises(Exception, match="no such folder"):
        await follow(service.context.repository)
    assert not service.context.absence
