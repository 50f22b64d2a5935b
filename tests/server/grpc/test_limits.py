"""What one call may take: time, memory, a place in line; and that all of it is free when it is over."""

import asyncio
import contextlib
from typing import Any, cast

import grpc
import pytest

from benchmarks.servers.served import free_port
from server.errors import BusyError, InvalidRequestError
from server.faults import Fault
from server.grpc.call import SERVICE, Call, CallPlaces
from server.grpc.messages import inference_pb2 as messages
from server.requests.exchange import Exchange
from server.transport.intake import PAUSE_SECONDS
from tests.server.conftest import SettingsFactory
from tests.server.grpc.stubs import Client, asking, calling
from tests.server.support import (
    LIMIT_SECONDS,
    Faults,
    Gate,
    ServiceUnderTest,
    inputs_for,
    serving,
    until,
)
from tests.server.transport.wire import LIMITS

Code = grpc.StatusCode
TINY = asking("tiny", inputs_for("tiny"))
MIB = 1 << 20


@pytest.fixture
def blocked(faults: Faults) -> Gate:
    """Kernels wait until it is opened."""
    gate = Gate()
    faults.kernel = gate.hold
    return gate


async def all_gone(service: ServiceUnderTest) -> None:
    """Wait until the server knows of all requests that their clients have gone."""
    await until(lambda: not len(service.inside.exchanges))


async def nothing_held(service: ServiceUnderTest) -> None:
    """Wait until no request holds anything."""
    async with asyncio.timeout(LIMIT_SECONDS):
        await until(
            lambda: (
                not service.inside.request_memory.used_bytes and not len(service.inside.exchanges)
            )
        )


async def test_a_client_that_leaves_frees_what_it_held(
    settings: SettingsFactory, blocked: Gate, arrivals: asyncio.Semaphore
) -> None:
    chosen = settings(models=("tiny",))
    async with serving(chosen) as service, calling(service.inside) as client:
        calls = [client.begin("ModelInfer", TINY) for _ in range(2)]
        for _ in calls:
            await arrivals.acquire()
        assert service.inside.request_memory.used_bytes > 0
        for call in calls:
            call.cancel()
        await all_gone(service)
        blocked.open()
        await nothing_held(service)
        assert (await client("ModelInfer", TINY)).outputs
        name = "layerstream_requests_total"
        assert await service.metric(name, model="tiny", outcome="cancelled") == len(calls)


@pytest.mark.parametrize("own", [True, False])
async def test_a_deadline_of_the_call_or_of_the_request(
    settings: SettingsFactory, blocked: Gate, own: bool
) -> None:
    chosen = settings(models=("tiny",))
    async with serving(chosen) as service, calling(service.inside) as client:
        asked = messages.ModelInferRequest.FromString(TINY.SerializeToString())
        options = {} if own else {"timeout": 0.2}
        if own:
            asked.parameters["timeout"].int64_param = 200_000
        error = await client.refused("ModelInfer", asked, **options)
        blocked.open()
        assert error.code() is Code.DEADLINE_EXCEEDED
        await nothing_held(service)
        assert (await client("ModelInfer", TINY)).outputs


async def test_a_full_line_says_when_to_come_again(
    settings: SettingsFactory, blocked: Gate, arrivals: asyncio.Semaphore
) -> None:
    chosen = settings(models=("tiny",), queue_limit=1)
    async with serving(chosen) as service, calling(service.inside) as client:
        calls = [client.begin("ModelInfer", TINY)]
        await arrivals.acquire()
        while not (error := await refused_at_once(client, calls, arrivals)):
            pass
        assert error.code() is Code.UNAVAILABLE
        hints = dict(error.trailing_metadata() or ())
        assert int(hints["grpc-retry-pushback-ms"]) > 0
        blocked.open()
        for call in calls:
            assert (await call).outputs


async def refused_at_once(
    client: Client, calls: list[Any], arrivals: asyncio.Semaphore
) -> grpc.aio.AioRpcError | None:
    """Add a call to those that wait; or return why it may not."""
    call = client.begin("ModelInfer", TINY)
    ending, arriving = asyncio.create_task(call.code()), asyncio.create_task(arrivals.acquire())
    await asyncio.wait({ending, arriving}, return_when=asyncio.FIRST_COMPLETED)
    arriving.cancel()
    if not ending.done():
        calls.append(call)
        return None
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return caught.value


async def test_a_message_over_a_limit(settings: SettingsFactory) -> None:
    chosen = settings(models=("tiny",), max_body=MIB)
    async with serving(chosen) as service, calling(service.inside) as client:
        error = await client.refused(
            "ModelInfer", b"\x3a" + bytes([0x80, 0x80, 0x80, 1]) + bytes(2 * MIB)
        )
        assert error.code() is Code.RESOURCE_EXHAUSTED
        # What typed contents become is counted before it is made.
        asked = messages.ModelInferRequest(model_name="tiny")
        asked.inputs.add(name="image").contents.int_contents.extend([1] * (MIB - 4096))
        service.inside.request_memory.capacity_bytes = 4 * MIB
        error = await client.refused("ModelInfer", asked)
        assert error.code() is Code.RESOURCE_EXHAUSTED
        assert "request_memory" in (error.details() or "")
        await nothing_held(service)


