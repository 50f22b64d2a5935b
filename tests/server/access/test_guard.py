"""With keys: clients with none, a wrong one, or one of the wrong role; what stays open; what logs say."""

import io
import json
import logging
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
import pytest_asyncio

from server.access import KeyFileError, add_key, new_key, remove_key
from server.operation import logs
from tests.server.conftest import SettingsFactory
from tests.server.support import ServiceUnderTest, error, inputs_for, request, serving

pytestmark = pytest.mark.asyncio(loop_scope="module")

LOAD = "/v2/repository/models/tiny/load"
OPEN = ("/v2/health/live", "/v2/health/ready", "/", "/page/files/main.js")
CLOSED = (
    *(
        "/v2",
        "/metrics",
        "/docs",
        "/docs/swagger-ui.css",
        "/openapi.json",
        "/nowhere",
        "/page/events",
    ),
    *("/v2/models/tiny", "/v2/models/tiny/ready", "/v2/models/nobody", "/v2/health/ready/"),
    *("/V2/health/live", "/v2/health/live%00", "/v2/health/live%2f"),
    *("/page/models/tiny/arena", "/page/models/tiny/frontier", "/page/files"),
)


@dataclass(frozen=True)
class Keyed:
    """A service that requires keys, one of each role, and their file."""

    service: ServiceUnderTest
    file: Path
    infer: str
    admin: str

    async def ask(self, method: str, path: str, *values: str, **sent: object) -> httpx.Response:
        """Ask with these Authorization headers."""
        headers = [("authorization", value) for value in values]
        return await self.service.client.request(method, path, headers=headers, **sent)  # type: ignore[arg-type]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def keyed(
    settings: SettingsFactory, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Keyed]:
    file = tmp_path_factory.mktemp("keys") / "keys"
    infer, admin = add_key(file, "cam", "infer"), add_key(file, "ops", "admin")
    async with serving(settings(keys=file)) as service:
        yield Keyed(service, file, infer, admin)


async def test_nothing_but_health_is_open(keyed: Keyed) -> None:
    for path in OPEN:
        assert (await keyed.ask("GET", path)).status_code == 200
    for path in CLOSED:
        for method in ("GET", "HEAD", "POST", "OPTIONS"):
            answer = await keyed.ask(method, path)
            assert answer.status_code == 401, (method, path)
            assert answer.headers["www-authenticate"] == 'Bearer realm="layerstream"'
    for path in ("/v2/models/tiny/infer", "/v2/models/tiny:classify", "/v2/repository/index", LOAD):
        error(await keyed.ask("POST", path, content="{"), 401, "Authorization: Bearer")


async def test_what_is_no_key(keyed: Keyed) -> None:
    good = f"Bearer {keyed.infer}"
    for values in (
        ("",),
        ("Bearer",),
        ("Bearer ",),
        (keyed.infer,),
        (f"Basic {keyed.infer}",),
        (f"Bearer {keyed.infer}x",),
        (f"Bearer {keyed.infer[:-1]}",),
        (f"Bearer {keyed.infer.swapcase()}",),
        (f"Bearer {new_key()}",),
        (f"Bearer {keyed.infer} {keyed.admin}",),
        (good, good),
        ("Bearer x", good),
        ("Bearer " + "k" * 20_000,),
    ):
        answer = await keyed.ask("GET", "/v2", *values)
        message = error(answer, 401, "not valid")
        assert 'error="invalid_token"' in answer.headers["www-authenticate"]
        assert len(message) < 100
    for value in (
        good,
        f"bearer {keyed.infer}",
        f"BEARER   {keyed.infer}",
        f"Bearer {keyed.admin}",
    ):
        assert (await keyed.ask("GET", "/v2", value)).status_code == 200


