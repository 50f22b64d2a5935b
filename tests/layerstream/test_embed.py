"""docs/how-to/embed.md: its application and its tests run; what it says is refused is what is refused."""

import re
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from fastapi import FastAPI

from layerstream import Budget
from layerstream.service import Service, Settings, create_app
from layerstream.testing import LABELS, write_models
from server.settings.embedded import OF_CONNECTIONS, OF_PROCESS, OF_SOCKETS
from tests.documents import ROOT, read
from tests.server.support import picture

_TEXT = (ROOT / "docs/how-to/embed.md").read_text("utf-8")


def _page() -> dict[str, Any]:
    names: dict[str, Any] = {}
    for block in read(_TEXT).blocks:
        if block.language == "python":
            exec(compile(block.text, "embed.md", "exec"), names)
    return names


_TESTS = {name: test for name, test in _page().items() if name.startswith("test_")}


@pytest.mark.parametrize("name", _TESTS)
async def test_the_page_is_right(name: str, tmp_path: Path) -> None:
    await _TESTS[name](tmp_path)


def test_the_page_names_what_is_refused() -> None:
    refused = _TEXT[_TEXT.index("Settings that cannot hold") :]
    for name in (*OF_PROCESS, *OF_SOCKETS, *OF_CONNECTIONS):
        assert f"`{name}`" in refused
    assert {*re.findall(r"`(\w+_timeout)`", refused)} <= {*OF_CONNECTIONS}


async def test_mounted_and_not_entered_it_says_how(tmp_path: Path) -> None:
    service = Service(Settings(repository=tmp_path, budget=32 << 20))
    host = FastAPI()
    host.mount("/vision", create_app(service))
    transport = httpx.ASGITransport(host)
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        answer = await client.get("/vision/v2")
    assert answer.status_code == 503
    assert "lifespan=service.lifespan" in answer.json()["error"]


def test_models_for_tests_answer_as_they_say(tmp_path: Path) -> None:
    repository = write_models(tmp_path)
    with Budget("16MiB") as budget:
        double, brightness = budget.open(repository / "double", repository / "brightness")
        array = np.array([[1, -2, 3, 0.5]], np.float32)
        assert np.array_equal(double(array)["y"], 2 * array)
        for value, label in ((0.1, "dark"), (0.9, "bright")):
            image = np.full((1, 3, 8, 8), value, np.float32)
            assert LABELS[int(brightness(image)["scores"].argmax())] == label


async def test_pictures_are_dark_or_bright(tmp_path: Path) -> None:
    app = create_app(Settings(repository=write_models(tmp_path), budget=48 << 20))
    transport = httpx.ASGITransport(app)
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=transport, base_url="http://localhost") as client,
    ):
        await app.state.service.loaded()
        answer = await client.post("/v2/models/brightness:classify", content=picture(20, 30))
        assert answer.status_code == 200, answer.text
        labels = {prediction["label"] for prediction in answer.json()["predictions"]}
        assert labels == {*LABELS}
