"""A slow message goes on, of which gRPC's library says nothing before it is complete."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest

from server.grpc.call import SERVICE
from server.grpc.messages import inference_pb2 as messages
from server.grpc.progress import ReceivedBytes, address_of
from tests.examples import over
from tests.server.grpc.stubs import Client, calling
from tests.server.support import LIMIT_SECONDS, ServiceUnderTest, until

Code = grpc.StatusCode


@over(
    "peer, address",
    [
        ("ipv4:127.0.0.1:4242", ("127.0.0.1", 4242)),
        ("ipv6:%5B::1%5D:4242", ("::1", 4242)),
        ("ipv6:[fe80::1%25eth0]:1", ("fe80::1%eth0", 1)),
        ("unix:/run/layerstream", None),
        ("", None),
    ],
)
def test_the_address_of_the_other_end(peer: str, address: tuple[str, int] | None) -> None:
    assert address_of(peer) == address


@pytest.mark.parametrize("family", [socket.AF_INET, socket.AF_INET6])
def test_what_has_come_on_a_connection(family: socket.AddressFamily) -> None:
    """A socket of IPv6 has clients of IPv4, too, and gRPC calls them by their own address."""
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(socket.socket(family))
        if family == socket.AF_INET6:
            try:
                listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
                listener.bind(("::", 0))
            except OSError:
                pytest.skip("no IPv6 here")
        else:
            listener.bind(("127.0.0.1", 0))
        listener.listen()
        target = ("127.0.0.1", listener.getsockname()[1])
        client = stack.enter_context(socket.create_connection(target))
        accepted = stack.enter_context(listener.accept()[0])
        received = ReceivedBytes(client.getsockname())
        before = received.now()
        assert before is not None
        client.sendall(bytes(5000))
        assert accepted.recv(5000, socket.MSG_WAITALL)
        assert received.now() == before + 5000
        accepted.close()
        assert received.now() is None


def test_a_connection_that_is_not_there() -> None:
    assert ReceivedBytes(("192.0.2.1", 9)).now() is None


@asynccontextmanager
async def slow_line(port: int, bytes_per_second: int) -> AsyncIterator[int]:
    """The port of a line to ``port`` that carries so many bytes a second to it."""

    async def carry(
        reader: asyncio.StreamReader, writer: asyncio.StreamWriter, pause: float
    ) -> None:
        with contextlib.suppress(ConnectionError):
            while chunk := await reader.read(bytes_per_second // 20):
                writer.write(chunk)
                await writer.drain()
                await asyncio.sleep(pause)
        writer.close()

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        onwards, back = await asyncio.open_connection("127.0.0.1", port)
        await asyncio.gather(carry(reader, back, 0.05), carry(onwards, writer, 0.0))

    server = await asyncio.start_server(connected, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()


@pytest.mark.slow
async def test_a_slow_but_steady_message_is_read_while_memory_is_short(
    service: ServiceUnderTest,
) -> None:
    exchanges = service.inside.exchanges

    async def housekeeping() -> None:
        while True:
            await asyncio.sleep(0.25)
            exchanges.sweep(asyncio.get_running_loop().time(), hurry=True)

    request = messages.ModelInferRequest(model_name="pair", raw_input_contents=[bytes(300_000)])
    async with calling(service.inside) as client, asyncio.timeout(LIMIT_SECONDS):
        port = int(client.place.rpartition(":")[2])
        ticking = asyncio.create_task(housekeeping())
        async with (
            slow_line(port, 100_000) as target,
            grpc.aio.insecure_channel(f"127.0.0.1:{target}") as channel,
        ):
            error = await Client(channel, "").refused("ModelInfer", request)
        assert error.code() is Code.INVALID_ARGUMENT, error  # it was read, and is no request
        assert exchanges.stalled == 0
        silent: Any = client.channel.stream_stream(f"/{SERVICE}/ModelInfer")()
        await until(lambda: len(exchanges) == 1)
        started = asyncio.get_running_loop().time()
        assert await silent.code() is Code.DEADLINE_EXCEEDED
        assert asyncio.get_running_loop().time() - started < 2.0
        ticking.cancel()
