"""Reading again: every step each time, whatever fails; models follow the disk."""

import asyncio
import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.operation.following import Following, Known, changes
from server.operation.notify import Notifier
from server.operation.reloading import Reloading, Step
from tests.server.conftest import SettingsFactory
from tests.server.support import LIMIT_SECONDS, Packs, Service, inputs_for, serving


class Said(Notifier):
    """Keeps what the service manager would be told."""

    def __init__(self) -> None:
        super().__init__("@nobody", None)
        self.messages: list[str] = []
        self.ready_again = asyncio.Semaphore(0)

    def _send(self, message: str) -> None:
        self.messages.append(message.partition("\n")[0])
        if message.startswith("READY=1"):
            self.ready_again.release()


async def test_each_asking_takes_every_step(caplog: pytest.LogCaptureFixture) -> None:
    taken: list[str] = []
    notifier = Said()

    def step(name: str) -> Step:
        async def take() -> None:
            taken.append(name)
            if name == "bad":
                raise ValueError("spoilt")

        return take

    names = ("first", "bad", "last")
    reloading = Reloading({name: step(name) for name in names}, notifier, lambda: "2 models")
    reloading.ask()  # before it has begun: not forgotten
    reloading.begin()
    await asyncio.wait_for(notifier.ready_again.acquire(), LIMIT_SECONDS)
    reloading.ask()
    await asyncio.wait_for(notifier.ready_again.acquire(), LIMIT_SECONDS)
    reloading.end()
    reloading.ask()
    assert taken == [*names, *names]
    assert notifier.messages == ["RELOADING=1", "READY=1"] * 2
    assert "bad not read again: spoilt" in caplog.text


async def test_asked_while_it_reads_it_reads_once_more() -> None:
    notifier, gate, turns = Said(), asyncio.Event(), 0

    async def slow() -> None:
        nonlocal turns
        turns += 1
        reloading.ask() if turns == 1 else None
        await gate.wait()

    reloading = Reloading({"slow": slow}, notifier, str)
    reloading.ask()
    reloading.begin()
    gate.set()
    for _ in range(2):
        await asyncio.wait_for(notifier.ready_again.acquire(), LIMIT_SECONDS)
    reloading.end()
    assert turns == 2


NAMES = st.sampled_from("abcd")
KNOWN = st.lists(
    st.builds(Known, NAMES, st.sampled_from([None, "1", "2"]), st.booleans(), st.booleans()),
    unique_by=lambda each: each.name,
)


@given(
    on_disk=st.dictionaries(NAMES, st.sampled_from("12")),
    known=KNOWN,
    only=st.sets(NAMES),
    gone=st.sets(NAMES),
)
def test_what_is_changed_makes_the_service_that_of_the_disk(
    on_disk: dict[str, str], known: list[Known], only: set[str], gone: set[str]
) -> None:
    found = changes(on_disk, known, only, gone)
    loaded = {each.name for each in known if each.version is not None}
    kept_away = {each.name for each in known if each.version is None and each.unloaded} - gone
    after = (loaded - set(found.unload)) | set(found.load)
    wanted = {name for name in on_disk if not only or name in only} - kept_away
    assert after == wanted | (loaded & set(on_disk))
    # Nobody is touched without a reason.
    right = {e.name for e in known if e.version == on_disk.get(e.name, "") and not e.stale}
    assert not right & {*found.unload, *found.load}
    assert set(found.unload) <= loaded


@pytest.fixture
async def lively(
    settings: SettingsFactory, packs: Packs, tmp_path: Path
) -> AsyncIterator[tuple[Service, Following, Path]]:
    """A service on a repository of its own with "tiny", and what follows the disk."""
    repository = tmp_path / "repository"
    shutil.copytree(packs.repository / "tiny", repository / "tiny")
    async with serving(settings(repository=repository, models=(), budget=128 << 20)) as service:
        yield service, Following(service.context.repository, repository, ()), repository


async def test_models_follow_the_disk(
    lively: tuple[Service, Following, Path], packs: Packs
) -> None:
    service, following, repository = lively

    async def statuses() -> list[int]:
        return [(await service.infer(n, inputs_for(n))).status_code for n in ("tiny", "pair")]

    worker = service.worker("tiny")
    await following.follow()
    assert service.worker("tiny") is worker  # nothing has changed
    shutil.copytree(packs.repository / "pair", repository / "pair")
    await following.follow()
    assert await statuses() == [200, 200]
    shutil.copytree(packs.repository / "twin" / "1", repository / "tiny" / "2")  # a new version
    await following.follow()
    assert service.worker("tiny") is not worker
    assert (await service.client.get("/v2/models/tiny")).json()["versions"] == ["2"]
    shutil.rmtree(repository / "pair")
    await following.follow()
    assert await statuses() == [200, 503]
    shutil.copytree(packs.repository / "pair", repository / "pair")
    await following.follow()
    assert await statuses() == [200, 200]  # that it was gone was nobody's wish
    await service.client.post("/v2/repository/models/pair/unload")
    await following.follow()
    assert await statuses() == [200, 503]  # that it was unloaded was


async def test_a_pack_that_was_replaced_or_is_damaged(
    lively: tuple[Service, Following, Path], packs: Packs, caplog: pytest.LogCaptureFixture
) -> None:
    service, following, repository = lively
    shutil.rmtree(repository / "tiny")
    shutil.copytree(packs.repository / "tiny", repository / "tiny")  # the same, in other files
    await following.follow()
    assert (await service.infer("tiny", inputs_for("tiny"))).status_code == 200
    (repository / "broken" / "1").mkdir(parents=True)
    await following.follow()
    assert "not served: model broken" in caplog.text
    assert (await service.infer("tiny", inputs_for("tiny"))).status_code == 200


async def test_a_repository_that_is_away_changes_nothing(
    lively: tuple[Service, Following, Path],
) -> None:
    service, following, repository = lively
    repository.rename(repository.with_name("away"))
    with pytest.raises(Exception, match="no such folder"):
        await following.follow()
    assert service.context.ready
