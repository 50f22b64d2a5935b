"""More of what is allowed than a client needs: requests, connections, megabytes of numbers."""

from benchmarks.mill.attacks.requests import post, tiny_request, wide_body
from benchmarks.mill.target import AttackedServer

_TURNS = 50  # requests before a connection is opened again


async def small_requests(target: AttackedServer) -> None:
    """8 to 64 kept connections, each of which sends as soon as it has its answer."""

    async def act(index: int) -> None:
        async with await target.wire() as wire:
            for _ in range(_TURNS):
                response = await wire.ask(tiny_request())
                target.count(response)
                if response.closes or target.is_over:
                    return

    await target.crowd(target.random.choice((8, 32, 64)), act, pause=0.01)


async def connections(target: AttackedServer) -> None:
    """A new connection for each request."""

    async def act(index: int) -> None:
        await target.ask(tiny_request())

    await target.crowd(32, act, pause=0.05)


async def large_json(target: AttackedServer) -> None:
    """40 clients with 3 MB of numbers each, all valid."""
    request = post(wide_body(), "/v2/models/wide/infer")

    async def act(index: int) -> None:
        await target.ask(request)

    await target.crowd(40, act, pause=0.2)
