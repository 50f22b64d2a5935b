"""Little that becomes much, and much that never ends: compressed bodies, pictures, ten gigabytes."""

import asyncio
import gzip
import io
import itertools
import json
import struct
import zlib
from collections.abc import Iterable
from typing import Any

from PIL import Image

from benchmarks.mill.attacks.requests import head, post, tiny_document
from benchmarks.mill.target import AttackedServer

CLASSIFY = "/v2/models/cifar10:classify"
_INFER = ("/v2/models/wide/infer", "/v2/models/tiny/infer")
_TEN_GB = 10 * 1000**3
_PIECE = b" " * (1 << 16)
_CLIENTS = 50
_OPENED = 64 << 20  # what a body may have
_RAW_SIZES = (0, 1, 63, 65, -64, 2**31, 2**63, 2**64, 1e300, "64", None, [64], True)


async def ten_gigabytes(target: AttackedServer) -> None:
    """Send 10 GB from 50 clients, half of them in chunks, until the server ends it."""
    chunk = b"%x\r\n%s\r\n" % (len(_PIECE), _PIECE)

    async def act(index: int) -> None:
        path = (*_INFER, CLASSIFY)[index % 3]
        if index % 2:
            await _pour(target, head(_TEN_GB, path), _PIECE)
        else:
            await _pour(target, _chunked(path), chunk)

    await target.crowd(_CLIENTS, act, pause=1)


async def compressed(target: AttackedServer) -> None:
    """Send from 50 clients what opens to a thousand times its bytes, also compressed twice."""
    requests = await asyncio.to_thread(_compressed)
    await _any_of(target, requests, _CLIENTS)


async def canvases(target: AttackedServer) -> None:
    """Send from 50 clients pictures whose pixels are far more than their bytes, or not as they say."""
    requests = await asyncio.to_thread(_canvases)
    await _any_of(target, requests, _CLIENTS)


async def lying_sizes(target: AttackedServer) -> None:
    """Send raw tensors that are not as long as they say, and headers that are wrong about the JSON."""
    requests = list(_lying_sizes())
    await _any_of(target, requests, 8)


async def _any_of(target: AttackedServer, requests: list[bytes], clients: int) -> None:
    async def act(index: int) -> None:
        await target.ask(target.random.choice(requests))

    await target.crowd(clients, act, pause=0.5)


async def _pour(target: AttackedServer, start: bytes, piece: bytes) -> None:
    """Send ``piece`` after ``piece`` until there is an answer."""
    async with await target.wire() as wire:
        reading = asyncio.ensure_future(wire.receive())
        try:
            await wire.send(start)
            while not reading.done() and not target.is_over:
                await wire.send(piece)
        except ConnectionError:  # the answer may have come before
            await asyncio.wait([reading], timeout=1)
        finally:
            answered = reading.done()
            reading.cancel()
        if answered:
            target.count(await reading)


def _chunked(path: str) -> bytes:
    return head(0, path).replace(b"Content-Length: 0", b"Transfer-Encoding: chunked")


def _compressed() -> list[bytes]:
    """Return requests whose bodies are 300 KB of 64 MiB: blanks, brackets, a list or a text without end."""
    start = b'{"inputs":[{"name":"x","shape":[1,16],"datatype":"FP32","data":[0'
    found = [_encoded(zlib.compress(bytes(_OPENED), 1), "deflate")]
    for opened in (b" ", b"[", start, b'{"id":"a'):
        filling = opened + opened[-1:] * (_OPENED - len(opened))
        once = gzip.compress(filling, 1)
        found += [_encoded(once, "gzip"), _encoded(once[: len(once) // 2], "gzip")]
        found += [_encoded(gzip.compress(once, 1), coding) for coding in ("gzip", "gzip, gzip")]
    return found


def _encoded(body: bytes, coding: str) -> bytes:
    coded = f"Content-Encoding: {coding}"
    return head(len(body), _INFER[0], "application/json", coded) + body


def _canvases() -> list[bytes]:
    pictures = [_png(50_000, 50_000), *_jpegs(), *_animated()]
    return [post(picture, CLASSIFY, "application/octet-stream") for picture in pictures]


def _png(width: int, height: int) -> bytes:
    """Return a PNG of one bit a pixel with all of its data: 50,000 x 50,000 are 1.4 MB."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        checked = kind + data
        return struct.pack(">I", len(data)) + checked + struct.pack(">I", zlib.crc32(checked))

    packing, row = zlib.compressobj(1), bytes(1 + (width + 7) // 8)
    data = b"".join(packing.compress(row) for _ in range(height)) + packing.flush()
    header = struct.pack(">IIBBBBB", width, height, 1, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        itertools.starmap(chunk, ((b"IHDR", header), (b"IDAT", data), (b"IEND", b"")))
    )


def _jpegs() -> list[bytes]:
    """Return a small JPEG, also progressive, that says it has 65,500 rows, columns, or both."""
    found = []
    for progressive in (False, True):
        with io.BytesIO() as file:
            Image.new("RGB", (64, 64), "red").save(file, "JPEG", progressive=progressive)
            whole = file.getvalue()
        place = whole.index(b"\xff\xc2" if progressive else b"\xff\xc0") + 5
        for height, width in ((65_500, 64), (64, 65_500), (65_500, 65_500), (4000, 4000)):
            lie = struct.pack(">HH", height, width)
            found.append(whole[:place] + lie + whole[place + 4 :])
    return found


def _animated() -> list[bytes]:
    """Return many frames as GIF and WebP, and a GIF whose screen is larger than its frame."""
    frames = [Image.linear_gradient("L").rotate(index) for index in range(256)]
    found = []
    for kind in ("GIF", "WEBP"):
        with io.BytesIO() as file:
            frames[0].save(file, kind, save_all=True, append_images=frames[1:])
            found.append(file.getvalue())
    gif = found[0]
    return [*found, gif[:6] + struct.pack("<HH", 65_535, 65_535) + gif[10:]]


def _lying_sizes() -> Iterable[bytes]:
    for said in _RAW_SIZES:
        tensor: dict[str, Any] = {
            **tiny_document()["inputs"][0],
            "parameters": {"binary_data_size": said},
        }
        del tensor["data"]
        text = json.dumps({"inputs": [tensor]}).encode()
        for length in (len(text), len(text) - 1, len(text) + 64, 0, -1, 2**64):
            json_length = f"Inference-Header-Content-Length: {length}"
            body = text + bytes(64)
            yield head(len(body), _INFER[1], "application/octet-stream", json_length) + body
