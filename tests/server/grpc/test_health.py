"""gRPC's health checking protocol: the server and each model, once and watched."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc import aio
from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse

from server import faults
from server.access import add_key
from server.errors import BusyError
from server.grpc import health
from server.grpc.call import SERVICE, Call, CallPlaces
from server.grpc.health import HEALTH
from server.grpc.server import GrpcServer, _options
from server.transport.limits import FRESH_SECONDS
from tests.server.conftest import SettingsFactory
from tests.server.grpc.stubs import Client, calling
from tests.server.support import LIMIT_SECONDS, ServiceUnderTest, serving
from tests.server.transport.wire import LIMITS

Code = grpc.StatusCode


async def check(client: Client, service: str, **options: Any) -> str:
    """The status, or the code of the error."""
    call: Any = client.channel.unary_unary(
        f"/{HEALTH}/Check", response_deserializer=HealthCheckResponse.FromString
    )
    request = HealthCheckRequest(service=service).SerializeToString()
    try:
        response = await call(request, timeout=LIMIT_SECONDS, **options)
    except aio.AioRpcError as exc:
        return exc.code().name
    return str(HealthCheckResponse.ServingStatus.Name(response.status))


async def watch(channel: aio.Channel, service: str) -> AsyncIterator[str]:
    """Each status that is sent."""
    call: Any = channel.unary_stream(
        f"/{HEALTH}/Watch", response_deserializer=HealthCheckResponse.FromString
    )
    request = HealthCheckRequest(service=service).SerializeToString()
    async for response in call(request, timeout=LIMIT_SECONDS):
        yield HealthCheckResponse.ServingStatus.Name(response.status)


async def test_the_server_and_its_models(service: ServiceUnderTest) -> None:
    async with calling(service.inside) as client:
        for name in ("", SERVICE, "pair", "tiny"):
            assert await check(client, name) == "SERVING"
        assert await check(client, "nobody") == "NOT_FOUND"
        await service.inside.repository.unload("tiny")
        service.worker("pair").served.leave(
            faults.Fault(faults.Code.READ_FAILED, "the disk is gone")
        )
        assert await check(client, "tiny") == "NOT_SERVING"
        assert await check(client, "pair") == "NOT_SERVING"
        assert await check(client, "") == "NOT_SERVING"  # no model serves


async def test_a_watch_is_sent_each_change(
    service: ServiceUnderTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("server.grpc.health._POLL_SECONDS", 0.005)
    repository = service.inside.repository
    async with calling(service.inside) as client, asyncio.timeout(LIMIT_SECONDS):
        statuses = watch(client.channel, "pair")
        assert await anext(statuses) == "SERVING"
        await repository.unload("pair")
        assert await anext(statuses) == "NOT_SERVING"
        await repository.load("pair")
        assert await anext(statuses) == "SERVING"
        unknown = watch(client.channel, "nobody")
        assert await anext(unknown) == "SERVICE_UNKNOWN"


async def test_a_watch_ends_with_the_server(
    service: ServiceUnderTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("server.grpc.health._POLL_SECONDS", 0.005)
    server = GrpcServer(service.inside, None)
    target = f"127.0.0.1:{await server.start('127.0.0.1', 0)}"
    async with grpc.aio.insecure_channel(target) as channel, asyncio.timeout(LIMIT_SECONDS):
        statuses = watch(channel, "")
        assert await anext(statuses) == "SERVING"
        ending = server.end()
        assert [status async for status in statuses] == ["NOT_SERVING"]
        await ending


class WatchCall:
    """A watch of the server, which begins to end at its ``n``-th wait of one kind."""

    key = None
    is_ending = False

    def __init__(self, kind: str, n: int) -> None:
        self._kind, self._left = kind, n
        self.statuses: list[str] = []
        self.service = self  # of which a watch uses what follows
        self.repository = self.presence = self
        self.unready = ""

    def _wait(self, kind: str) -> None:
        if kind == self._kind:
            self._left -= 1
            self.is_ending |= self._left == 0

    def exchange(self) -> "contextlib.nullcontext[WatchCall]":
        return contextlib.nullcontext(self)

    async def read(self, *_: object) -> Any:
        self._wait("message")
        return HealthCheckRequest()

    async def is_there(self) -> bool:
        self._wait("status")
        return True

    async def send(self, data: bytes, more: bool) -> None:
        status = HealthCheckResponse.FromString(data).status
        self.statuses.append(HealthCheckResponse.ServingStatus.Name(status))
        self._wait("sending")

    async def wait_as_silent(self, seconds: float) -> None:
        assert not self.is_ending
        self._wait("change")


@pytest.mark.parametrize(
    ("kind", "n", "statuses"),
    [
        ("message", 1, ["NOT_SERVING"]),
        ("status", 1, ["SERVING", "NOT_SERVING"]),
        ("status", 2, ["SERVING", "NOT_SERVING"]),
        ("sending", 1, ["SERVING", "NOT_SERVING"]),
        ("change", 1, ["SERVING", "NOT_SERVING"]),
        ("change", 3, ["SERVING", "NOT_SERVING"]),
    ],
)
async def test_the_last_status_of_a_watch_is_that_of_a_server_that_ends(
    monkeypatch: pytest.MonkeyPatch, kind: str, n: int, statuses: list[str]
) -> None:
    call: Any = WatchCall(kind, n)
    monkeypatch.setattr(health, "read_message", call.read)
    await health.watch(call)
    assert call.statuses == statuses


class QuietWire:
    """A call that has been read, of which nothing more comes."""

    def invocation_metadata(self) -> None:
        return None

    def peer(self) -> str:
        return "ipv4:127.0.0.1:1"


async def test_a_watch_yields_to_another_address_as_a_silent_stream_does() -> None:
    nothing: Any = None
    wire: Any = QuietWire()
    call = Call(nothing, CallPlaces(LIMITS, lambda: 0.0), "Watch", wire, nothing, HEALTH)
    now = asyncio.get_running_loop().time()
    assert call.silence(now) is None
    assert not call.give_way()  # its status is being computed
    waiting = asyncio.create_task(call.wait_as_silent(LIMIT_SECONDS))
    await asyncio.sleep(0)
    assert (call.silence(now + FRESH_SECONDS) or 0.0) > 0.0
    assert call.give_way()
    with pytest.raises(BusyError, match="another address"):
        await waiting


async def test_a_probe_of_the_server_needs_no_key_and_one_of_a_model_does(
    settings: SettingsFactory, tmp_path: Path
) -> None:
    keys = tmp_path / "keys"
    key = add_key(keys, "probe", "infer")
    chosen = settings(models=("pair",), keys=keys)
    async with serving(chosen) as service, calling(service.inside) as client:
        assert await check(client, "") == "SERVING"
        assert await check(client, "pair") == "UNAUTHENTICATED"
        assert await check(client, "nobody") == "UNAUTHENTICATED"
        metadata = (("authorization", f"Bearer {key}"),)
        assert await check(client, "pair", metadata=metadata) == "SERVING"


async def test_what_is_no_message_of_the_protocol(service: ServiceUnderTest) -> None:
    async with calling(service.inside) as client:
        call: Any = client.channel.unary_unary(f"/{HEALTH}/Check")
        with pytest.raises(aio.AioRpcError) as caught:
            await call(b"\xff")
        assert caught.value.code() is Code.INVALID_ARGUMENT


async def test_signs_of_life_are_permitted_every_five_seconds(service: ServiceUnderTest) -> None:
    options = dict(_options(service.inside))
    assert options["grpc.http2.min_ping_interval_without_data_ms"] <= 5000
    assert options["grpc.keepalive_permit_without_calls"] == 1


@pytest.mark.slow
async def test_a_client_that_sends_them_is_not_cut_off(service: ServiceUnderTest) -> None:
    """With the library's own limits it would be after three: ENHANCE_YOUR_CALM, too_many_pings."""
    server = GrpcServer(service.inside, None)
    target = f"127.0.0.1:{await server.start('127.0.0.1', 0)}"
    options = [
        ("grpc.keepalive_time_ms", 5000),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
    ]
    try:
        async with grpc.aio.insecure_channel(target, options=options) as channel:
            await channel.channel_ready()
            state = channel.get_state()
            waiting = asyncio.create_task(channel.wait_for_state_change(state))
            await asyncio.wait({waiting}, timeout=32)
            assert channel.get_state() is state is grpc.ChannelConnectivity.READY
            waiting.cancel()
    finally:
        await server.end()
