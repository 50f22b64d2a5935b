"""A method that a path does not take is a 405; Allow names all that it takes, as the documentation does."""

import httpx
import pytest

from tests.examples import over
from tests.server.support import ServiceUnderTest, error

pytestmark = pytest.mark.asyncio(loop_scope="module")


def allowed(answer: httpx.Response) -> set[str]:
    return {method.strip() for method in answer.headers["allow"].split(",")}


async def test_every_path_names_its_methods(shared: ServiceUnderTest) -> None:
    for path, operations in shared.app.openapi()["paths"].items():
        expected = {method.upper() for method in operations}
        expected |= {"HEAD"} if "GET" in expected else set()
        place = path.format(name="pair", version="1", region="r")
        for method in ("DELETE", "OPTIONS", "BREW"):
            answer = await shared.client.request(method, place)
            assert answer.status_code == 405
            if not path.startswith("/v1/"):  # errors have OpenAI's form there
                error(answer, 405, "Method Not Allowed", place[:60], *expected)
            assert allowed(answer) == expected, path


async def test_head_of_what_takes_posts_names_them(shared: ServiceUnderTest) -> None:
    answer = await shared.client.head("/v2/models/pair/infer")
    assert answer.status_code == 405
    assert allowed(answer) == {"POST"}


async def test_what_a_model_does_is_no_model(shared: ServiceUnderTest) -> None:
    """A name with an action behind it is not looked for among the models."""
    for path in ("/v2/models/tiny:classify", "/v2/models/tiny/versions/1:detect"):
        answer = await shared.client.get(path)
        error(answer, 405, path, "POST")
        assert allowed(answer) == {"POST"}


@over("method", ["POST", "PUT"])
@over("place", ["/v2/models/tiny", "/v2/models/none", "/v2/models/tiny/versions/1"])
async def test_an_action_that_there_is_not_is_told_those_that_there_are(
    shared: ServiceUnderTest, place: str, method: str
) -> None:
    answer = await shared.client.request(method, f"{place}:paint")
    there_are = ":classify, :depth, :detect, :embed, :infer, :segment"
    error(answer, 404, f"{place!r} has no action 'paint'", there_are)


async def test_what_has_no_actions_is_told_of_none(shared: ServiceUnderTest) -> None:
    error(await shared.client.post("/v2:segment"), 404, "is no path of this server")
    error(await shared.client.post("/v2/models/tiny/ready:segment"), 404, "is no path")


async def test_settings_that_cannot_be_changed_say_so(shared: ServiceUnderTest) -> None:
    for path in ("/v2/logging", "/v2/trace/setting", "/v2/models/pair/trace/setting"):
        answer = await shared.client.post(path, json={})
        error(answer, 405, path, "GET")
        assert allowed(answer) == {"GET", "HEAD"}


async def test_a_long_path_is_cut(shared: ServiceUnderTest) -> None:
    error(await shared.client.delete(f"/v2/models/{'n' * 5000}"), 405, "'/v2/models/nnn")
