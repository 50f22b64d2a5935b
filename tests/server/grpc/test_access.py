"""Which clients may call what over gRPC: keys, roles, certificates; loading and unloading."""

import asyncio
import json
import ssl
from pathlib import Path
from typing import Any

import grpc
import pytest

from server.access import add_key
from server.grpc.messages import inference_pb2 as messages
from server.transport.certificate import Certificate
from tests.server.conftest import SettingsFactory
from tests.server.grpc.stubs import Client, asking, calling
from tests.server.support import ServiceUnderTest, inputs_for, serving
from tests.server.transport.authority import authority, issue

Code = grpc.StatusCode
LOAD = messages.RepositoryModelLoadRequest(model_name="pair")


async def test_the_repository(service: ServiceUnderTest) -> None:
    async with calling(service.inside) as client:
        await _load_and_unload(client)


async def _load_and_unload(client: Client) -> None:
    async def states(ready: bool) -> dict[str, str]:
        asked = messages.RepositoryIndexRequest(ready=ready)
        found = await client("RepositoryIndex", asked)
        return {each.name: each.state for each in found.models}

    unload = messages.RepositoryModelUnloadRequest(model_name="tiny")
    unload.parameters["unload_dependents"].bool_param = True
    await client("RepositoryModelUnload", unload)
    assert await states(ready=True) == {"pair": "READY"}
    assert set(await states(ready=False)) == {"pair", "tiny", "twin"}
    error = await client.refused("ModelInfer", asking("tiny", inputs_for("tiny")))
    assert error.code() is Code.NOT_FOUND
    load = messages.RepositoryModelLoadRequest(model_name="tiny")
    load.parameters["config"].string_param = json.dumps({"name": "tiny"})
    await client("RepositoryModelLoad", load)
    assert "tiny" in await states(ready=True)


async def test_keys_and_their_roles(settings: SettingsFactory, tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    headers = {
        role: (("authorization", f"Bearer {add_key(keys, role, role)}"),)
        for role in ("infer", "admin")
    }
    chosen = settings(models=("pair",), keys=keys)
    async with serving(chosen) as service, calling(service.inside) as client:
        assert (await client("ServerReady")).ready
        wrong: list[Any] = [
            (),
            (("authorization", "Bearer lsk_wrong"),),
            (*headers["infer"], *headers["infer"]),
        ]
        for metadata in wrong:
            error = await client.refused("ServerMetadata", b"", metadata=metadata)
            assert error.code() is Code.UNAUTHENTICATED, error
        assert service.inside.access.refused == 3
        assert (await client("ServerMetadata", metadata=headers["infer"])).name
        error = await client.refused("RepositoryModelLoad", LOAD, metadata=headers["infer"])
        assert error.code() is Code.PERMISSION_DENIED
        assert "role infer" in (error.details() or "")
        await client("RepositoryModelLoad", LOAD, metadata=headers["admin"])


@pytest.mark.parametrize(
    ("changes", "metadata", "words"),
    [
        ({}, (("x-forwarded-for", "10.0.0.7"),), "only from this machine"),
        ({}, (("origin", "http://elsewhere"),), "elsewhere"),
        ({}, (("origin", "http://localhost:8080"),), "localhost"),
        ({"model_control": "none"}, (), "model_control"),
    ],
)
async def test_who_may_not_change_what_is_served(
    settings: SettingsFactory, changes: dict[str, Any], metadata: Any, words: str
) -> None:
    chosen = settings(models=("pair",), **changes)
    async with serving(chosen) as service, calling(service.inside) as client:
        error = await client.refused("RepositoryModelLoad", LOAD, metadata=metadata)
        assert error.code() is Code.PERMISSION_DENIED
        assert words in (error.details() or "")


async def test_a_certificate_and_its_successor(service: ServiceUnderTest, tmp_path: Path) -> None:
    certificate = Certificate(*issue(tmp_path))
    root = authority().cert_pem.bytes()
    credentials = grpc.ssl_channel_credentials(root)
    async with calling(service.inside, certificate, credentials) as client:
        answer = await client("ModelInfer", asking("pair", inputs_for("pair")))
        assert answer.raw_output_contents
        first = await presented(client)
        issue(tmp_path)
        certificate.reload()
        assert await presented(client) != first
        assert (await client("ServerLive")).live  # its connection is the one of before


async def presented(client: Client) -> str:
    """The certificate that a new client is shown."""
    host, _, port = client.place.rpartition(":")
    return await asyncio.to_thread(ssl.get_server_certificate, (host, int(port)))
