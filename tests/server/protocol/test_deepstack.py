"""DeepStack's API: the boxes of ``:detect`` in its words, keys in the form, errors as clients read them."""

import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import onnx
import pytest
import pytest_asyncio

from models.compiler import compile_onnx
from server.access import add_key
from server.app import routes_of
from server.protocol.routing import Route
from server.settings.settings import Settings
from tests.examples import over
from tests.models.detector import NAMES, SCENES, square_finder
from tests.server.protocol.requests_table import requests_table
from tests.server.protocol.test_detect import file_of
from tests.server.protocol.test_openapi import check
from tests.server.support import Packs, ServiceUnderTest, picture, serving

pytestmark = pytest.mark.asyncio(loop_scope="module")

DETECTION, CUSTOM = "/v1/vision/detection", "/v1/vision/custom/finder"
SCENE = SCENES["wide"]
Values = dict[str, Any]


@pytest.fixture(scope="module")
def repository(packs: Packs, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A detector, and a model that is none."""
    folder = tmp_path_factory.mktemp("cameras")
    onnx.save(square_finder(True), folder / "finder.onnx")
    compile_onnx(folder / "finder.onnx", folder / "repository" / "finder")
    shutil.copytree(packs.repository / "tiny", folder / "repository" / "tiny")
    return folder / "repository"


@pytest.fixture(scope="module")
def values(repository: Path) -> Values:
    return {"repository": repository, "budget": 64 << 20, "threads": 1, "deepstack": True}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def service(values: Values) -> AsyncIterator[ServiceUnderTest]:
    async with serving(Settings.model_validate(values)) as started:
        yield started


async def ask(
    service: ServiceUnderTest,
    path: str = DETECTION,
    image: bytes | None = None,
    headers: dict[str, str] | None = None,
    params: dict[str, Any] | None = None,
    **fields: str,
) -> httpx.Response:
    """A form as clients send it: fields, then the image."""
    data = file_of(SCENE.image()) if image is None else image
    answer = await service.client.post(
        path, data=fields, files={"image": data}, headers=headers, params=params
    )
    check(service.app.openapi(), path.replace("finder", "{name}"), "post", answer)
    return answer


def labels(answer: httpx.Response) -> list[str]:
    assert answer.status_code == 200, answer.text
    return [each["label"] for each in answer.json()["predictions"]]


def refused(answer: httpx.Response, status: int, *words: str) -> None:
    """Check that it is one clear line, as DeepStack says why."""
    assert answer.status_code == status, answer.text
    document = answer.json()
    assert set(document) == {"success", "error", "code"}
    assert document["success"] is False
    for word in words:
        assert word in document["error"]


@pytest.mark.parametrize("path", [DETECTION, CUSTOM])
async def test_boxes_are_those_of_detect(service: ServiceUnderTest, path: str) -> None:
    usual = await service.client.post("/v2/models/finder:detect", content=file_of(SCENE.image()))
    answer = (await ask(service, path)).json()
    assert answer["success"] is True
    for found, expected in zip(answer["predictions"], usual.json()["detections"], strict=True):
        assert (found["label"], found["confidence"]) == (expected["label"], expected["score"])
        edges = [found[name] for name in ("x_min", "y_min", "x_max", "y_max")]
        assert edges == [round(edge) for edge in expected["box"]]


async def test_the_least_confidence(service: ServiceUnderTest) -> None:
    assert labels(await ask(service)) == list(NAMES[:2])
    assert labels(await ask(service, min_confidence="0.6")) == [NAMES[0]]
    assert labels(await ask(service, min_confidence="0.6", params={"score_threshold": 0})) == [
        NAMES[0]
    ]
    assert labels(await ask(service, params={"max_detections": 1})) == [NAMES[0]]


@over("value", ["", "x", "-0.1", "1.5", "nan", "inf", "40%"])
async def test_a_wrong_confidence_is_named(service: ServiceUnderTest, value: str) -> None:
    refused(await ask(service, min_confidence=value), 400, "min_confidence")


@over("source", ["form", "query"])
async def test_an_empty_number_is_refused_as_empty(service: ServiceUnderTest, source: str) -> None:
    empty: dict[str, Any] = {"min_confidence": ""}
    if source == "query":
        empty = {"params": {"score_threshold": ""}}
    refused(await ask(service, **empty), 400, "empty; give a number, or leave the field out")


async def test_a_form_with_several_files_is_refused_as_such(service: ServiceUnderTest) -> None:
    files = [("image", picture()), ("image", picture())]
    refused(await service.client.post(DETECTION, files=files), 400, "several files")


@over("image, words", [(b"no picture", "not an image"), (b"", "empty"), (picture()[:200], "dam")])
async def test_a_picture_that_is_none(service: ServiceUnderTest, image: bytes, words: str) -> None:
    refused(await ask(service, image=image), 400, words)


async def test_fields_that_are_left_out(service: ServiceUnderTest) -> None:
    post = service.client.post
    refused(await post(DETECTION, data={"min_confidence": "0.5"}), 400, "not an image")
    refused(await post(DETECTION), 400, "empty")
    refused(await post(DETECTION, files={"min_confidence": (None, "0.5")}), 400, "no file")
    refused(await ask(service, api_key="k" * 300), 400, "api_key", "256")
    assert labels(await post(DETECTION, content=file_of(SCENE.image()))) == list(NAMES[:2])


@pytest.mark.parametrize(
    ("path", "status", "words"),
    [
        ("/v1/vision/custom/nobody", 404, "'nobody'"),
        ("/v1/vision/custom/tiny", 400, "'tiny' does not detect objects"),
    ],
)
async def test_names_that_are_no_detector(
    service: ServiceUnderTest, path: str, status: int, words: str
) -> None:
    answer = await service.client.post(path, files={"image": picture()})
    refused(answer, status, words)


async def test_another_method(service: ServiceUnderTest) -> None:
    refused(await service.client.get(DETECTION), 405, "POST")


async def test_which_detector_is_not_said(values: Values, tmp_path: Path) -> None:
    shutil.copytree(values["repository"], tmp_path / "both")
    shutil.copytree(tmp_path / "both" / "finder", tmp_path / "both" / "other")
    both = {**values, "repository": tmp_path / "both"}
    async with serving(Settings.model_validate(both)) as service:
        refused(await ask(service), 404, "finder, other", "deepstack_model")
        assert labels(await ask(service, CUSTOM)) == list(NAMES[:2])
    named = Settings.model_validate({**both, "deepstack_model": "other"})
    async with serving(named) as service:
        assert labels(await ask(service)) == list(NAMES[:2])
    none = Settings.model_validate({**values, "models": ("tiny",)})
    async with serving(none) as service:
        refused(await ask(service), 503, "no model that answers detects objects")


async def test_a_server_that_is_full(values: Values) -> None:
    """Others hold all memory of requests: a refusal that says so, before a client's patience ends."""
    full = Settings.model_validate({**values, "request_timeout": 0.2})
    async with serving(full) as service:
        memory = service.inside.request_memory
        taken = memory.room_bytes - memory.used_bytes
        await memory.take(taken, "other")
        answer = await ask(service)
        refused(answer, 503, "no memory for the request")
        assert answer.headers["retry-after"]
        memory.give(taken, "other")
        assert labels(await ask(service)) == list(NAMES[:2])


async def test_keys(values: Values, tmp_path: Path) -> None:
    key = add_key(tmp_path / "keys", "camera", "infer")
    guarded = Settings.model_validate({**values, "keys": tmp_path / "keys"})
    long = picture(400, 300)  # more than comes before anything is held
    async with serving(guarded) as service:
        bearer = {"authorization": f"Bearer {key}"}
        presented: tuple[Values, ...] = ({"headers": bearer}, {"api_key": key})
        for fields in presented:
            assert labels(await ask(service, **fields)) == list(NAMES[:2])
            assert (await ask(service, image=long, **fields)).status_code == 200
        nothing: tuple[Values, ...] = ({}, {"api_key": ""})
        for path in (DETECTION, CUSTOM):
            for fields in nothing:
                refused(await ask(service, path, **fields), 401, "a key is wanted", "api_key")
            refused(await ask(service, path, api_key="lsk_x"), 401, "not valid")
        refused(await ask(service, api_key=key, headers={"authorization": "x"}), 401, "not valid")
        # A client that sends it behind a long picture has sent too much without one.
        files: Values = {"image": ("a", long), "api_key": (None, key)}
        refused(await service.client.post(DETECTION, files=files), 401, "before the image")
        # So has one without a key at all, and one with a key is told what it may send.
        longer = {"content-length": str(guarded.max_body + 1)}
        refused(await ask(service, headers=longer), 401, "a key is wanted")
        refused(await ask(service, headers={**longer, **bearer}), 413, "max_body")
        refused(await ask(service, api_key=key, headers=longer), 413, "max_body")
        # Names of models are for clients that have a key.
        answer = await service.client.post("/v1/vision/custom/nobody", files={"image": long})
        refused(answer, 401, "a key is wanted")


async def test_it_is_off_unless_asked_for(repository: Path) -> None:
    settings = Settings(repository=repository, budget=64 << 20)
    usual, every = routes_of(settings), routes_of(settings.model_copy(update={"deepstack": True}))
    assert every[: len(usual)] == usual
    cameras = [
        route for route in every if isinstance(route, Route) and route.rules.admitted == "form"
    ]
    assert cameras == every[len(usual) :]
    assert len(cameras) == 2


async def test_a_model_without_the_extension() -> None:
    with pytest.raises(ValueError, match="without deepstack"):
        Settings.model_validate({"repository": ".", "budget": 1, "deepstack_model": "a"})


async def test_the_table_of_requests_is_that_of_routes(repository: Path) -> None:
    """Print what docs/reference/http.md must have: ``requests_table`` of all routes."""
    settings = Settings(repository=repository, budget=64 << 20, deepstack=True)
    text = (Path(__file__).parents[3] / "docs/reference/http.md").read_text()
    assert requests_table(routes_of(settings)) in text