async def test_a_compressed_message_is_refused(service: ServiceUnderTest) -> None:
    async with calling(service.inside) as client:
        bomb = messages.ModelInferRequest(model_name="pair", raw_input_contents=[bytes(8 * MIB)])
        error = await client.refused("ModelInfer", bomb, compression=grpc.Compression.Gzip)
        assert error.code() is Code.UNIMPLEMENTED


async def test_streams_without_a_message_take_nothing_from_others(
    settings: SettingsFactory,
) -> None:
    """A hundred of one address, before a pool that has room for a few requests."""
    chosen = settings(models=("tiny",), queue_limit=1)
    async with serving(chosen) as service, calling(service.inside) as client:
        service.inside.request_memory.capacity_bytes = MIB
        streams: list[Any] = [
            client.channel.stream_stream(f"/{SERVICE}/ModelStreamInfer")() for _ in range(100)
        ]
        await until(lambda: len(service.inside.exchanges) >= len(streams))
        assert service.inside.request_memory.used_bytes == 0
        assert service.inside.request_memory.waiting == 0
        for _ in range(10):
            assert (await client("ModelInfer", TINY)).outputs
        await streams[0].write(TINY.SerializeToString())
        answer = messages.ModelStreamInferResponse.FromString(await streams[0].read())
        assert answer.infer_response.outputs
        for stream in streams:
            stream.cancel()
        await nothing_held(service)


async def test_a_client_that_sends_nothing_is_ended(service: ServiceUnderTest) -> None:
    async with calling(service.inside) as client:
        call: Any = client.channel.stream_stream(f"/{SERVICE}/ModelStreamInfer")()
        await call.wait_for_connection()
        await until(lambda: len(service.inside.exchanges))
        now = asyncio.get_running_loop().time()
        while not call.done():
            service.inside.exchanges.sweep(now + 60, hurry=False)
            await asyncio.sleep(0)
        assert await call.code() is Code.DEADLINE_EXCEEDED
        assert "no progress" in await call.details()
        await nothing_held(service)


