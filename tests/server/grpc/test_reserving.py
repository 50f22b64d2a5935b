"""What a call holds before its message has come: what the models of its connection need."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from server.grpc.call import SERVICE
from server.grpc.reserving import RecentModels, message_bytes, needed_bytes
from tests.server.grpc.stubs import Client, asking, calling
from tests.server.support import LIMIT_SECONDS, ServiceUnderTest, inputs_for, until


def test_the_models_of_a_connection_are_the_last_eight() -> None:
    recent = RecentModels()
    assert not recent.of("a")
    for index in range(20):
        recent.note("a", f"m{index}")
    recent.note("a", "m15")
    assert list(recent.of("a")) == ["m12", "m13", "m14", "m16", "m17", "m18", "m19", "m15"]
    for index in range(2000):
        recent.note(f"b{index}", "m")
    assert not recent.of("a")
    assert len(recent._names) == 1024


def of(service: ServiceUnderTest, name: str) -> int:
    """What a message to model ``name`` takes."""
    entry = service.inside.repository.models.find(name)
    assert entry.pack is not None
    return message_bytes(entry.pack.manifest)


async def test_a_request_needs_what_its_model_needs(service: ServiceUnderTest) -> None:
    models = service.inside.repository.models
    small, large = sorted(("tiny", "pair"), key=lambda name: of(service, name))
    assert of(service, small) < of(service, large)
    assert needed_bytes(models, [small]) == of(service, small)
    assert needed_bytes(models, [small, large]) == of(service, large)
    assert needed_bytes(models, ["nobody"]) == needed_bytes(models, []) == of(service, large)
    entry = models.find(small)
    await service.inside.repository.unload(small)
    assert entry.pack is None
    assert needed_bytes(models, [small]) == of(service, large)


@asynccontextmanager
async def call_without_message(client: Client) -> AsyncIterator[None]:
    """A call whose message does not come."""
    call: Any = client.channel.stream_stream(f"/{SERVICE}/ModelInfer")()
    try:
        yield
    finally:
        call.cancel()


async def test_a_call_holds_what_the_models_of_its_connection_need(
    service: ServiceUnderTest,
) -> None:
    small, large = sorted(("tiny", "pair"), key=lambda name: of(service, name))
    memory = service.inside.request_memory
    async with calling(service.inside) as client, asyncio.timeout(LIMIT_SECONDS):
        for name, expected in (("", large), (small, small), (large, large)):
            if name:
                assert (await client("ModelInfer", asking(name, inputs_for(name)))).outputs
            await until(lambda: memory.used_bytes == 0)
            async with call_without_message(client):
                await until(lambda: memory.used_bytes > 0)
                assert memory.used_bytes == of(service, expected)


async def test_a_name_of_no_model_lets_no_call_hold_less(service: ServiceUnderTest) -> None:
    """Else a client could have its messages come without memory for them."""
    memory = service.inside.request_memory
    async with calling(service.inside) as client, asyncio.timeout(LIMIT_SECONDS):
        await client.refused("ModelInfer", asking("nobody", {}))
        await until(lambda: memory.used_bytes == 0)
        async with call_without_message(client):
            await until(lambda: memory.used_bytes > 0)
            assert memory.used_bytes == max(of(service, "tiny"), of(service, "pair"))
