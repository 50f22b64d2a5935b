"""Picture files as programs write them, as none should, and damaged: what the fuzzers of pictures draw.

Each kind of container is drawn sound, then gets more than it needs of everything its format counts: chunks,
segments, blocks, strips, frames, texts that open to much more. Half of the files are damaged in the end.
"""

import io
import random
import struct
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from PIL import Image

from tests.fuzz.pack import change_bytes

#: Sizes that a picture has: usual, tiny, long, and more than a small server has room for.
_SIZES = ((64, 48), (320, 240), (61, 43), (1, 1), (1, 3000), (3000, 1), (640, 480), (1200, 900))
_HUGE = ((1, 65500), (65500, 1), (3000, 2000), (16383, 16383), (60000, 60000))
_MEGABYTE = 1 << 20


@dataclass(frozen=True)
class Drawn:
    """A drawn file, what was done, and the picture that it is; None: it may be none."""

    data: bytes
    words: str
    plain: bytes | None


#: A file with more than it needs, and the same picture without.
Pair = tuple[bytes, bytes]


def _same(data: bytes) -> Pair:
    return data, data


def pixels(rng: random.Random, size: tuple[int, int]) -> Image.Image:
    """Return a smooth picture, some noise, or a flat one."""
    width, height = size
    if rng.random() < 0.2 or width * height > 1 << 22:
        return Image.new("RGB", size, (rng.randrange(256), 90, 30))
    x, y = np.meshgrid(np.linspace(0, 255, width), np.linspace(0, 255, height))
    planes = np.stack([x, y, (x + y) / 2], 2)
    if rng.random() < 0.2:
        planes += np.random.default_rng(rng.randrange(1 << 30)).normal(0, 30, planes.shape)
    return Image.fromarray(planes.clip(0, 255).astype(np.uint8))


def saved(image: Image.Image, kind: str, **options: Any) -> bytes:
    """Return ``image`` as a file of Pillow's."""
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def _count(rng: random.Random) -> int:
    return rng.choice((1, 1, 3, 20, 60, 300, 5000, 70000))


def _exif(rng: random.Random, n_bytes: int = 0) -> Image.Exif:
    exif = Image.Exif()
    exif[0x0112] = rng.choice((1, 1, 2, 3, 4, 5, 6, 7, 8, 9))
    if n_bytes:
        exif[0x927C] = bytes(n_bytes)
    return exif


# PNG.


