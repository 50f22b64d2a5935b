"""A repository that changes under a service that follows it."""

import asyncio
import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from loader.errors import ReadError
from server.context import StartupError
from server.repository.on_disk import check_whole
from server.repository.polling import Changes, Poller
from tests.server.conftest import SettingsFactory
from tests.server.support import (
    LIMIT_SECONDS,
    Packs,
    Service,
    arrays,
    close,
    error,
    inputs_for,
    serving,
)

TINY = inputs_for("tiny")
NOTHING = Changes()
#: No look but those that a test makes.
NEVER = 1e6


@pytest.fixture
def repository(packs: Packs, tmp_path: Path) -> Path:
    for name in ("tiny", "pair"):
        shutil.copytree(packs.repository / name, tmp_path / "packs" / name)
    return tmp_path / "packs"


@pytest.fixture
async def following(settings: SettingsFactory, repository: Path) -> AsyncIterator[Service]:
    changes = {
        "models_budget": 64 << 20,
        "repository": repository,
        "models": (),
        "model_control": "poll",
        "poll_interval": NEVER,
    }
    async with serving(settings(**changes)) as service:
        yield service


@pytest.fixture
async def poller(following: Service) -> Poller:
    return await asyncio.to_thread(Poller, following.context.repository, ())


async def is_like(service: Service, packs: Packs, source: str) -> None:
    close(arrays(await service.infer("tiny", TINY)), packs.expected(source, TINY))


async def grown(service: Service) -> None:
    """Wait until nothing that is found is written into a folder that the test removes."""
    growth = service.context.repository._wishes._growth
    if growth is not None:
        async with asyncio.timeout(LIMIT_SECONDS):
            await asyncio.wait({growth})


async def test_what_comes_changes_and_goes_is_followed(
    following: Service, poller: Poller, packs: Packs, repository: Path
) -> None:
    assert await poller.step() == NOTHING
    shutil.copytree(packs.repository / "twin", repository / "twin")
    shutil.copytree(packs.repository / "twin" / "1", repository / "tiny" / "2")
    assert await poller.step() == NOTHING  # seen, and not yet twice
    await is_like(following, packs, "tiny")
    assert await poller.step() == Changes(("tiny", "twin"))
    await is_like(following, packs, "twin")
    assert (await following.infer("twin", inputs_for("twin"))).status_code == 200
    assert await poller.step() == NOTHING
    await grown(following)
    shutil.rmtree(repository / "pair")
    await poller.step()
    assert await poller.step() == Changes(gone=("pair",))
    error(await following.infer("pair", inputs_for("pair")), 404)
    assert set(following.context.budget.held()) == {"tiny", "twin"}
    # The newer version is taken back: the one before serves again.
    await grown(following)
    shutil.rmtree(repository / "tiny" / "2")
    await poller.step()
    await poller.step()
    await is_like(following, packs, "tiny")


async def test_half_a_pack_is_never_taken(
    following: Service, poller: Poller, packs: Packs, repository: Path
) -> None:
    """However long a copy rests at any of its steps."""
    source, folder = packs.repository / "twin" / "1", repository / "tiny" / "2"
    whole = (source / "weights.bin").read_bytes()
    folder.mkdir()

    async def still_the_old_one() -> None:
        for _ in range(3):
            await poller.step()
        await is_like(following, packs, "tiny")
        assert (await following.client.get("/v2/models/tiny")).json()["versions"] == ["1"]

    await still_the_old_one()
    for name in ("manifest.json", "model.onnx", "pieces.bin"):
        shutil.copy(source / name, folder / name)
        await still_the_old_one()
    for part in (whole[:-4096], whole[:-4096] + bytes(4096)):  # too short; room for all of it
        (folder / "weights.bin").write_bytes(part)
        await still_the_old_one()
    (folder / "weights.bin").write_bytes(whole)
    for _ in range(2):
        await poller.step()
    await is_like(following, packs, "twin")


async def test_what_somebody_unloaded_stays_so(
    following: Service, poller: Poller, packs: Packs, repository: Path
) -> None:
    await following.client.post("/v2/repository/models/tiny/unload")
    shutil.copytree(packs.repository / "twin" / "1", repository / "tiny" / "2")
    for _ in range(2):
        await poller.step()
    error(await following.infer("tiny", TINY), 404, "unloaded")


async def test_a_repository_that_is_away_says_nothing_of_models(
    following: Service, poller: Poller, packs: Packs, repository: Path
) -> None:
    away = await asyncio.to_thread(repository.rename, repository.with_name("away"))
    for _ in range(3):
        assert await poller.step() == NOTHING
    await asyncio.to_thread(away.rename, repository)
    await poller.step()
    await is_like(following, packs, "tiny")