async def test_an_address_has_its_share_of_calls(
    settings: SettingsFactory,
    blocked: Gate,
    arrivals: asyncio.Semaphore,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("server.transport.registry.WAIT_SECONDS", 0.0)
    chosen = settings(models=("tiny",), max_connections_per_address=2)
    async with serving(chosen) as service, calling(service.inside) as client:
        calls = [client.begin("ModelInfer", TINY) for _ in range(2)]
        for _ in calls:
            await arrivals.acquire()
        error = await client.refused("ServerMetadata", b"")
        assert error.code() is Code.UNAVAILABLE
        assert "one address" in (error.details() or "")
        assert int(dict(error.trailing_metadata() or ())["grpc-retry-pushback-ms"]) > 0
        blocked.open()
        for call in calls:
            assert (await call).outputs
        assert (await client("ServerMetadata")).name


async def test_a_stream_without_a_message_gives_way_to_another_address(
    settings: SettingsFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All calls are one address's streams; a call of another one takes the place of the longest silent."""
    monkeypatch.setattr("server.transport.giving_way.GRACE_SECONDS", 0.0)
    monkeypatch.setattr("server.transport.giving_way.FRESH_SECONDS", 0.0)
    chosen = settings(models=("tiny",), max_connections=3)
    async with serving(chosen) as service, calling(service.inside) as client:
        streams: list[Any] = []
        for _ in range(3):
            streams.append(client.channel.stream_stream(f"/{SERVICE}/ModelStreamInfer")())
            await until(lambda: len(service.inside.exchanges) >= len(streams))
        monkeypatch.setattr("server.grpc.call._address", lambda wire: "192.0.2.1")
        own_connection = [("grpc.use_local_subchannel_pool", 1)]
        async with grpc.aio.insecure_channel(client.place, own_connection) as channel:
            assert (await Client(channel, client.place)("ModelInfer", TINY)).outputs
        assert await streams[0].code() is Code.UNAVAILABLE
        hints = dict(await streams[0].trailing_metadata())
        assert int(hints["grpc-retry-pushback-ms"]) > 0
        assert not any(stream.done() for stream in streams[1:])
        for stream in streams[1:]:
            stream.cancel()
        await nothing_held(service)


async def test_a_connection_that_says_nothing_is_closed(settings: SettingsFactory) -> None:
    chosen = settings(models=("tiny",), header_timeout=0.1)
    async with serving(chosen) as service, calling(service.inside) as client:
        host, _, port = client.place.rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        async with asyncio.timeout(LIMIT_SECONDS):
            with contextlib.suppress(ConnectionError):
                await reader.read()  # a greeting, and the end
        writer.close()
        assert (await client("ServerLive")).live


async def test_calls_in_flight_are_answered_when_the_service_ends(
    settings: SettingsFactory, blocked: Gate, arrivals: asyncio.Semaphore
) -> None:
    from server.grpc.server import GrpcServer, grpc_server

    port = free_port()
    chosen = settings(models=("tiny",), grpc_port=port)
    async with serving(chosen, [grpc_server]) as service:
        (server,) = service.inside._listeners
        assert isinstance(server, GrpcServer)
        place = f"127.0.0.1:{port}"
        async with grpc.aio.insecure_channel(place) as channel:
            call = Client(channel, place).begin("ModelInfer", TINY)
            await arrivals.acquire()
            stopping = asyncio.create_task(service.inside.close())
            await until(lambda: server._ending is not None)
            blocked.open()
            assert (await call).outputs
            await stopping


async def test_whoever_calls_while_the_service_ends_is_told(
    service: ServiceUnderTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    from server.grpc.server import GrpcServer

    # Client and server share a thread here, and on a busy machine their library needs longer.
    monkeypatch.setattr("server.grpc.server._PARTING_SECONDS", 0.25)
    server = GrpcServer(service.inside, None)
    place = f"127.0.0.1:{await server.start('127.0.0.1', 0)}"
    codes: list[Code] = []

    async def calling_on(client: Client) -> None:
        code = Code.OK
        while code is Code.OK:
            call = client.begin("ServerLive", messages.ServerLiveRequest())
            codes.append(code := await call.code())

    async with grpc.aio.insecure_channel(place) as channel:
        calls = [asyncio.create_task(calling_on(Client(channel, place))) for _ in range(24)]
        await until(lambda: len(codes) >= 240)
        await server.end()
        await asyncio.gather(*calls)
    assert set(codes) == {Code.OK, Code.UNAVAILABLE}


async def test_a_client_that_does_not_take_its_answer_is_ended(service: ServiceUnderTest) -> None:
    async with calling(service.inside) as client:
        call: Any = client.channel.stream_stream(f"/{SERVICE}/ModelStreamInfer")()
        data = asking("pair", inputs_for("pair")).SerializeToString()
        exchanges = service.inside.exchanges
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(LIMIT_SECONDS):
            # Answers are not read: some fill the client's window, and the next one waits to be sent.
            while not exchanges.stalled:
                if not call.done():
                    with contextlib.suppress(TimeoutError):
                        await asyncio.wait_for(call.write(data), 0.5)
                stuck = [each for each in exchanges._open if each.is_read and is_waiting(each)]
                if stuck:
                    exchanges.sweep(loop.time() + 60, hurry=False)
        await nothing_held(service)


def is_waiting(exchange: Exchange) -> bool:
    return exchange.stalled_seconds(asyncio.get_running_loop().time() + 60) > 0


async def test_connections_have_a_limit_and_a_time(settings: SettingsFactory) -> None:
    chosen = settings(models=("tiny",), max_connections=3, header_timeout=0.2)
    async with serving(chosen) as service, calling(service.inside) as client:
        assert (await client("ServerReady")).ready
        port = int(client.place.rpartition(":")[2])
        silent = [await asyncio.open_connection("127.0.0.1", port) for _ in range(6)]
        async with asyncio.timeout(LIMIT_SECONDS):
            # Those over the limit are closed at once, without a word, the others when their time is over.
            said = [await reader.read() for reader, _ in silent]
        assert said.count(b"") >= len(silent) - 2
        for _, writer in silent:
            writer.close()
        assert (await client("ServerReady")).ready


class Ending:
    """What ends a call; ``left_seconds``: until the client's deadline."""

    def __init__(self, left_seconds: float | None) -> None:
        self._left_seconds = left_seconds
        self.code: Code | None = None

    def invocation_metadata(self) -> None:
        return None

    def peer(self) -> str:
        return "ipv4:127.0.0.1:1"

    def time_remaining(self) -> float | None:
        return self._left_seconds

    async def abort(self, code: Code, *_: Any) -> None:
        self.code = code


@pytest.mark.parametrize(
    ("reason", "left_seconds", "pause"),
    [
        (BusyError("full"), None, PAUSE_SECONDS),
        (BusyError("full"), 60.0, PAUSE_SECONDS),
        (BusyError("full"), PAUSE_SECONDS / 2, PAUSE_SECONDS / 2),
        (InvalidRequestError("x"), None, None),
    ],
)
async def test_a_call_is_refused_after_a_pause(
    monkeypatch: pytest.MonkeyPatch,
    reason: Exception,
    left_seconds: float | None,
    pause: float | None,
) -> None:
    pauses: list[float] = []

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)

    wire: Any = Ending(left_seconds)
    call = Call(
        cast(Any, None), CallPlaces(LIMITS, lambda: 0.0), "ModelInfer", wire, cast(Any, None)
    )
    loop = asyncio.get_running_loop()
    with monkeypatch.context() as patch:
        patch.setattr(asyncio, "sleep", sleep)
        patch.setattr(loop, "time", lambda: call._started_at)
        await call.refuse(Fault.of(reason))
    assert pauses == ([] if pause is None else [pytest.approx(pause)])
    assert wire.code is (Code.INVALID_ARGUMENT if pause is None else Code.UNAVAILABLE)
