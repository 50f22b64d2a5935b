"""Pictures: small, large, cut off, larger in their headers than in their bytes; in forms, too."""

import asyncio
import io
import struct
import zlib

from PIL import Image

from benchmarks.mill.attacks.requests import post
from benchmarks.mill.target import AttackedServer

_PATH = "/v2/models/cifar10:classify"
_BOUNDARY = "mill"


def _encoded(width: int, height: int, kind: str, mode: str = "RGB") -> bytes:
    image = Image.linear_gradient("L").resize((width, height)).convert(mode)
    with io.BytesIO() as file:
        image.save(file, kind)
        return file.getvalue()


def _png_that_claims(width: int, height: int) -> bytes:
    """Return a PNG whose header says ``width`` x ``height`` and whose data is a few bytes."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        checked = kind + data
        return struct.pack(">I", len(data)) + checked + struct.pack(">I", zlib.crc32(checked))

    header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
    data = chunk(b"IDAT", zlib.compress(bytes(100_000)))
    return b"\x89PNG\r\n\x1a\n" + header + data + chunk(b"IEND", b"")


def _pictures() -> list[bytes]:
    small, large = _encoded(64, 64, "JPEG"), _encoded(4000, 4000, "JPEG")
    return [
        small,
        _encoded(640, 480, "JPEG"),
        _encoded(640, 480, "PNG"),
        _encoded(300, 300, "GIF", "P"),
        large,
        _encoded(3900, 4000, "PNG", "L"),
        _encoded(5000, 5000, "PNG", "L"),
        _encoded(8000, 8000, "JPEG", "L"),
        small[: len(small) // 2],
        large[: len(large) // 2],
        large[:200],
        _png_that_claims(60_000, 60_000),
        _png_that_claims(4000, 3999),
        _png_that_claims(2**31 - 1, 2**31 - 1),
        b"GIF89a" + b"\xff" * 1000,
        b"%!PS-Adobe",
        bytes(3 << 20),
        b"",
    ]


def _form(picture: bytes, file: bool = True) -> bytes:
    name = '; filename="a.jpg"' if file else ""
    start = f'--{_BOUNDARY}\r\nContent-Disposition: form-data; name="file"{name}\r\n\r\n'
    return start.encode() + picture + f"\r\n--{_BOUNDARY}--\r\n".encode()


async def pictures(target: AttackedServer) -> None:
    """Send pictures of all kinds, one in three in a form, some of which have no file or no end."""
    given = await asyncio.to_thread(_pictures)

    async def act(index: int) -> None:
        picture = target.random.choice(given)
        if target.random.random() < 0.67:
            await target.ask(post(picture, _PATH, "application/octet-stream"))
            return
        form = _form(picture, file=target.random.random() < 0.8)
        if target.random.random() < 0.2:
            form = form[: -target.random.randrange(1, 20)]
        if target.random.random() < 0.1:
            form = form[:20] * 2000 + form
        await target.ask(post(form, _PATH, f"multipart/form-data; boundary={_BOUNDARY}"))

    await target.crowd(6, act, pause=0.1)
