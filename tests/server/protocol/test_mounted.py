"""The application under a prefix of another one, and in Starlette's client of tests."""

import asyncio
import json
from collections.abc import AsyncIterator

import httpx
import pytest
import pytest_asyncio
from fastapi import FastAPI

from server.app import create_app
from server.protocol.infer import InferReception
from tests.server.conftest import SettingsFactory
from tests.server.protocol.test_reception import Came
from tests.server.support import ServiceUnderTest, error, inputs_for, picture, request

pytestmark = pytest.mark.asyncio(loop_scope="module")

PREFIX = "/vision"
INFER = "/v2/models/tiny/infer"
TINY = request(inputs_for("tiny"))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def mounted(shared: ServiceUnderTest) -> AsyncIterator[httpx.AsyncClient]:
    """A client of an application that has ours under a prefix."""
    host = FastAPI()
    host.mount(PREFIX, shared.app)

    @host.get("/host")
    async def host_route() -> str:
        return "host"

    transport = httpx.ASGITransport(host)
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
        yield client


async def test_requests_are_answered_as_without_a_prefix(
    mounted: httpx.AsyncClient, shared: ServiceUnderTest
) -> None:
    assert (await mounted.get("/host")).json() == "host"
    for path in ("/v2", "/v2/health/live", "/v2/models/tiny", "/page/files/main.js", "/"):
        without, within = await shared.client.get(path), await mounted.get(PREFIX + path)
        assert within.content == without.content, path
    answer, expected = [
        (await client.post(f"{prefix}{INFER}", json=TINY)).json()["outputs"]
        for client, prefix in ((mounted, PREFIX), (shared.client, ""))
    ]
    assert answer == expected
    url, kind = f"{PREFIX}/v2/models/tiny:classify?top_k=1", {"content-type": "image/png"}
    classified = await mounted.post(url, content=picture(), headers=kind)
    assert len(classified.json()["predictions"]) == 1


async def test_what_has_no_route_is_answered_by_us(mounted: httpx.AsyncClient) -> None:
    error(await mounted.get(f"{PREFIX}/nothing"), 404, f"{PREFIX}/nothing", "no path")
    error(await mounted.post(f"{PREFIX}/v2/models/tiny:paint"), 404, ":classify")
    answer = await mounted.delete(f"{PREFIX}/v2")
    error(answer, 405, f"{PREFIX}/v2")
    assert answer.headers["allow"] == "GET, HEAD"
    answer = await mounted.get(f"{PREFIX}/v2/?a=b")
    assert answer.status_code == 307
    assert answer.headers["location"] == f"http://127.0.0.1{PREFIX}/v2?a=b"


async def test_the_document_says_where_it_is(
    mounted: httpx.AsyncClient, shared: ServiceUnderTest
) -> None:
    document = (await mounted.get(f"{PREFIX}/openapi.json")).json()
    assert document.pop("servers") == [{"url": PREFIX}]
    assert document == shared.app.openapi()
    assert 'url: "openapi.json"' in (await mounted.get(f"{PREFIX}/docs")).text.replace("'", '"')


async def test_a_gate_knows_the_prefix(shared: ServiceUnderTest) -> None:
    gate = InferReception(shared.inside, PREFIX)
    deadlines = [
        gate.deadline(Came(path=path), is_free=True)
        for path in (f"{PREFIX}{INFER}", f"{PREFIX}/v2", "/other/v2/models/tiny/infer")
    ]
    assert [deadline is not None for deadline in deadlines] == [True, False, False]


@pytest.mark.filterwarnings("ignore:Using `httpx` with `starlette.testclient`")
async def test_a_client_of_tests_enters_the_application(settings: SettingsFactory) -> None:
    from starlette.testclient import TestClient

    def work() -> None:
        app = create_app(settings())
        with TestClient(app, base_url="http://127.0.0.1") as client:
            assert client.get("/v2/health/live").status_code == 200  # while models are loaded
            assert client.portal is not None
            client.portal.call(app.state.service.loaded)
            assert client.get("/v2/health/ready").json() == {"ready": True}
            answer = client.post(INFER, content=json.dumps(TINY))
            assert answer.json()["outputs"][0]["shape"] == [1, 10]
            assert client.get("/v2/models/nobody").status_code == 404

    await asyncio.to_thread(work)
