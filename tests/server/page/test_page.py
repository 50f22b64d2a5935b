"""The page is served whole; what it shows of the server is so."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from models.packs.pack import open_pack
from server.page.routes import STATIC
from server.page.state import state
from tests.server.conftest import SettingsFactory
from tests.server.support import Packs, ServiceUnderTest, error, inputs_for, serving

FILES = sorted(path.name for path in STATIC.iterdir())
pytestmark = pytest.mark.asyncio(loop_scope="module")


async def test_the_page_is_whole_and_browsers_are_told_to_trust_no_other(
    shared: ServiceUnderTest,
) -> None:
    page = await shared.client.get("/")
    assert page.headers["content-type"].startswith("text/html")
    for name in FILES:
        found = await shared.client.get(f"/page/files/{name}")
        assert found.status_code == 200
        policy = found.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
    for name in ("main.mjs", "..%2froutes.py", "%2e%2e", "index.html%00"):
        error(await shared.client.get(f"/page/files/{name}"), 404)


async def test_the_state_adds_up(shared: ServiceUnderTest, packs: Packs) -> None:
    await shared.infer("tiny", inputs_for("tiny"))
    shown = state(shared.inside, ["tiny", "pair", "twin"])
    budget = shown["budget"]
    held = sum(sum(kinds.values()) for kinds in shown["memory"].values())
    assert held + budget["request_bytes"] == budget["used_bytes"] <= budget["total_bytes"]
    models = {model["name"]: model for model in shown["models"]}
    assert list(models) == ["pair", "tiny", "twin"]
    assert models["tiny"]["takes"] == "classify"
    assert models["tiny"]["sweeps"] >= 1
    assert models["pair"]["takes"] is None
    assert models["twin"]["state"] == "UNAVAILABLE"
    assert models["twin"]["absence"] == "unloaded"  # no fault
    assert models["tiny"]["absence"] is None
    assert models["tiny"]["weight_bytes"] == packs.weights("tiny")


async def test_the_state_has_the_process_and_the_requests_that_failed(
    shared: ServiceUnderTest,
) -> None:
    def errors() -> int:
        models = {model["name"]: model for model in state(shared.inside, [])["models"]}
        return sum(models["tiny"]["errors"].values())

    before = errors()
    error(await shared.client.post("/v2/models/tiny/infer", content=b"{}"), 400)
    assert errors() == before + 1
    process = state(shared.inside, [])["process"]
    assert process["anonymous_bytes"] > 0
    assert process["limit_bytes"] == shared.inside.settings.memory


async def test_the_arena_holds_what_is_shown(shared: ServiceUnderTest, packs: Packs) -> None:
    shown = (await shared.client.get("/page/models/tiny/arena")).json()
    assert shown["boxes"]
    tops = [box["offset"] + box["n_bytes"] for box in shown["boxes"]]
    assert max(tops) <= shown["arena_bytes"]
    values = {value.name for value in open_pack(packs.repository / "tiny").manifest.values}
    assert {box["name"] for box in shown["boxes"] if box["kind"] == "value"} <= values
    error(await shared.client.get("/page/models/nosuch/arena"), 404)


async def test_versions_side_by_side_are_shown_each(
    settings: SettingsFactory, packs: Packs, tmp_path: Path
) -> None:
    tiny = tmp_path / "repository" / "tiny"
    for version in "12":
        shutil.copytree(packs.repository / "tiny" / "1", tiny / version)
    (tiny / "config.pbtxt").write_text("version_policy { all { } }")
    async with serving(settings(64 << 20, repository=tiny.parent, models=())) as service:
        shown = state(service.inside, ["tiny"])["models"]
        assert [(each["name"], each["model"]) for each in shown] == [
            ("tiny/1", "tiny"),
            ("tiny/2", "tiny"),
        ]
        for each in shown:
            path = f"/page/models/{each['model']}/arena?version={each['version']}"
            assert (await service.client.get(path)).json()["boxes"]


def events(text: str) -> list[tuple[str, Any]]:
    """The events of a stream: of which kind, and what is said."""
    found = []
    for part in text.split("\n\n")[:-1]:
        kind, data = part.split("\n")
        found.append((kind.removeprefix("event: "), json.loads(data.removeprefix("data: "))))
    return found


async def test_a_frontier_is_planned_once(
    shared: ServiceUnderTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    *steps, (kind, first) = events((await shared.client.get("/page/models/tiny/frontier")).text)
    assert {kind for kind, _ in steps} == {"step"}
    assert kind == "plans"
    sizes = [point["plan_bytes"] for point in first]
    assert len(sizes) > 1
    assert sizes == sorted(sizes)

    async def never(name: str) -> None:
        raise AssertionError

    monkeypatch.setattr(shared.inside.repository, "frontier", never)
    again = await shared.client.get("/page/models/tiny/frontier")
    assert events(again.text) == [("plans", first)]
    # It takes a core: clients that may not load may not ask for it.
    headers = {"x-forwarded-for": "198.51.100.1"}
    error(await shared.client.get("/page/models/tiny/frontier", headers=headers), 403)
