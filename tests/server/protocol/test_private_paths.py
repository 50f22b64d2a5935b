"""Where the packs lie is no client's business: no answer has that path, and the log keeps it."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from server.faults import reason_of
from tests.server.conftest import SettingsFactory
from tests.server.support import Packs, ServiceUnderTest, error, inputs_for, serving

NAME = "tiny"


@pytest.fixture
def repository(packs: Packs, tmp_path: Path) -> Path:
    found = tmp_path / "where the packs (really) lie"
    for name in (NAME, "twin"):
        shutil.copytree(packs.repository / name, found / name)
    return found


async def everything(service: ServiceUnderTest) -> list[str]:
    """What the service says of the model in every way to ask."""
    client = service.client
    answers = [
        await client.post("/v2/repository/index"),
        await client.get(f"/v2/models/{NAME}"),
        await client.get(f"/v2/models/{NAME}/ready"),
        await service.infer(NAME, inputs_for(NAME)),
        await client.post(f"/v2/repository/models/{NAME}/load"),
        await client.post("/v2/repository/index"),
        await service.infer(NAME, inputs_for(NAME)),
        await client.get("/v2/health/ready"),
    ]
    return [answer.text for answer in answers]


def no_manifest(pack: Path) -> None:
    (pack / "manifest.json").unlink()


def bad_manifest(pack: Path) -> None:
    (pack / "manifest.json").write_text("{")


def short_weights(pack: Path) -> None:
    os.truncate(pack / "weights.bin", 100)


def no_weights(pack: Path) -> None:
    (pack / "weights.bin").unlink()


def damaged_pieces(pack: Path) -> None:
    path = pack / "pieces.bin"
    path.write_bytes(bytes(path.stat().st_size))


def damaged_weights(pack: Path) -> None:
    path = pack / "weights.bin"
    path.write_bytes(bytes(path.stat().st_size))


def not_a_file(pack: Path) -> None:
    (pack / "manifest.json").unlink()
    (pack / "manifest.json").mkdir()


def other_folder(pack: Path) -> None:
    (pack / "weights.bin").rename(pack.parent / "weights.bin")
    (pack / "weights.bin").symlink_to(pack.parent / "weights.bin")


FAULTS = (
    no_manifest,
    bad_manifest,
    short_weights,
    no_weights,
    damaged_pieces,
    damaged_weights,
    not_a_file,
)


@pytest.mark.parametrize(
    ("fault", "relative"),
    [
        pytest.param(fault, relative, marks=pytest.mark.slow if (n + relative) % 2 else ())
        for n, fault in enumerate((*FAULTS, other_folder))
        for relative in (False, True)
    ],
)
async def test_of_a_pack_that_is_broken(
    settings: SettingsFactory,
    repository: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    fault: Callable[[Path], None],
    relative: bool,
) -> None:
    monkeypatch.chdir(repository.parent)
    fault(repository / NAME / "1")
    named = Path(repository.name) if relative else repository
    async with serving(settings(repository=named, models=())) as service:
        said = await everything(service)
    assert any('"error"' in text for text in said)
    for text in said:
        assert repository.name not in text
        assert str(repository.parent) not in text
    assert any(f"{NAME}/1/" in text for text in said)
    assert f"{named}/{NAME}/1/" in caplog.text


@pytest.mark.parametrize("fault", [short_weights, no_weights])
async def test_of_a_pack_that_breaks_while_it_serves(
    settings: SettingsFactory, repository: Path, fault: Callable[[Path], None]
) -> None:
    async with serving(settings(repository=repository, models=())) as service:
        fault(repository / NAME / "1")
        said = await everything(service)
    assert not any(repository.name in text for text in said)


def move(path: Path, target: Path) -> None:
    path.rename(target)


async def test_not_ready_without_the_repository(
    settings: SettingsFactory, repository: Path
) -> None:
    async with serving(settings(repository=repository, models=())) as service:
        assert (await service.client.get("/v2/health/ready")).status_code == 200
        elsewhere = repository.with_name("elsewhere")
        move(repository, elsewhere)
        response = await service.client.get("/v2/health/ready")
        why = {
            "ready": False,
            "reason": "the repository is not there, or its file system does not answer",
        }
        assert (response.status_code, response.json()) == (503, why)
        move(elsewhere, repository)
        assert (await service.client.get("/v2/health/ready")).status_code == 200
        move(repository, elsewhere)
        error(await service.client.post("/v2/repository/index"), 404, "repository: no such folder")
        assert not any(repository.name in text for text in await everything(service))


@pytest.mark.parametrize("root", ["repository", "./repository"])
def test_a_folder_that_is_called_like_a_word_of_sentences_leaves_them_whole(root: str) -> None:
    said = "model 'gone': not in the repository"
    assert reason_of(said, Path(root)) == said
    assert reason_of("repository/tiny/1: no manifest", Path(root)) == "tiny/1: no manifest"
    assert reason_of("repository: no such folder", Path(root)) == ": no such folder"
