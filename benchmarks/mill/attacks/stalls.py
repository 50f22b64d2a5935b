"""Clients that hold what they have: they stop sending, send a byte a second, read nothing, or only stay."""

import asyncio
from collections.abc import Sequence

from benchmarks.mill.attacks.requests import head, post, wide_body
from benchmarks.mill.target import AttackedServer

_CROWDS = (17, 40, 80)
_TEN_MIB = 10 << 20
_INFER = ("/v2/models/wide/infer", "/v2/models/wide/infer", "/v2/models/tiny/infer")
_CLASSIFY = "/v2/models/cifar10:classify"


async def _stall(target: AttackedServer, parts: Sequence[bytes]) -> None:
    """Send ``parts``, then wait for whatever ends it."""
    async with await target.wire() as wire:
        for part in parts:
            await wire.send(part)
        target.count(await wire.receive())


async def before_the_body(target: AttackedServer) -> None:
    """Announce a body and send none of it: as many at each model as wait in its line, and one more."""
    paths = ("/v2/models/tiny/infer", "/v2/models/wide/infer", _CLASSIFY)

    async def act(index: int) -> None:
        await _stall(target, [head(900_000, paths[index % len(paths)])])

    await target.crowd(len(paths) * _CROWDS[0], act, pause=0.5)


async def half_of_the_body(target: AttackedServer) -> None:
    """Send half of a valid body."""
    body = wide_body()

    async def act(index: int) -> None:
        await _stall(target, [head(len(body)), body[: len(body) // 2]])

    await target.crowd(target.random.choice(_CROWDS), act, pause=0.5)


async def after_ten_mib(target: AttackedServer) -> None:
    """Send 10 MiB of a body that is one byte longer, as JSON or as an image."""
    piece = b" " * (1 << 16)

    async def act(index: int) -> None:
        path = _CLASSIFY if index % 4 == 3 else _INFER[0]
        await _stall(target, [head(_TEN_MIB + 1, path), *[piece] * (_TEN_MIB >> 16)])

    await target.crowd(target.random.choice(_CROWDS), act, pause=0.5)


async def dribbled_bodies(target: AttackedServer) -> None:
    """Send a body one byte a second."""

    async def act(index: int) -> None:
        async with await target.wire() as wire:
            await wire.send(head(100_000, target.random.choice(_INFER)))
            reading = asyncio.ensure_future(wire.receive())
            try:
                while not reading.done() and not target.is_over:
                    await wire.send(b" ")
                    await asyncio.wait([reading], timeout=1)
                if reading.done():
                    target.count(reading.result())
            finally:
                reading.cancel()

    await target.crowd(target.random.choice(_CROWDS), act, pause=0.5)


async def slow_readers(target: AttackedServer) -> None:
    """Ask for megabytes of answer and read nothing of it."""
    request = post(wide_body(), "/v2/models/wide/infer")

    async def act(index: int) -> None:
        async with await target.wire(receive_buffer=4096) as wire:
            await wire.send(request)
            await asyncio.sleep(target.left)
            target.seen["unread"] += 1

    await target.crowd(target.random.choice((17, 40)), act, pause=0.5)


async def idle(target: AttackedServer) -> None:
    """Keep 1,100 connections that ask nothing, or asked once."""

    async def act(index: int) -> None:
        async with await target.wire() as wire:
            if index % 10 == 0:
                await wire.send(b"GET /v2/health/live HTTP/1.1\r\nHost: localhost\r\n\r\n")
                target.count(await wire.receive())
            await wire.receive()

    await target.crowd(1100, act, pause=2)
