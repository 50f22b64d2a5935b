"""The whole service with gRPC: on its event loop, beside HTTP, to the end; and what stops its start."""

import asyncio
import sys

import grpc
import pytest

from benchmarks.servers.served import free_port
from server.preflight import GRPC_PACKAGES, GrpcError
from server.serve import serve
from server.transport.listener import PortError, listen
from tests.server.conftest import SettingsFactory, service_threads
from tests.server.grpc.stubs import Client, asking
from tests.server.support import inputs_for
from tests.server.transport.test_served import ready, running

__all__ = ["ready"]


async def test_calls_beside_http_until_the_service_ends(
    settings: SettingsFactory, ready: asyncio.Semaphore
) -> None:
    port = free_port()
    place = f"127.0.0.1:{port}"
    async with (
        running(settings(models=("tiny",), port=0, grpc_port=port), ready),
        grpc.aio.insecure_channel(place) as channel,
    ):
        client = Client(channel, place)
        assert (await client("ModelInfer", asking("tiny", inputs_for("tiny")))).outputs
    with listen("127.0.0.1", port):
        pass  # it is free again
    assert service_threads() == []


async def test_a_port_that_is_taken_stops_the_start(settings: SettingsFactory) -> None:
    with listen("127.0.0.1", 0) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(PortError, match=f":{port}: Address already in use"):
            await serve(settings(port=0, grpc_port=port))


@pytest.mark.parametrize("package", GRPC_PACKAGES)
async def test_without_the_extra_the_start_says_so(
    settings: SettingsFactory, monkeypatch: pytest.MonkeyPatch, package: str
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(GrpcError, match=f"{package}.*in a clone of Layerstream"):
        await serve(settings(port=0, grpc_port=0))
