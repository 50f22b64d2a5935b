"""Headers that never end: a byte a second, line after line, or one line of 100 KB."""

import asyncio

from benchmarks.mill.target import AttackedServer

_START = b"POST /v2/models/tiny/infer HTTP/1.1\r\nHost: localhost\r\n"
_ENDLESS_BYTES = 4 << 20


async def dribbled(target: AttackedServer) -> None:
    """Send a request's head one byte a second."""

    async def act(index: int) -> None:
        async with await target.wire() as wire:
            reading = asyncio.ensure_future(wire.receive())
            try:
                for byte in _START + b"X-Dribble: " + b"y" * 1000:
                    if target.is_over or reading.done():
                        break
                    await wire.send(bytes((byte,)))
                    await asyncio.wait([reading], timeout=1)
                if reading.done():
                    target.count(reading.result())
            finally:
                reading.cancel()

    await target.crowd(60, act, pause=0.5)


async def endless(target: AttackedServer) -> None:
    """Send header after header, 4 MiB of them, and no end."""
    lines = b"".join(b"X-%d: %s\r\n" % (index, b"v" * 50) for index in range(1000))

    async def act(index: int) -> None:
        await target.ask(_START, *[lines] * (_ENDLESS_BYTES // len(lines)))

    await target.crowd(8, act, pause=0.2)


async def long_lines(target: AttackedServer) -> None:
    """Send one header, method, path or query of 100 KB and more."""

    async def act(index: int) -> None:
        long = b"z" * target.random.choice((8_000, 70_000, 100_000, 1_000_000))
        request = target.random.choice(
            (
                _START + b"X-Long: " + long + b"\r\n\r\n",
                _START + long + b": 1\r\n\r\n",
                long + b" / HTTP/1.1\r\nHost: localhost\r\n\r\n",
                b"GET /" + long + b" HTTP/1.1\r\nHost: localhost\r\n\r\n",
                b"GET /v2?" + long + b" HTTP/1.1\r\nHost: localhost\r\n\r\n",
                b"GET /v2/models/" + long + b" HTTP/1.1\r\nHost: localhost\r\n\r\n",
                b"GET /v2 HTTP/1.1\r\nHost: " + long + b"\r\n\r\n",
                b"GET /v2 HTTP/1.1\r\nHost: localhost\r\nX-Request-Id: " + long + b"\r\n\r\n",
            )
        )
        await target.ask(request)

    await target.crowd(8, act, pause=0.1)