async def test_roles(keyed: Keyed) -> None:
    infer, admin = f"Bearer {keyed.infer}", f"Bearer {keyed.admin}"
    body = request(inputs_for("tiny"))
    for key in (infer, admin):
        for path, sent in (("/v2/models/tiny/infer", body), ("/v2/repository/index", None)):
            assert (await keyed.ask("POST", path, key, json=sent)).status_code == 200
        assert (await keyed.ask("GET", "/metrics", key)).status_code == 200
    for name in ("tiny", "nobody"):  # clients without the right do not learn what there is
        for verb in ("load", "unload"):
            place = f"/v2/repository/models/{name}/{verb}"
            error(await keyed.ask("POST", place, infer), 403, "'cam'", "admin")
    assert (await keyed.ask("POST", LOAD, admin)).status_code == 200
    error(await keyed.ask("POST", LOAD.replace("tiny", "nobody"), admin), 404)


async def test_an_admin_key_is_good_from_anywhere(keyed: Keyed) -> None:
    other = httpx.ASGITransport(keyed.service.asgi, client=("10.0.0.7", 5))
    headers = {"authorization": f"Bearer {keyed.admin}", "x-forwarded-for": "10.0.0.8"}
    async with httpx.AsyncClient(transport=other, base_url="http://box.example") as outside:
        assert (await outside.post(LOAD, headers=headers)).status_code == 200


async def test_the_body_of_who_has_no_key_is_not_read(keyed: Keyed) -> None:
    read: list[bytes] = []

    async def body() -> AsyncIterator[bytes]:
        for part in (b"{", b"}"):
            read.append(part)
            yield part

    error(await keyed.ask("POST", "/v2/models/tiny/infer", content=body()), 401)
    assert read == []


async def test_who_may_not_ask_is_not_told_how_long_a_body_may_be(keyed: Keyed) -> None:
    longer = {"content-length": str(keyed.service.inside.settings.max_upload + 1)}
    client = keyed.service.client
    for path in ("/v2/models/tiny/infer", LOAD):
        error(await client.post(path, headers=longer), 401)
    role = {"authorization": f"Bearer {keyed.infer}"}
    error(await client.post(LOAD, headers={**longer, **role}), 403, "admin")
    error(await client.post("/v2/models/tiny/infer", headers={**longer, **role}), 413, "max_body")


async def test_every_path_of_the_service_wants_a_key(keyed: Keyed) -> None:
    """Also those that this file does not name."""
    for path, operations in keyed.service.app.openapi()["paths"].items():
        for method in operations:
            answer = await keyed.ask(method, path.format(name="tiny", version="1", region="r"))
            assert (answer.status_code != 401) == (path in OPEN), path


async def test_a_log_has_the_name_of_a_key_and_never_the_key(keyed: Keyed) -> None:
    stream, root = io.StringIO(), logging.getLogger("server")
    handler = logging.StreamHandler(stream)
    handler.setFormatter(logs.JsonFormatter())
    root.addHandler(handler)
    level = root.level
    root.setLevel(logging.DEBUG)
    wrong = new_key()
    try:
        await keyed.ask("POST", LOAD, f"Bearer {keyed.infer}")
        await keyed.ask("GET", "/v2/nowhere", f"Bearer {keyed.admin}")
        await keyed.ask("GET", "/v2", f"Bearer {wrong}")
    finally:
        root.removeHandler(handler)
        root.setLevel(level)
    lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    access = [line for line in lines if line["logger"] == "server.access"]
    assert [line.get("key") for line in access] == ["cam", "ops", None]
    for secret in (keyed.infer, keyed.admin, wrong):
        assert secret not in stream.getvalue()
        assert secret not in repr(keyed.service.inside.access)


async def test_read_again(keyed: Keyed) -> None:
    """What was added counts, what was removed does not; a file that is wrong changes nothing."""
    access = keyed.service.inside.access
    late = add_key(keyed.file, "late", "infer")
    assert (await keyed.ask("GET", "/v2", f"Bearer {late}")).status_code == 401
    access.reload()
    assert (await keyed.ask("GET", "/v2", f"Bearer {late}")).status_code == 200
    good = keyed.file.read_text()
    keyed.file.write_text(good + "nonsense\n")
    with pytest.raises(KeyFileError):
        access.reload()
    assert (await keyed.ask("GET", "/v2", f"Bearer {late}")).status_code == 200
    keyed.file.write_text(good)
    remove_key(keyed.file, "late")
    access.reload()
    assert (await keyed.ask("GET", "/v2", f"Bearer {late}")).status_code == 401
