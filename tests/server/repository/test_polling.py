"""Packs that come, change and go while the service runs."""

import asyncio
import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loader.errors import ReadError
from server.operation.starting import StartupError
from server.repository.on_disk import Seen, check_whole
from server.repository.polling import Changes, Changing, Poller, follow
from server.repository.retrying import Pauses, Retrier
from server.settings.table import settings_table
from tests.server.conftest import SettingsFactory
from tests.server.support import (
    LIMIT_SECONDS,
    Packs,
    ServiceUnderTest,
    arrays,
    close,
    error,
    inputs_for,
    serving,
)

# Looks at a repository: what counts as come and gone, however the looks fall.


def seen(state: int) -> Seen:
    return (("weights.bin", 1, state, 10, 100),)


STATES = st.dictionaries(st.sampled_from("abc"), st.integers(0, 3))


@given(first=STATES, looks=st.lists(STATES, max_size=12))
def test_what_stays_is_settled_once_and_what_moves_never(
    first: dict[str, int], looks: list[dict[str, int]]
) -> None:
    changing = Changing({name: seen(state) for name, state in first.items()})
    settled, before = dict(first), first
    for now in looks:
        changes = changing.look({name: seen(state) for name, state in now.items()})
        for name in changes.come:
            assert now[name] == before[name]
            assert settled.get(name) != now[name]
            settled[name] = now[name]
        for name in changes.gone:
            assert name not in now
            assert name not in before
            del settled[name]
        before = now
    # What does not move any more is settled by two looks, and a third finds nothing.
    last = {name: seen(state) for name, state in before.items()}
    for _ in range(2):
        changes = changing.look(last)
        settled |= {name: before[name] for name in changes.come}
        settled = {name: state for name, state in settled.items() if name not in changes.gone}
    assert settled == before
    assert changing.look(last) == Changes()


