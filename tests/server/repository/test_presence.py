"""What is in the repository, asked of a disk that may not answer, and for one model at a time."""

import asyncio
import errno
import os
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from server.repository.on_disk import Presence, is_model, model_names
from tests.server.conftest import SettingsFactory
from tests.server.support import LIMIT_SECONDS, Packs, ServiceUnderTest, error, serving


async def test_a_file_system_that_does_not_answer_takes_one_thread(tmp_path: Path) -> None:
    asked: list[int] = []
    answers = threading.Event()

    def question(folder: Path) -> bool:
        asked.append(threading.get_ident())
        return answers.wait(LIMIT_SECONDS)

    presence = Presence(tmp_path, limit_seconds=0.001)
    for _ in range(2):  # a call while none waits finds the thread that was asked before
        found = await asyncio.gather(*(presence.has(question) for _ in range(50)))
        assert not any(found)
        assert not await presence.is_there()
        assert len(asked) == 1
    answers.set()
    presence = Presence(tmp_path, LIMIT_SECONDS)
    assert await presence.is_there()
    assert not await Presence(tmp_path / "gone", LIMIT_SECONDS).is_there()


async def test_simultaneous_requests_are_answered_one_by_one(tmp_path: Path) -> None:
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


def deny(monkeypatch: pytest.MonkeyPatch, *folders: Path) -> None:
    """Let ``folders`` be another user's, with mode 0700, whichever user runs the test."""

    def guarded(call: Callable[..., Any]) -> Callable[..., Any]:
        def guard(path: Any = ".", *args: Any, **options: Any) -> Any:
            inside = Path(path) if call is listdir else Path(path).parent
            if any(inside.is_relative_to(folder) for folder in folders):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
            return call(path, *args, **options)

        return guard

    listdir = os.listdir
    monkeypatch.setattr(os, "listdir", guarded(os.listdir))
    monkeypatch.setattr(os, "stat", guarded(os.stat))


def test_a_folder_that_may_not_be_looked_into_is_listed_unless_no_model_is_called_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("one", "lost+found"):
        (tmp_path / name / "1").mkdir(parents=True)
    deny(monkeypatch, tmp_path / "one", tmp_path / "lost+found")
    assert model_names(tmp_path) == ["one"]


@pytest.mark.parametrize("part", ["tiny", "tiny/1"])
async def test_a_pack_that_cannot_be_read_is_unavailable_with_the_reason(
    part: str,
    settings: SettingsFactory,
    packs: Packs,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    root = tmp_path / "packs"
    for name in ("tiny", "twin"):
        shutil.copytree(packs.repository / name, root / name)
    deny(monkeypatch, root / part)
    async with serving(settings(64 << 20, repository=root, models=())) as service:
        index = (await service.client.post("/v2/repository/index")).json()
        states = {each["name"]: (each["state"], each["reason"]) for each in index}
        metrics = (await service.client.get("/metrics")).text
    assert states["twin"] == ("READY", "")
    state, reason = states["tiny"]
    assert state == "UNAVAILABLE"
    assert part in reason
    assert "Permission denied" in reason
    assert 'layerstream_model_ready{model="tiny"} 0.0' in metrics
    assert 'layerstream_model_absent{model="tiny",reason="failed"} 1.0' in metrics


async def test_a_name_that_nobody_knows_has_no_repository_listed(
    shared: ServiceUnderTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    def listed(root: Path) -> list[str]:
        raise AssertionError(root)

    monkeypatch.setattr("server.repository.catalog.model_names", listed)
    error(await shared.client.get("/v2/models/nobody/ready"), 404, "nobody")
    error(await shared.client.get("/v2/models/twin/ready"), 404, "not loaded")
