"""What is in the repository, asked of a disk that may not answer, and for one model at a time."""

import asyncio
import threading
from pathlib import Path

import pytest

from server.repository.layout.model_folders import is_model, model_names
from server.repository.layout.presence import Presence
from tests.server.support import LIMIT_SECONDS, Service, error


async def test_a_file_system_that_does_not_answer_takes_one_thread(tmp_path: Path) -> None:
    asked: list[int] = []
    answers = threading.Event()

    def question(folder: Path) -> bool:
        asked.append(threading.get_ident())
        return answers.wait(LIMIT_SECONDS)

    presence = Presence(tmp_path, limit_seconds=0.001)
    for _ in range(2):  # who asks while nobody waits finds the thread that was asked before
        found = await asyncio.gather(*(presence.has(question) for _ in range(50)))
        assert not any(found)
        assert not await presence.is_there()
        assert len(asked) == 1
    answers.set()
    presence = Presence(tmp_path, LIMIT_SECONDS)
    assert await presence.is_there()
    assert not await Presence(tmp_path / "gone", LIMIT_SECONDS).is_there()


async def test_all_who_ask_are_answered_in_turn(tmp_path: Path) -> None:
    presence, asking = Presence(tmp_path, LIMIT_SECONDS), 0

    def question(folder: Path) -> bool:
        nonlocal asking
        asking += 1
        alone, asking = asking == 1, asking - 1
        return alone

    first = asyncio.create_task(presence.has(question))
    others = [asyncio.create_task(presence.has(question)) for _ in range(20)]
    await asyncio.sleep(0)
    first.cancel()  # the others do not notice
    assert all(await asyncio.gather(*others))


def test_a_model_is_what_is_listed(tmp_path: Path) -> None:
    for folder in ("one/1", "two/3", "an odd name/1", ".hidden/1", "empty", "none/latest"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "file").touch()
    (tmp_path / "one" / "1" / "2").mkdir()
    listed = model_names(tmp_path)
    assert listed == ["an odd name", "one", "two"]
    asked = [path.name for path in tmp_path.iterdir()]
    asked += ["", ".", "..", "one/1", f"../{tmp_path.name}", "o\0ne", "n" * 5000, "gone"]
    assert sorted(name for name in asked if is_model(tmp_path, name)) == listed


async def test_a_name_that_nobody_knows_has_no_repository_listed(
    shared: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    def listed(root: Path) -> list[str]:
        raise AssertionError(root)

    monkeypatch.setattr("server.repository.expected.model_names", listed)
    error(await shared.client.get("/v2/models/nobody/ready"), 404, "nobody")
    error(await shared.client.get("/v2/models/twin/ready"), 404, "not loaded")