# A repository that changes under a service that follows it.

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
async def following(
    settings: SettingsFactory, repository: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[ServiceUnderTest]:
    # Tests take the steps: on a slow machine the service would take one of its own between them.
    monkeypatch.setattr("server.repository.retrying._CHECK_SECONDS", NEVER)
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
async def poller(following: ServiceUnderTest) -> Poller:
    return await asyncio.to_thread(Poller, following.inside.repository, ())


async def is_like(service: ServiceUnderTest, packs: Packs, source: str) -> None:
    close(arrays(await service.infer("tiny", TINY)), packs.expected(source, TINY))


async def grown(service: ServiceUnderTest) -> None:
    """Wait until nothing that is found is written into a folder that the test removes."""
    async with asyncio.timeout(LIMIT_SECONDS):
        await service.inside.repository.at_rest()


async def test_what_comes_changes_and_goes_is_followed(
    following: ServiceUnderTest, poller: Poller, packs: Packs, repository: Path
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
    assert set(following.inside.budget.held()) == {"tiny", "twin"}
    # The newer version is taken back: the one before serves again.
    await grown(following)
    shutil.rmtree(repository / "tiny" / "2")
    await poller.step()
    await poller.step()
    await is_like(following, packs, "tiny")


async def test_half_a_pack_is_never_taken(
    following: ServiceUnderTest, poller: Poller, packs: Packs, repository: Path
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
    following: ServiceUnderTest, poller: Poller, packs: Packs, repository: Path
) -> None:
    await following.client.post("/v2/repository/models/tiny/unload")
    shutil.copytree(packs.repository / "twin" / "1", repository / "tiny" / "2")
    for _ in range(2):
        await poller.step()
    error(await following.infer("tiny", TINY), 404, "unloaded")


async def test_a_repository_that_is_away_says_nothing_of_models(
    following: ServiceUnderTest, poller: Poller, packs: Packs, repository: Path
) -> None:
    away = await asyncio.to_thread(repository.rename, repository.with_name("away"))
    for _ in range(3):
        assert await poller.step() == NOTHING
    await asyncio.to_thread(away.rename, repository)
    await poller.step()
    await is_like(following, packs, "tiny")


@pytest.mark.slow
async def test_no_request_is_lost_while_packs_change(
    following: ServiceUnderTest, poller: Poller, packs: Packs, repository: Path
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
    following: ServiceUnderTest, poller: Poller, packs: Packs, repository: Path
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


async def test_settings_for_a_model_that_is_not_there(
    settings: SettingsFactory, caplog: pytest.LogCaptureFixture
) -> None:
    """It may be uploaded, and else never comes: then its name was mistyped."""
    by_model = [item.name for item in settings_table() if item.value.startswith("[MODEL=]")]
    changes: dict[str, Any] = {name: {"*": 1, "nobody": 1} for name in by_model}
    changes |= {"evictable": ("tiny", "nobody"), "deepstack": True, "deepstack_model": "nobody"}
    naming = [*by_model, "evictable", "deepstack_model"]
    said = [f"{name}: not among the models that are served: 'nobody'" for name in naming]
    with pytest.raises(StartupError) as refused:
        async with serving(settings(**changes, model_control="none")):
            pass
    *found, why = str(refused.value).split("; ")
    assert (sorted(found), why) == (sorted(said), "with model_control = none no other model comes")
    async with serving(settings(**changes)):
        (line,) = (text for text in caplog.messages if "nobody" in text)
        assert sorted(line.split("; ")) == sorted(said)


def test_a_whole_pack_is_whole(packs: Packs) -> None:
    check_whole(packs.repository / "tiny" / "1")


async def test_what_came_by_itself_and_was_never_seen_goes(
    following: ServiceUnderTest, poller: Poller, packs: Packs, repository: Path
) -> None:
    """An upload, for instance, that is removed again before the next look."""
    shutil.copytree(packs.repository / "twin", repository / "twin")
    await following.inside.repository.load("twin")
    await grown(following)
    shutil.rmtree(repository / "twin")
    assert await poller.step() == NOTHING
    assert await poller.step() == Changes(gone=("twin",))
    error(await following.infer("twin", inputs_for("twin")), 404)
    assert await poller.step() == NOTHING


async def test_who_follows_a_few_lets_the_others_be(
    following: ServiceUnderTest, packs: Packs, repository: Path
) -> None:
    poller = await asyncio.to_thread(Poller, following.inside.repository, ("tiny",))
    shutil.copytree(packs.repository / "twin", repository / "twin")
    await following.inside.repository.load("twin")
    for _ in range(3):
        assert await poller.step() == NOTHING
    assert (await following.infer("twin", inputs_for("twin"))).status_code == 200


async def test_what_failed_for_a_passing_reason_is_tried_again(
    following: ServiceUnderTest, packs: Packs, repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also a new version whose former one serves meanwhile, and a model that was never loaded."""
    tried, now = 0, 0.0
    retrier = Retrier(following.inside.repository, Pauses(1, 8), lambda: now)
    poller = await asyncio.to_thread(Poller, following.inside.repository, (), retrier)

    def failing(*_: object) -> None:
        nonlocal tried
        tried += 1
        raise ReadError("a bad block")

    shutil.copytree(packs.repository / "twin" / "1", repository / "tiny" / "2")
    shutil.copytree(packs.repository / "twin", repository / "twin")
    with monkeypatch.context() as patched:
        patched.setattr("server.repository.environment.open_reader", failing)
        for _ in range(2):
            await poller.step()
        assert tried == 2 * 2  # when they come, and again since others came
        tries = []
        while now < 40:
            now += 1
            assert await poller.step() == NOTHING
            before = tried
            await retrier.step()
            tries += [now] * (tried > before)
        assert tries == [2, 6, 14, 22, 30, 38]
        assert tried == 2 * (2 + len(tries))
    await is_like(following, packs, "tiny")
    now += 8
    await retrier.step()
    await is_like(following, packs, "twin")
    assert (await following.infer("twin", inputs_for("twin"))).status_code == 200


# Models follow the disk when a client asks for it.


@pytest.fixture
async def lively(
    settings: SettingsFactory, packs: Packs, tmp_path: Path
) -> AsyncIterator[tuple[ServiceUnderTest, Path]]:
    """A service on a repository of its own with "tiny"."""
    repository = tmp_path / "repository"
    shutil.copytree(packs.repository / "tiny", repository / "tiny")
    async with serving(settings(repository=repository, models=(), budget=128 << 20)) as service:
        yield service, repository


async def test_models_follow_the_disk(lively: tuple[ServiceUnderTest, Path], packs: Packs) -> None:
    service, repository = lively

    async def statuses() -> list[int]:
        return [(await service.infer(n, inputs_for(n))).status_code for n in ("tiny", "pair")]

    worker = service.worker("tiny")
    await follow(service.inside.repository)
    assert service.worker("tiny") is worker  # nothing has changed
    shutil.copytree(packs.repository / "pair", repository / "pair")
    await follow(service.inside.repository)
    assert await statuses() == [200, 200]
    shutil.copytree(packs.repository / "twin" / "1", repository / "tiny" / "2")  # a new version
    await follow(service.inside.repository)
    assert service.worker("tiny") is not worker
    assert (await service.client.get("/v2/models/tiny")).json()["versions"] == ["2"]
    shutil.rmtree(repository / "pair")
    await follow(service.inside.repository)
    assert await statuses() == [200, 404]
    shutil.copytree(packs.repository / "pair", repository / "pair")
    await follow(service.inside.repository)
    assert await statuses() == [200, 200]  # no client had unloaded it
    await service.client.post("/v2/repository/models/pair/unload")
    await follow(service.inside.repository)
    assert await statuses() == [200, 404]  # that it was unloaded was


async def test_a_pack_that_was_replaced_or_is_damaged(
    lively: tuple[ServiceUnderTest, Path], packs: Packs, caplog: pytest.LogCaptureFixture
) -> None:
    service, repository = lively
    shutil.rmtree(repository / "tiny")
    shutil.copytree(packs.repository / "tiny", repository / "tiny")  # the same, in other files
    await follow(service.inside.repository)
    assert (await service.infer("tiny", inputs_for("tiny"))).status_code == 200
    (repository / "broken" / "1").mkdir(parents=True)
    await follow(service.inside.repository)
    assert "not served: model broken" in caplog.text
    assert (await service.infer("tiny", inputs_for("tiny"))).status_code == 200


async def test_a_repository_that_is_away_changes_nothing(
    lively: tuple[ServiceUnderTest, Path],
) -> None:
    service, repository = lively
    repository.rename(repository.with_name("away"))
    with pytest.raises(Exception, match="no such folder"):
        await follow(service.inside.repository)
    assert not service.inside.absence
