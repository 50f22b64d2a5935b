"""A loaded model is limited to less memory, and freed of that again; its answers stay the same."""

import asyncio
import shutil
from pathlib import Path
from typing import Any

from tests.server.conftest import SettingsFactory
from tests.server.support import Packs, ServiceUnderTest, arrays, close, error, inputs_for, serving


async def replan(service: ServiceUnderTest, name: str, n_bytes: object) -> dict[str, int]:
    path = f"/v2/repository/models/{name}/replan"
    response = await service.client.post(path, json={"memory_bytes": n_bytes})
    assert response.status_code == 200, response.text
    memory: dict[str, int] = response.json()["memory_bytes"]
    return memory


def held(service: ServiceUnderTest) -> dict[str, int]:
    return {name: sum(kinds.values()) for name, kinds in service.inside.budget.held().items()}


async def test_a_limit_holds_until_it_is_lifted(settings: SettingsFactory, packs: Packs) -> None:
    inputs = inputs_for("tiny")
    expected = packs.expected("tiny", inputs)
    room = 2 * (packs.smallest("tiny") + packs.smallest("pair")) + (4 << 20)
    async with serving(settings(room)) as service:
        before = held(service)["tiny"]
        least = packs.smallest("tiny")
        for most in (before, (before + least) // 2, least, least + 1, before + (1 << 20)):
            memory = await replan(service, "tiny", most)
            assert sum(memory.values()) == held(service)["tiny"] <= most
            close(arrays(await service.infer("tiny", inputs)), expected)
        await replan(service, "tiny", least)
        await service.client.post("/v2/repository/models/pair/unload")  # the others grow
        assert held(service)["tiny"] == least
        assert sum((await replan(service, "tiny", None)).values()) >= before
        await replan(service, "tiny", least)
        for what in ("unload", "load"):  # what is loaded anew has no limit
            await service.client.post(f"/v2/repository/models/tiny/{what}")
        assert held(service)["tiny"] >= before


async def test_a_limit_outlasts_the_pack(
    settings: SettingsFactory, packs: Packs, tmp_path: Path
) -> None:
    for name in ("tiny", "pair"):
        shutil.copytree(packs.repository / name, tmp_path / "repository" / name)
    async with serving(settings(64 << 20, repository=tmp_path / "repository")) as service:
        least = packs.smallest("tiny")
        await replan(service, "tiny", least)
        tiny = tmp_path / "repository" / "tiny"
        shutil.copytree(tiny / "1", tiny / "2")
        await service.client.post("/v2/repository/models/tiny/load")
        assert service.inside.repository.models.find("tiny").serving().prepared.pack.version == "2"
        assert held(service)["tiny"] == least


async def test_less_than_a_model_needs_is_refused_and_changes_nothing(
    service: ServiceUnderTest, packs: Packs
) -> None:
    before = held(service)
    path = "/v2/repository/models/tiny/replan"
    least = packs.smallest("tiny")
    response = await service.client.post(path, json={"memory_bytes": least - 1})
    error(response, 409, "tiny", str(least))
    bodies: tuple[Any, ...] = ({}, {"memory_bytes": 0}, {"memory_bytes": "1"}, {"x": 2}, [])
    for wrong in bodies:
        error(await service.client.post(path, json=wrong), 400)
    error(await service.client.post(path, content=b"{"), 400)
    assert (await service.client.post(path, content=b'{"memory_bytes": null}')).status_code == 200
    missing = "/v2/repository/models/nosuch/replan"
    error(await service.client.post(missing, json={"memory_bytes": None}), 404)
    forwarded = {"x-forwarded-for": "198.51.100.1"}
    error(await service.client.post(path, json={"memory_bytes": least}, headers=forwarded), 403)
    assert held(service) == before
    arrays(await service.infer("tiny", inputs_for("tiny")))


async def test_requests_wait_while_a_model_is_planned_again(
    settings: SettingsFactory, packs: Packs
) -> None:
    inputs = inputs_for("tiny")
    expected = packs.expected("tiny", inputs)
    room = 2 * (packs.smallest("tiny") + packs.smallest("pair"))
    async with serving(settings(room)) as service:
        asked = [asyncio.create_task(service.infer("tiny", inputs)) for _ in range(8)]
        await replan(service, "tiny", packs.smallest("tiny"))
        for response in await asyncio.gather(*asked):
            close(arrays(response), expected)


async def test_each_version_keeps_the_limit(
    settings: SettingsFactory, packs: Packs, tmp_path: Path
) -> None:
    tiny = tmp_path / "repository" / "tiny"
    for version in ("1", "2"):
        shutil.copytree(packs.repository / "tiny" / "1", tiny / version)
    (tiny / "config.pbtxt").write_text("version_policy { all { } }")
    changes = {"models": ("tiny",), "repository": tiny.parent, "activations": "own"}
    async with serving(settings(64 << 20, **changes)) as service:
        least = packs.smallest("tiny")
        memory = await replan(service, "tiny", least)
        assert held(service) == {"tiny/1": least, "tiny/2": least}
        assert sum(memory.values()) == 2 * least
        path = "/v2/repository/models/tiny/replan"
        error(await service.client.post(path, json={"memory_bytes": least - 1}), 409)
        # All or none: one of them can open no other plan any more.
        (tiny / "1").rename(tmp_path / "away")
        error(await service.client.post(path, json={"memory_bytes": None}), 503, "others by now")
        assert held(service) == {"tiny/1": least, "tiny/2": least}


async def test_a_pack_that_was_moved_away_keeps_its_plan(
    settings: SettingsFactory, packs: Packs, tmp_path: Path
) -> None:
    for name in ("tiny", "pair"):
        shutil.copytree(packs.repository / name, tmp_path / "repository" / name)
    async with serving(settings(64 << 20, repository=tmp_path / "repository")) as service:
        before = held(service)
        (tmp_path / "repository" / "tiny" / "1").rename(tmp_path / "away")
        path = "/v2/repository/models/tiny/replan"
        for most in (packs.smallest("tiny"), before["tiny"], None):
            answer = await service.client.post(path, json={"memory_bytes": most})
            error(answer, 503, "its files are others by now")
        assert held(service) == before