def chunk(kind: bytes, data: bytes) -> bytes:
    """Return a chunk of PNG."""
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def _text_chunks(rng: random.Random) -> list[bytes]:
    """Return texts that open to up to a megabyte each, four bytes a character where that can be."""
    kind, count = rng.choice((b"zTXt", b"iTXt", b"iCCP", b"tEXt", b"eXIf", b"prVt")), _count(rng)
    n_bytes = rng.choice((10, 1000, _MEGABYTE - 8))
    body = b"a" * n_bytes + ("\U0001f600".encode() if rng.random() < 0.7 else b"")
    packed = zlib.compress(body, 9)
    if kind in (b"tEXt", b"eXIf", b"prVt"):
        entry = chunk(kind, b"k\0" + body[:3000])
    elif kind == b"iTXt":
        entry = chunk(kind, rng.choice((b"k", b"XML:com.adobe.xmp")) + b"\0\1\0\0\0" + packed)
    else:
        entry = chunk(kind, b"k\0\0" + packed)
    return [entry] * min(count, max(1, 3 * _MEGABYTE // len(entry)))


def _png(rng: random.Random) -> Pair:
    image = pixels(rng, rng.choice(_SIZES))
    mode = rng.choice(("RGB", "RGB", "L", "P", "LA", "RGBA", "1", "I;16"))
    if mode == "I;16":
        image = Image.fromarray(np.asarray(image.convert("L")).astype(np.uint16) * 257)
    elif mode != "RGB":
        image = image.convert(mode)
    options: dict[str, Any] = {}
    if rng.random() < 0.3:
        options["exif"] = _exif(rng)
    if rng.random() < 0.2:
        options |= {"save_all": True, "append_images": [image.rotate(9)] * 3}
    data = plain = saved(image, "PNG", **options)
    if rng.random() < 0.7:
        data = data[:33] + b"".join(_text_chunks(rng)) + data[33:]
    if rng.random() < 0.3:
        data = data[:-12] + b"".join(_text_chunks(rng)) + data[-12:]
    if rng.random() < 0.3:
        data = _split(rng, data)
    return data, plain


def _split(rng: random.Random, data: bytes) -> bytes:
    """Return a PNG with its pixels in many chunks, empty ones among them."""
    offset = data.index(b"IDAT") - 4
    (length,) = struct.unpack_from(">I", data, offset)
    body, step = data[offset + 8 : offset + 8 + length], rng.choice((1, 10, 1000))
    step = max(step, length // 20000)
    chunks = [chunk(b"IDAT", body[first : first + step]) for first in range(0, length, step)]
    empty = chunk(b"IDAT", b"") * rng.choice((0, 5, 30000))
    return data[:offset] + empty + b"".join(chunks) + data[offset + 12 + length :]


def _png_header(rng: random.Random) -> bytes:
    """Return a PNG whose header promises more pixels than it has."""
    width, height = rng.choice(_HUGE)
    kind = rng.choice(((1, 0), (8, 2), (16, 6), (16, 0), (8, 3)))
    header = struct.pack(">IIBBBBB", width, height, *kind, 0, 0, rng.randrange(2))
    palette = chunk(b"PLTE", bytes(3 * rng.choice((1, 256, 257, 5000))))
    body = zlib.compress(bytes(rng.choice((10, 8 * _MEGABYTE))), 9)
    chunks = chunk(b"IHDR", header), palette, chunk(b"IDAT", body), chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)


# JPEG.


def segment(marker: int, data: bytes) -> bytes:
    """Return a segment of JPEG."""
    return struct.pack(">BBH", 0xFF, marker, len(data) + 2) + data


def _profile(rng: random.Random) -> bytes:
    count = rng.choice((1, 20, 60, 255))
    payloads = [b"ICC_PROFILE\0" + bytes((index + 1, count)) for index in range(count)]
    return b"".join(segment(0xE2, payload + bytes(65000)) for payload in payloads)


# Segments that no answer needs: profiles of over a megabyte, comments, other pictures.
_SEGMENTS: tuple[Callable[[random.Random], bytes], ...] = (
    _profile,
    lambda rng: segment(0xE2, b"MPF\0" + _directory(rng)) * rng.choice((1, 2, 50)),
    lambda rng: segment(0xFE, b"") * _count(rng),
    lambda rng: segment(0xED, b"Photoshop 3.0\0" + b"8BIM\4\4\0\0\0\0\0\0" * 2000) * 20,
    lambda rng: segment(0xE1, b"Exif\0\0" + _directory(rng)) * rng.choice((1, 2, 100)),
    lambda rng: segment(0xE1, b"http://ns.adobe.com/xap/1.0/\0" + b"<x>" * 20000) * 30,
    lambda rng: segment(0xDB, bytes(65)) * rng.choice((2, 100, 5000)),
)


def _directory(rng: random.Random) -> bytes:
    """Return a directory of TIFF as EXIF and MPF have it, with any numbers in it."""
    count = rng.choice((1, 3, 100, 5000))
    entries = [
        struct.pack(
            "<HHLL",
            rng.choice((0x0112, 0x8769, 0xB001, 0xB002, rng.randrange(1 << 16))),
            rng.randrange(14),
            rng.choice((1, 2, 1 << 20, (1 << 32) - 1)),
            rng.choice((1, 6, 8, 1 << 16, (1 << 32) - 1)),
        )
        for _ in range(count)
    ]
    return b"II*\0\x08\0\0\0" + struct.pack("<H", count) + b"".join(entries)[:60000] + bytes(4)


def _jpeg(rng: random.Random) -> Pair:
    image = pixels(rng, rng.choice((*_SIZES, (3000, 2000), (1, 65500), (65500, 1))))
    options: dict[str, Any] = {
        "progressive": rng.random() < 0.4,
        "quality": rng.choice((30, 85, 95)),
        "subsampling": rng.choice((0, 1, 2)),
    }
    if rng.random() < 0.3:
        options["exif"] = _exif(rng, rng.choice((0, 50000)))
    if rng.random() < 0.2:
        options["restart_marker_blocks"] = 1
    if rng.random() < 0.2:
        options |= {"save_all": True, "append_images": [image] * 2}
        options.pop("restart_marker_blocks", None)
        return _same(saved(image, "MPO", **options))
    mode = rng.choice(("RGB", "RGB", "L", "CMYK"))
    data = plain = saved(image.convert(mode), "JPEG", **options)
    if rng.random() < 0.6:
        # Before or behind the first segment.
        offset = rng.choice((2, 4 + int.from_bytes(data[4:6])))
        more = rng.choice(_SEGMENTS)(rng)
        data = data[:offset] + more + data[offset:]
        plain = data if more[4:8] == b"Exif" else plain  # the first one says how it is turned
    return (data[:-2] if rng.random() < 0.2 else data), plain


def scans(size: tuple[int, int], count: int) -> bytes:
    """Return a progressive JPEG whose later scans say again and again that nothing is to be refined."""
    data = saved(Image.new("RGB", size, (9, 99, 200)), "JPEG", progressive=True)
    last = data.rindex(b"\xff\xda")
    tables = data.rindex(b"\xff\xc4", 0, last)
    return data[:-2] + data[tables:-2] * count + data[-2:]


def _scans(rng: random.Random) -> bytes:
    size = rng.choice(((64, 48), (320, 240), (640, 480), (2000, 1500)))
    return scans(size, rng.choice((3, 10, 40, 200, 3000)))


def _frame(rng: random.Random) -> bytes:
    """Return a JPEG whose frame has another size, other factors, or is of another kind."""
    data = bytearray(saved(pixels(rng, (64, 48)), "JPEG", progressive=rng.random() < 0.5))
    offset = max(data.find(b"\xff\xc0"), data.find(b"\xff\xc2"))
    match rng.randrange(3):
        case 0:
            width, height = rng.choice(((65500, 65500), (65500, 16), (16, 65500), (4000, 3000)))
            data[offset + 5 : offset + 9] = struct.pack(">HH", height, width)
        case 1:
            for component in range(3):
                data[offset + 11 + 3 * component] = rng.choice((0x11, 0x22, 0x41, 0x14, 0x44, 0x12))
        case _:
            data[offset + 1] = rng.choice((0xC0, 0xC1, 0xC2, 0xC3, 0xC5, 0xC9, 0xCA, 0xCB))
    return bytes(data)


# WebP.


def riff(*chunks: tuple[bytes, bytes]) -> bytes:
    """Return a WebP of ``chunks``."""
    content = b"".join(
        struct.pack("<4sI", kind, len(data)) + data + bytes(len(data) % 2) for kind, data in chunks
    )
    return struct.pack("<4sI4s", b"RIFF", len(content) + 4, b"WEBP") + content


def _webp(rng: random.Random) -> Pair:
    image = pixels(rng, rng.choice(_SIZES))
    if rng.random() < 0.4:
        image = image.convert("RGBA")
        image.putalpha(rng.randrange(256))
    options: dict[str, Any] = {"lossless": rng.random() < 0.5, "method": rng.choice((0, 0, 2))}
    if rng.random() < 0.3:
        options["exif"] = _exif(rng)
    if rng.random() < 0.3:
        options["icc_profile"] = bytes(rng.choice((100, 2 * _MEGABYTE)))
    if rng.random() < 0.3:
        options |= {"save_all": True, "append_images": [image.rotate(30 * n) for n in range(5)]}
    data = plain = saved(image, "WEBP", **options)
    if rng.random() < 0.3:
        data += struct.pack("<4sI", b"JUNK", 0) * _count(rng)
        data = data[:4] + struct.pack("<I", len(data) - 8) + data[8:]
    return data, plain


def _low_first(value: int, count: int) -> str:
    """Return ``count`` bits of a number in their order of VP8L: the lowest first."""
    return f"{value:0{count}b}"[::-1]


def many_codes(width: int, height: int, precision: int = 2) -> bytes:
    """Return a lossless WebP with a group of Huffman codes for each block of 2 ** ``precision`` pixels."""
    only_zero = "1000"  # a code of one symbol
    # A code of 256 symbols of eight bits: lengths 8 and 0 have a bit each, as 9th and 3rd of 12.
    lengths = [0] * 12
    lengths[2] = lengths[11] = 1
    of_bytes = (
        "0"
        + _low_first(8, 4)
        + "".join(_low_first(length, 3) for length in lengths)
        + "0"
        + "1" * 256
    )
    across, down = (-(-side // (1 << precision)) for side in (width, height))
    blocks = range(across * down)
    groups = [f"{index & 255:08b}{index >> 8 & 255:08b}" for index in blocks]
    # Two colours of green, so that its table is filled; its alphabet has 24 symbols more.
    group = "111" + _low_first(2, 8) + _low_first(255, 8) + only_zero * 4
    fields = [
        *(_low_first(0x2F, 8), _low_first(width - 1, 14), _low_first(height - 1, 14), "0000"),
        *("0", "0", "1", _low_first(precision - 2, 3)),  # no transform, no cache, several groups
        *("0", of_bytes + "0" * 24, of_bytes, only_zero * 3, *groups),
        *(group * min(len(groups), 1 << 16), "0" * (width * height)),
    ]
    bits = "".join(fields)
    n_bytes = -(-len(bits) // 8)
    data = b"".join(
        int(bits[first : first + 8000][::-1], 2).to_bytes(1000, "little")
        for first in range(0, len(bits), 8000)
    )
    return riff((b"VP8L", data[:n_bytes]))


def _codes(rng: random.Random) -> bytes:
    side = rng.choice((32, 128, 256, 400))
    return many_codes(side, side)


def _canvas(rng: random.Random) -> bytes:
    """Return a WebP whose canvas is another than its picture."""
    picture = saved(pixels(rng, (64, 48)), "WEBP")
    width, height = rng.choice(_HUGE)
    sides = (width - 1 & 0xFFFFFF).to_bytes(3, "little") + (height - 1).to_bytes(3, "little")
    extended = b"VP8X", bytes((rng.choice((0, 2, 0x3E)), 0, 0, 0)) + sides
    frame = bytes(6) + bytes((63, 0, 0, 47, 0, 0, 9, 0, 0, 0)) + picture[12:]
    if rng.random() < 0.5:
        return riff(extended, (b"ANIM", bytes(6)), *[(b"ANMF", frame)] * rng.choice((1, 3)))
    return riff(extended, (b"VP8 ", picture[20:]))


# GIF.


def _gif(rng: random.Random) -> Pair:
    image = pixels(rng, rng.choice(_SIZES)).quantize(rng.choice((2, 16, 256)))
    options: dict[str, Any] = {}
    if rng.random() < 0.4:
        image = image.resize((max(image.width // 4, 1), max(image.height // 4, 1)))
        frames = [image.rotate(10 * n) for n in range(rng.choice((1, 5, 20)))]
        options = {"save_all": True, "append_images": frames, "disposal": rng.randrange(4)}
    data = plain = saved(image, "GIF", **options)
    offset = 13 + (3 << (data[10] & 7) + 1 if data[10] & 0x80 else 0)
    if rng.random() < 0.6:
        block = rng.choice((b"\1a", b"\xff" + bytes(255)))
        extension = (
            b"!" + bytes((rng.choice((254, 255, 1)),)) + block * min(_count(rng), 20_000) + b"\0"
        )
        data = data[:offset] + extension * rng.choice((1, 1, 4)) + data[offset:]
    return data, plain


def _gif_screen(rng: random.Random) -> bytes:
    """Return a GIF with a large screen, or a picture that is disposed of."""
    width, height = rng.choice(((13000, 13000), (65535, 65535), (1, 65535), (2000, 1000)))
    size = rng.choice(((width, height), (1, 1)))
    control = b"!\xf9\4" + bytes((rng.choice((4, 8, 12, 13)), 0, 0, 0, 0))
    picture = b"," + struct.pack("<HHHHB", 0, 0, *size, 0) + b"\2\3\x84\x51\0\0;"
    return (
        b"GIF89a" + struct.pack("<HHBBB", width, height, 0x80, 0, 0) + bytes(6) + control + picture
    )


# TIFF.


def tiff(entries: Sequence[tuple[int, int, Sequence[int]]], body: bytes, order: str = "<") -> bytes:
    """Return a TIFF with ``body`` behind its header, and a directory (tag, type, values) behind that."""
    start = 8 + len(body) + len(body) % 2
    code = {1: "B", 3: "H", 4: "L", 16: "Q"}
    values_offset = start + 2 + 12 * len(entries) + 4
    table, values_data = b"", b""
    for tag, kind, values in entries:
        data = struct.pack(f"{order}{len(values)}{code[kind]}", *values)
        value_field = data.ljust(4, b"\0")
        if len(data) > 4:
            value_field = struct.pack(order + "L", values_offset + len(values_data))
            values_data += data
        table += struct.pack(order + "HHL", tag, kind, len(values)) + value_field
    header = (b"II*\0" if order == "<" else b"MM\0*") + struct.pack(order + "L", start)
    count = struct.pack(order + "H", len(entries))
    return header + body.ljust(start - 8, b"\0") + count + table + bytes(4) + values_data


def striped(
    size: tuple[int, int], rows: int, pack: Callable[[bytes], bytes], method: int, **more: int
) -> bytes:
    """Return a TIFF of RGB with ``rows`` a strip; ``more``: ``gap`` bytes between, ``order``."""
    width, height = size
    image = np.arange(width * height * 3, dtype=np.uint32).astype(np.uint8).tobytes()
    step, gap = width * 3 * rows, more.get("gap", 0)
    packed = [pack(image[first : first + step]) for first in range(0, len(image), step)]
    offsets, body = [], bytearray()
    for data in packed:
        offsets.append(8 + len(body))
        body += data + bytes(gap)
    entries = [
        (256, 4, (width,)),
        (257, 4, (height,)),
        (258, 3, (8, 8, 8)),
        (259, 3, (method,)),
        (262, 3, (2,)),
        (273, 4, offsets),
        (277, 3, (3,)),
        (278, 4, (rows,)),
        (279, 4, [len(data) for data in packed]),
    ]
    return tiff(entries, bytes(body), ">" if more.get("big_endian") else "<")


def _tiff(rng: random.Random) -> Pair:
    return _same(_tiff_file(rng))


def _tiff_file(rng: random.Random) -> bytes:
    if rng.random() < 0.5:
        size = rng.choice(((1, 3000), (1, 65000), (64, 48), (640, 480), (2, 60000)))
        pack, method = rng.choice(((bytes, 1), (bytes, 1), (zlib.compress, 8)))
        more = {"gap": rng.choice((0, 0, 1)), "big_endian": rng.randrange(2)}
        return striped(size, rng.choice((1, 1, 7, size[1])), pack, method, **more)
    image = pixels(rng, rng.choice(_SIZES))
    mode = rng.choice(("RGB", "RGB", "L", "P", "CMYK", "RGBA", "1", "F", "I;16"))
    if mode == "I;16":
        image = Image.fromarray(np.asarray(image.convert("L")).astype(np.uint16) * 257)
    else:
        image = image.convert(mode)
    methods = ["raw", "tiff_lzw", "tiff_adobe_deflate", "packbits", "lzma", "zstd", "webp"]
    methods += ["jpeg"] if mode in ("RGB", "L") else []
    methods += ["group3", "group4"] if mode == "1" else []
    options: dict[str, Any] = {"compression": rng.choice(methods)}
    if rng.random() < 0.3:
        options["strip_size"] = rng.choice((1, 1 << 30))
    if rng.random() < 0.3:
        options["exif"] = _exif(rng)
    if rng.random() < 0.3:
        options["big_tiff"] = True
    if rng.random() < 0.2:
        options |= {"save_all": True, "append_images": [image] * 5}
    return saved(image, "TIFF", **options)


def _tiff_lies(rng: random.Random) -> bytes:
    """Return a TIFF whose few strips or tiles are to be large, many, or all the same bytes."""
    width, height = rng.choice(((1, 20_000_000), (20_000_000, 1), (64, 48), (3000, 2000)))
    method = rng.choice((1, 2, 3, 4, 5, 7, 8, 32773, 34925, 50000))
    body = zlib.compress(bytes(rng.choice((100, _MEGABYTE))), 9)
    entries: list[tuple[int, int, Sequence[int]]] = [
        (256, 4, (width,)),
        (257, 4, (height,)),
        (258, 3, (8,)),
        (259, 3, (method,)),
        (262, 3, (rng.choice((0, 1, 6)),)),
        (277, 3, (rng.choice((1, 1, 3, 60000)),)),
    ]
    count = rng.choice((1, 1, 48, 60000))
    if rng.random() < 0.5:
        entries += [(273, 4, (8,) * count), (278, 4, (rng.choice((1, height)),))]
        entries += [(279, 4, (len(body),) * count)]
    else:
        side = rng.choice((16, 4096, 65536))
        entries += [(322, 4, (side,)), (323, 4, (side,))]
        entries += [(324, 4, (8,) * count), (325, 4, (len(body),) * count)]
    for tag in rng.choices((317, 320, 347, 532, 700, 34675, 34377, 33723), k=2):
        entries.append((tag, 1, bytes(rng.choice((10, 100_000)))))
    entries.sort(key=lambda entry: entry[0])
    return tiff(entries, body)


# BMP, PPM.


def runs(size: tuple[int, int], body: bytes, bits: int = 8) -> bytes:
    """Return a BMP of run lengths ``body``, grey."""
    palette = b"".join(bytes((n, n, 255 - n, 0)) for n in range(1 << bits))
    start = 54 + len(palette)
    method = 1 if bits == 8 else 2
    header = struct.pack("<IiiHHIIiiII", 40, *size, 1, bits, method, len(body), 0, 0, 0, 0)
    return b"BM" + struct.pack("<IHHI", start + len(body), 0, 0, start) + header + palette + body


def _bmp(rng: random.Random) -> Pair:
    return _same(_bmp_file(rng))


def _bmp_file(rng: random.Random) -> bytes:
    if rng.random() < 0.3:
        width, height = rng.choice(((64, 48), (600, 400), (2000, 3000), (1, 30000)))
        unit = rng.choice((b"\1\7", b"\0\0", b"\xff\x12", b"\0\2\1\0", b"\0\4\1\2\3\4"))
        body = unit * rng.choice((10, 3000, 200_000)) + b"\0\1"
        return runs((width, height), body, rng.choice((4, 8)))
    image = pixels(rng, rng.choice(_SIZES)).convert(rng.choice(("RGB", "L", "1", "P", "RGBA")))
    return saved(image, "BMP")


def _bmp_header(rng: random.Random) -> bytes:
    """Return a BMP with odd numbers in its header."""
    data = bytearray(saved(pixels(rng, (64, 48)).convert(rng.choice(("RGB", "P"))), "BMP"))
    offset = rng.choice((10, 14, 18, 22, 26, 28, 30, 34, 46, 50))
    odd = rng.choice((0, 1, 12, 300, 65536, 1 << 24, (1 << 31) - 1, 1 << 31, (1 << 32) - 48))
    data[offset : offset + 4] = struct.pack("<I", odd)
    return bytes(data)


def _ppm(rng: random.Random) -> Pair:
    return _same(_ppm_file(rng))


def _ppm_file(rng: random.Random) -> bytes:
    width, height = size = rng.choice(_SIZES)
    comment = b"#" + b"x" * rng.choice((0, 10, 3000, 300_000)) + b"\n"
    kind, maximum = rng.choice(((b"6", 255), (b"5", 255), (b"6", 200), (b"5", 65535), (b"6", 999)))
    sample = 2 if maximum > 255 else 1
    body = bytes(index % (maximum % 256 + 1) for index in range(256)) * (width * height // 30 + 1)
    n_bytes = width * height * (3 if kind == b"6" else 1) * sample
    return b"P%b\n%b%d %d\n%d\n" % (kind, comment, *size, maximum) + (body * sample)[:n_bytes]


SOUND: dict[str, Callable[[random.Random], Pair]] = {
    "PNG": _png,
    "JPEG": _jpeg,
    "WebP": _webp,
    "GIF": _gif,
    "TIFF": _tiff,
    "BMP": _bmp,
    "PPM": _ppm,
}
ODD: dict[str, Callable[[random.Random], bytes]] = {
    "PNG that promises": _png_header,
    "JPEG of many scans": _scans,
    "JPEG with another frame": _frame,
    "WebP of many codes": _codes,
    "WebP with another canvas": _canvas,
    "GIF with another screen": _gif_screen,
    "TIFF that promises": _tiff_lies,
    "BMP with another header": _bmp_header,
}


def _damaged(data: bytes, rng: random.Random) -> bytes:
    """Return ``data`` with bytes changed near its start, a slice repeated or gone, or its end cut off."""
    match rng.randrange(4):
        case 0:
            return change_bytes(data, rng)
        case 1:
            changed = bytearray(data)
            for _ in range(rng.choice((1, 1, 2, 8))):
                changed[rng.randrange(min(len(data), 600))] = rng.randrange(256)
            return bytes(changed)
        case 2:
            first, end = sorted(rng.choices(range(len(data) + 1), k=2))
            return data[:first] + data[first:end] * rng.choice((0, 2, 3)) + data[end:]
        case _:
            return data[: rng.randrange(len(data))]


def drawn(rng: random.Random) -> Drawn:
    """Draw a file."""
    while True:
        try:
            return _drawn(rng)
        except (OSError, ValueError, RuntimeError):
            continue  # options that do not go together, as an encoder says


def _drawn(rng: random.Random) -> Drawn:
    plain: bytes | None = None
    if rng.random() < 0.6:
        words = rng.choice([*SOUND])
        data, plain = SOUND[words](rng)
    else:
        words = rng.choice([*ODD])
        data = ODD[words](rng)
    if rng.random() < (0.2 if plain is None else 0.4):
        return Drawn(_damaged(data, rng), f"damaged {words}", None)
    return Drawn(data, words, plain)