@pytest.mark.slow
async def test_no_request_is_lost_while_packs_change(
    following: Service, poller: Poller, packs: Packs, repository: Path
) -> None:
    done = asyncio.Event()
    answers: list[int] = []

    async def asking() -> None:
        while not done.is_set():
            answers.append((await following.infer("tiny", TINY)).status_code)
            await asyncio.sleep(0)  # a quick answer waits for nothing: others need the loop, too

    clients = [asyncio.create_task(asking()) for _ in range(3)]
    for number in range(2, 4):
        source = "twin" if number % 2 == 0 else "tiny"
        shutil.copytree(packs.repository / source / "1", repository / "tiny" / str(number))
        for _ in range(2):
            await poller.step()
        await is_like(following, packs, source)
    done.set()
    await asyncio.gather(*clients)
    assert set(answers) == {200}


async def test_a_service_that_follows_may_start_with_nothing(
    settings: SettingsFactory, tmp_path: Path
) -> None:
    changes = {"repository": tmp_path, "models": (), "model_control": "poll"}
    async with serving(settings(**changes)) as service:
        assert (await service.client.get("/v2/health/ready")).status_code == 503
    for control, more in (("none", {}), ("poll", {"exit_on_error": True})):
        with pytest.raises(StartupError, match=r"no packs.*compile.*--model-control explicit"):
            async with serving(settings(**{**changes, "model_control": control, **more})):
                pass


async def test_the_index_says_why_what_came_is_not_taken(
    following: Service, poller: Poller, packs: Packs, repository: Path
) -> None:
    shutil.copytree(packs.repository / "twin", repository / "wrong")
    (repository / "wrong" / "config.pbtxt").write_text("max_batch_size: 8\ndynamic_batching: 4")
    shutil.copytree(packs.repository / "twin", repository / "half")
    (repository / "half" / "1" / "weights.bin").write_bytes(b"x")
    for _ in range(2):
        await poller.step()
    index = (await following.client.post("/v2/repository/index")).json()
    rows = {row["name"]: row for row in index}
    assert {rows[name]["state"] for name in ("wrong", "half")} == {"UNAVAILABLE"}
    assert rows["wrong"]["reason"].startswith("wrong/config.pbtxt:2: dynamic_batching")
    assert rows["half"]["reason"].startswith("half/1/weights.bin: truncated")
    # What serves goes on, and what is put right serves.
    (repository / "tiny" / "config.pbtxt").write_text("{")
    (repository / "wrong" / "config.pbtxt").unlink()
    for _ in range(2):
        await poller.step()
    await is_like(following, packs, "tiny")
    assert (await following.infer("wrong", TINY)).status_code == 200


async def test_where_nothing_changes_nobody_loads(settings: SettingsFactory) -> None:
    async with serving(settings(model_control="none")) as service:
        for action in ("load", "unload"):
            answer = await service.client.post(f"/v2/repository/models/tiny/{action}")
            error(answer, 403, "model_control")


def test_a_whole_pack_is_whole(packs: Packs) -> None:
    check_whole(packs.repository / "tiny" / "1")


async def test_what_came_by_itself_and_was_never_seen_goes(
    following: Service, poller: Poller, packs: Packs, repository: Path
) -> None:
    """An upload, for instance, that is removed again before the next look."""
    shutil.copytree(packs.repository / "twin", repository / "twin")
    await following.context.repository.load("twin")
    await grown(following)
    shutil.rmtree(repository / "twin")
    assert await poller.step() == NOTHING
    assert await poller.step() == Changes(gone=("twin",))
    error(await following.infer("twin", inputs_for("twin")), 404)
    assert await poller.step() == NOTHING


async def test_who_follows_a_few_lets_the_others_be(
    following: Service, packs: Packs, repository: Path
) -> None:
    poller = await asyncio.to_thread(Poller, following.context.repository, ("tiny",))
    shutil.copytree(packs.repository / "twin", repository / "twin")
    await following.context.repository.load("twin")
    for _ in range(3):
        assert await poller.step() == NOTHING
    assert (await following.infer("twin", inputs_for("twin"))).status_code == 200


async def test_what_failed_for_a_passing_reason_is_tried_again(
    following: Service,
    poller: Poller,
    packs: Packs,
    repository: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tried = 0

    def failing(*_: object) -> None:
        nonlocal tried
        tried += 1
        raise ReadError("a bad block")

    shutil.copytree(packs.repository / "twin" / "1", repository / "tiny" / "2")
    shutil.copytree(packs.repository / "twin", repository / "twin")
    with monkeypatch.context() as patched:
        patched.setattr("server.repository.opening.open_reader", failing)
        for _ in range(9):
            await poller.step()
        # At looks 2, 3, 5, 9: two models.
        assert tried == 2 * 4
    await is_like(following, packs, "tiny")
    for _ in range(9):
        await poller.step()
    await is_like(following, packs, "twin")
    assert (await following.infer("twin", inputs_for("twin"))).status_code == 200
