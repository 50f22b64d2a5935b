"""Clients with manners of their own: they leave, pipeline, speak HTTP/1.0, chunk as they like."""

import asyncio

from benchmarks.mill.attacks.requests import head, post, tiny_request, wide_body
from benchmarks.mill.target import AttackedServer

_GET = b"GET /v2/health/ready HTTP/1.1\r\nHost: localhost\r\n\r\n"


async def leavers(target: AttackedServer) -> None:
    """Go away at a random moment: in the head, in the body, before, in or after the answer."""
    requests = (tiny_request(), post(wide_body(), "/v2/models/wide/infer"))

    async def act(index: int) -> None:
        request = target.random.choice(requests)
        async with await target.wire() as wire:
            cut = target.random.choice((target.random.randrange(len(request)), len(request)))
            await wire.send(request[:cut])
            await asyncio.sleep(target.random.choice((0, 0.001, 0.01, 0.1, 0.5)))
            if target.random.random() < 0.5:
                wire.reset()
        target.seen["left"] += 1

    await target.crowd(12, act, pause=0.05)


async def pipelines(target: AttackedServer) -> None:
    """Send up to 200 requests at once on one connection, and read some of the answers."""

    async def act(index: int) -> None:
        count = target.random.choice((2, 10, 200))
        requests = [target.random.choice((_GET, tiny_request())) for _ in range(count)]
        async with await target.wire() as wire:
            await wire.send(b"".join(requests))
            for _ in range(target.random.choice((count, count // 2))):
                target.count(await wire.receive())

    await target.crowd(4, act, pause=0.2)


async def old_clients(target: AttackedServer) -> None:
    """HTTP/1.0 and 0.9, HEAD, Expect, TLS, upgrades, wrong methods, and bytes that mean nothing."""
    body = tiny_request().partition(b"\r\n\r\n")[2]
    path = "/v2/models/tiny/infer"
    plain = (
        tiny_request().replace(b"HTTP/1.1", b"HTTP/1.0"),
        tiny_request().replace(b"HTTP/1.1", b"HTTP/3.7"),
        b"GET /v2 HTTP/1.0\r\n\r\n",
        b"GET /v2\r\n",
        b"GET /v2 HTTP/1.1\r\n\r\n",
        b"PUT" + _GET[3:],
        b"X" * 40 + _GET[3:],
        b"GET http://elsewhere.example/v2 HTTP/1.1\r\nHost: elsewhere.example\r\n\r\n",
        _GET.replace(b"\r\n\r\n", b"\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n"),
        _GET.replace(
            b"\r\n\r\n", b"\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\n\r\n"
        ),
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(100),
        head(len(body), path, "application/json", "Expect: 100-continue") + body,
        head(len(body), path, "application/json", "Expect: something-else") + body,
    )

    async def act(index: int) -> None:
        if target.random.random() < 0.2:
            await target.ask(b"HEAD" + _GET[3:], has_body=False)
        elif target.random.random() < 0.1:
            await target.ask(target.random.randbytes(3000))
        else:
            await target.ask(target.random.choice(plain))

    await target.crowd(8, act, pause=0.1)


def _chunked(body: bytes, size: int, extension: bytes = b"") -> bytes:
    parts = [body[start : start + size] for start in range(0, len(body), size)]
    return b"".join(b"%x%s\r\n%s\r\n" % (len(part), extension, part) for part in parts)


async def silly_chunks(target: AttackedServer) -> None:
    """Chunks of one byte, of sizes that are none, with extensions and trailers, without an end."""
    start = head(0).replace(b"Content-Length: 0", b"Transfer-Encoding: chunked")
    start = start.replace(b"/wide/", b"/tiny/")
    both = head(5).replace(b"\r\n\r\n", b"\r\nTransfer-Encoding: chunked\r\n\r\n")
    body, end = tiny_request().partition(b"\r\n\r\n")[2], b"0\r\n\r\n"
    requests = (
        start + _chunked(body, 1) + end,
        start + _chunked(body, 50, b";x=" + b"y" * 1000) + end,
        start + _chunked(bytes(1 << 20), 16, b"") + end,
        start + _chunked(body, 50) + b"0\r\n" + b"X-Trailer: 1\r\n" * 1000 + b"\r\n",
        start + b"ffffffffffffffff\r\n" + bytes(1 << 16),
        start + b"-1\r\n" + body,
        start + b"zz\r\n" + body,
        start + b"0" * 100_000 + b"5\r\nhello\r\n",
        start + b"10\r\nshort\r\n",
        start.replace(b"chunked", b"gzip, chunked") + _chunked(body, 50) + end,
        both + _chunked(body, 50) + end,
    )

    async def act(index: int) -> None:
        await target.ask(target.random.choice(requests))

    await target.crowd(6, act, pause=0.1)
