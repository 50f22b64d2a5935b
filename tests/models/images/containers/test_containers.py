"""Containers of pictures: what a decoder gets of them, what it may take, and what is refused before."""

import contextlib
import io
import random
import struct
import zlib
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from models.images.containers import read_container, source
from models.images.containers.source import (
    Container,
    ContainerError,
    DecoderView,
    EndError,
    PictureSource,
    ViewFile,
)
from models.images.containers.vp8l import group_bytes
from tests.examples import examples
from tests.fuzz.picture_files import (
    chunk,
    many_codes,
    pixels,
    riff,
    runs,
    saved,
    scans,
    segment,
    striped,
    tiff,
)

SIZE = WIDTH, HEIGHT = 61, 43
# What a decoder gets of a file in addition to its pixels: headers, tables, palettes.
MAX_HEADER_BYTES = 2000
MEGABYTE = 1 << 20


def picture() -> Image.Image:
    return pixels(random.Random(1), SIZE)


def read(data: bytes) -> Container:
    container = read_container(PictureSource(io.BytesIO(data)))
    assert container is not None
    return container


def views(data: bytes) -> list[bytes]:
    """What a decoder gets, each view as the bytes of a file."""
    file = PictureSource(io.BytesIO(data))
    return [ViewFile(file, view).read() for view in read(data).views(file)]


def decoded(data: bytes) -> Image.Image:
    *_, last = views(data)
    return Image.open(io.BytesIO(last)).convert("RGB")


def png(*chunks: bytes, after: bytes = b"") -> bytes:
    data = saved(picture(), "PNG")
    return data[:33] + b"".join(chunks) + data[33:-12] + after + data[-12:]


def jpeg(*segments: bytes) -> bytes:
    data = saved(picture(), "JPEG")
    return data[:2] + b"".join(segments) + data[2:]


def gif(*extensions: bytes) -> bytes:
    data = saved(picture().quantize(16), "GIF")
    offset = 13 + (3 << (data[10] & 7) + 1)
    return data[:offset] + b"".join(extensions) + data[offset:]


def webp(*chunks: tuple[bytes, bytes], **options: object) -> bytes:
    data = saved(picture(), "WEBP", **options)
    sides = (WIDTH - 1).to_bytes(3, "little") + (HEIGHT - 1).to_bytes(3, "little")
    (length,) = struct.unpack_from("<I", data, 16)
    return riff((b"VP8X", b"\x2c\0\0\0" + sides), *chunks, (data[12:16], data[20 : 20 + length]))


def opening(text: str) -> bytes:
    return zlib.compress(text.encode(), 9)


BOMB = opening("a" * (MEGABYTE - 8) + "\U0001f600")
DIRECTORY = b"II*\0\x08\0\0\0" + struct.pack("<H", 2000) + bytes(12 * 2000)
BLOCKS = b"!\xfe" + b"\1a" * 2000 + b"\0"
ENTRIES = [
    *((256, 4, [WIDTH]), (257, 4, [HEIGHT]), (258, 3, [8]), (259, 3, [1]), (262, 3, [1])),
    *((273, 4, [8]), (278, 4, [HEIGHT])),
]
GREY = bytes(range(256)) * 11

# With more than an answer needs, and the same picture without.
BLOATED: dict[str, tuple[Callable[[], bytes], Callable[[], bytes]]] = {
    "PNG, compressed texts": (lambda: png(*[chunk(b"zTXt", b"k\0\0" + BOMB)] * 60), png),
    "PNG, texts": (lambda: png(*[chunk(b"iTXt", b"k\0\1\0\0\0" + BOMB)] * 60), png),
    "PNG, texts behind": (lambda: png(after=chunk(b"iTXt", b"k\0\1\0\0\0" + BOMB) * 60), png),
    "PNG, profile": (lambda: png(chunk(b"iCCP", b"k\0\0" + opening("a" * 3 * MEGABYTE))), png),
    "PNG, private": (lambda: png(*[chunk(b"prVt", bytes(1000))] * 500), png),
    "PNG, EXIF": (lambda: png(chunk(b"eXIf", DIRECTORY)), png),
    "PNG, frames": (lambda: png(chunk(b"acTL", struct.pack(">II", 1 << 31, 0))), png),
    "JPEG, profile of over a megabyte": (
        lambda: jpeg(
            *[
                segment(0xE2, b"ICC_PROFILE\0" + bytes((n + 1, 20)) + bytes(65000))
                for n in range(20)
            ]
        ),
        jpeg,
    ),
    "JPEG, other pictures": (lambda: jpeg(segment(0xE2, b"MPF\0" + DIRECTORY)), jpeg),
    "JPEG, comments": (lambda: jpeg(segment(0xFE, bytes(100)) * 300), jpeg),
    "JPEG, EXIF": (lambda: jpeg(segment(0xE1, b"Exif\0\0" + DIRECTORY) * 20), jpeg),
    "GIF, comments": (lambda: gif(BLOCKS), gif),
    "GIF, programs": (lambda: gif(*[b"!\xff" + b"\3abc" * 9 + b"\0"] * 90), gif),
    "GIF, disposed of": (lambda: gif(b"!\xf9\4\x0c\0\0\0\0"), gif),
    "WebP, profile": (lambda: webp((b"ICCP", bytes(2 * MEGABYTE))), webp),
    "WebP, opacity": (lambda: webp((b"ALPH", bytes(WIDTH * HEIGHT + 1))), webp),
    "TIFF, tags": (
        lambda: tiff([*ENTRIES, (700, 1, bytes(MEGABYTE)), (34675, 1, bytes(MEGABYTE))], GREY),
        lambda: tiff(ENTRIES, GREY),
    ),
}


@pytest.mark.parametrize("name", BLOATED)
def test_what_no_answer_needs_does_not_reach_a_decoder(name: str) -> None:
    """Nor does it count: the picture takes what it takes without."""
    bloated, plain = (build() for build in BLOATED[name])
    assert read(bloated).work_bytes == read(plain).work_bytes
    if not name.startswith("TIFF"):  # whose file a decoder sees all of, by a directory without them
        (view,) = views(bloated)
        assert len(view) < len(plain) + MAX_HEADER_BYTES
    np.testing.assert_array_equal(
        np.asarray(decoded(bloated)), np.asarray(Image.open(io.BytesIO(plain)).convert("RGB"))
    )


def test_an_mpo_is_the_jpeg_that_it_begins_with() -> None:
    mpo = saved(picture(), "MPO", save_all=True, append_images=[picture()])
    container = read(mpo)
    assert container.kind == "JPEG"
    assert container.shrinks
    assert Image.open(io.BytesIO(views(mpo)[-1])).format == "JPEG"


def test_pixels_in_many_chunks_are_one() -> None:
    data = png()
    offset = data.index(b"IDAT") - 4
    (length,) = struct.unpack_from(">I", data, offset)
    body = data[offset + 8 : offset + 8 + length]
    chunks = [chunk(b"IDAT", body[first : first + 7]) for first in range(0, length, 7)]
    split = (
        data[:offset] + chunk(b"IDAT", b"") * 900 + b"".join(chunks) + data[offset + 12 + length :]
    )
    (view,) = views(split)
    assert view.count(b"IDAT") == 1
    np.testing.assert_array_equal(np.asarray(decoded(split)), np.asarray(picture()))


REFUSED: dict[str, tuple[Callable[[], bytes], str]] = {
    "PNG, many chunks": (lambda: png(*[chunk(b"prVt", b"")] * 1100), "more than 1000 chunks"),
    "PNG, long palette": (lambda: png(chunk(b"PLTE", bytes(3000))), "a palette of 3000 bytes"),
    "JPEG, many segments": (lambda: jpeg(segment(0xFE, b"") * 1100), "more than 1000 segments"),
    "JPEG, many tables": (lambda: jpeg(segment(0xDB, bytes(65)) * 1000), "KiB of tables"),
    "JPEG, many scans": (lambda: scans((64, 48), 200), "in 2.. scans"),
    "JPEG, large in a hundred scans": (lambda: scans((3000, 2000), 90), "in .* scans"),
    "GIF, many blocks": (lambda: gif(BLOCKS), "more than 1000 blocks"),
    "WebP, many chunks": (lambda: webp(*[(b"JUNK", b"")] * 1100), "more than 1000 chunks"),
    "WebP, another canvas": (
        lambda: riff((b"VP8X", bytes(10)), (b"VP8 ", saved(picture(), "WEBP")[20:])),
        "not as large",
    ),
    "TIFF, LZMA": (lambda: tiff([*ENTRIES[:3], (259, 3, [34925]), *ENTRIES[4:]], GREY), "34925"),
    "TIFF, many strips": (lambda: striped((1, 70_000), 1, lambda row: row, 8), "in 70000 strips"),
    "TIFF, few offsets": (
        lambda: tiff([*ENTRIES[:1], (257, 4, [1 << 24]), *ENTRIES[2:6], (278, 4, [1])], GREY),
        "fewer than its 16777216 strips",
    ),
    "TIFF, strips that are one": (
        lambda: tiff(
            [
                *(*ENTRIES[:3], (259, 3, [8]), ENTRIES[4]),
                *((273, 4, [8] * 43), (278, 4, [1]), (279, 4, [2000] * 43)),
            ],
            GREY,
        ),
        "longer than the file",
    ),
    "TIFF, a thousand samples": (lambda: tiff([*ENTRIES, (277, 3, [1000])], GREY), "1000 samples"),
    "BMP, run lengths": (lambda: runs((60, 40), b"\1\7" * 200_000), "KiB; send it uncompressed"),
    "BMP, long header": (
        lambda: b"BM" + bytes(12) + struct.pack("<I", 1 << 30) + bytes(99),
        "header",
    ),
    "PPM, as text": (lambda: b"P3 1 1 255 1 2 3 ", "binary"),
    "PPM, long comment": (lambda: b"P6 #" + b"x" * 9000 + b"\n1 1 255\n123", "header of the PPM"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_needs_many_steps_or_much_memory_is_refused(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(source, "MAX_SEGMENTS", 1000)
    build, message = REFUSED[name]
    with pytest.raises(ContainerError, match=message):
        views(build())


# Files of few bytes that decoders take much for, and at least how much is counted.
DECODER_BYTES: dict[str, tuple[Callable[[], bytes], int]] = {
    # Coefficients of three components, in whole blocks of 8 x 8.
    "JPEG, thin and progressive": (
        lambda: saved(Image.new("RGB", (1, 9000)), "JPEG", progressive=True, subsampling=0),
        9000 * 8 * 2 * 3,
    ),
    "JPEG, wide": (lambda: saved(Image.new("RGB", (9000, 8)), "JPEG", subsampling=2), 9000 * 24),
    # Five tables of 256 entries a group.
    "WebP, many codes": (lambda: many_codes(64, 64), 16 * 16 * 5 * 1024),
    "GIF, wide": (lambda: saved(Image.new("L", (9000, 1)), "GIF"), 9000),
    "TIFF, one strip": (
        lambda: striped((100, 100), 100, zlib.compress, 8),
        100 * 100 * 3,
    ),
    "TIFF, strips apart": (lambda: striped((1, 500), 1, bytes, 1, gap=1), 500 * 500),
    "TIFF, large tiles": (
        lambda: tiff(
            [
                *(*ENTRIES[:3], (259, 3, [8]), ENTRIES[4]),
                *((322, 4, [4096]), (323, 4, [4096]), (324, 4, [8]), (325, 4, [9])),
            ],
            GREY,
        ),
        4096 * 4096,
    ),
    "TIFF, fax": (
        lambda: saved(Image.new("1", (9000, 2)), "TIFF", compression="group4"),
        9000 * 16,
    ),
}


@pytest.mark.parametrize("name", DECODER_BYTES)
def test_what_a_decoder_allocates_in_addition_to_pixels_is_counted(name: str) -> None:
    build, min_bytes = DECODER_BYTES[name]
    assert read(build()).work_bytes >= min_bytes


def test_consecutive_row_segments_are_one() -> None:
    """However many they are: a decoder in Python would describe each."""
    data = striped((1, 70_000), 1, bytes, 1)
    assert read(data).work_bytes < MEGABYTE
    assert decoded(data).tobytes() == (bytes(range(256)) * 900)[: 70_000 * 3]


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "TIFF", "WEBP"])
@pytest.mark.parametrize("orientation", [1, 3, 6, 8])
def test_orientation_is_that_of_exif(kind: str, orientation: int) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    assert read(saved(picture(), kind, exif=exif)).orientation == orientation


def exif(orientation: int | None) -> bytes:
    """A block with one entry, which is the orientation or another."""
    tag = 0x0131 if orientation is None else 0x0112
    entry = struct.pack("<HHLL", tag, 3, 1, orientation or 6)
    return b"II*\0\x08\0\0\0\1\0" + entry + bytes(4)


@pytest.mark.parametrize(
    ("blocks", "orientation"),
    [
        ([b"no EXIF", exif(6)], 6),
        ([exif(6), exif(3)], 6),
        ([exif(None), exif(6)], 1),
        ([exif(9)], 1),
        ([exif(6)[:-9]], 1),
    ],
)
def test_the_first_block_of_exif_counts(blocks: list[bytes], orientation: int) -> None:
    assert read(png(*[chunk(b"eXIf", block) for block in blocks])).orientation == orientation
    segments = [segment(0xE1, b"Exif\0\0" + block) for block in blocks]
    assert read(jpeg(*segments)).orientation == orientation


def xmp(orientation: int) -> bytes:
    return f'<x tiff:Orientation="{orientation}"/>'.encode()


@pytest.mark.parametrize(
    "build",
    [
        lambda: jpeg(segment(0xE1, b"http://ns.adobe.com/xap/1.0/\0" + xmp(6))),
        lambda: png(chunk(b"iTXt", b"XML:com.adobe.xmp\0\0\0\0\0" + xmp(6))),
        lambda: png(chunk(b"iTXt", b"XML:com.adobe.xmp\0\1\0\0\0" + zlib.compress(xmp(6)))),
        lambda: webp((b"XMP ", xmp(6))),
        lambda: tiff([*ENTRIES, (700, 1, xmp(6))], GREY),
    ],
)
def test_orientation_is_that_of_xmp_where_exif_has_none(build: Callable[[], bytes]) -> None:
    data = build()
    assert read(data).orientation == 6
    assert Image.Image.getexif(Image.open(io.BytesIO(data)))[0x0112] == 6


@pytest.mark.parametrize("big_tiff", [False, True])
@pytest.mark.parametrize("method", ["raw", "tiff_lzw", "tiff_adobe_deflate", "packbits", "jpeg"])
def test_a_tiff_of_every_method_is_what_pillow_decodes(big_tiff: bool, method: str) -> None:
    data = saved(picture(), "TIFF", compression=method, big_tiff=big_tiff, strip_size=1000)
    expected = np.asarray(Image.open(io.BytesIO(data)))
    np.testing.assert_array_equal(np.asarray(decoded(data)), expected)


@pytest.mark.parametrize("method", [0, 4, 6])
@pytest.mark.parametrize("colours", [2, 4, 16, 200, None])
def test_the_codes_of_a_lossless_webp_are_read(method: int, colours: int | None) -> None:
    """Of every transform that an encoder uses, and none is wrong by a bit: such are no codes."""
    rng = np.random.default_rng(1)
    image = Image.fromarray(rng.integers(0, 99, (90, 120, 3), np.uint8).repeat(2, 0))
    if colours is not None:
        image = image.quantize(colours).convert("RGB")
    data = saved(image, "WEBP", lossless=True, method=method)
    assert group_bytes(data[20:]) < MEGABYTE


def test_a_lossless_webp_is_not_read_for_long() -> None:
    with pytest.raises(ContainerError, match="more than 100 codes"):
        group_bytes(many_codes(64, 64)[20:], max_symbols=100)


@examples(40, 2000)
@given(
    head=st.binary(max_size=9),
    tail=st.binary(max_size=9),
    cuts=st.lists(st.tuples(st.integers(0, 50), st.integers(0, 50)), max_size=5),
    reads=st.lists(st.tuples(st.integers(0, 200), st.integers(-1, 60)), max_size=9),
)
def test_a_view_is_a_file_of_its_parts(
    head: bytes, tail: bytes, cuts: list[tuple[int, int]], reads: list[tuple[int, int]]
) -> None:
    data = bytes(range(50))
    ranges = [(min(cut), max(cut)) for cut in cuts]
    expected = head + b"".join(data[first:end] for first, end in ranges) + tail
    file = ViewFile(PictureSource(io.BytesIO(data)), DecoderView(head, ranges, tail))
    plain = io.BytesIO(expected)
    for offset, count in reads:
        assert file.seek(offset) == plain.seek(offset)
        assert file.read(count) == plain.read(count)
        assert file.tell() == plain.tell()


@examples(40, 2000)
@given(st.binary(max_size=200), st.sampled_from(sorted(BLOATED)), st.integers(0, 60))
def test_any_bytes_are_a_container_or_an_error(noise: bytes, name: str, length: int) -> None:
    start = BLOATED[name][1]()[:length]
    for is_complete in (False, True):
        with contextlib.suppress(ContainerError):  # and nothing else
            read_container(PictureSource(io.BytesIO(start + noise), is_complete=is_complete))


@pytest.mark.parametrize("name", BLOATED)
def test_what_a_beginning_says_is_what_all_of_it_says(name: str) -> None:
    data = BLOATED[name][1]()
    full = read(data)
    for length in range(0, len(data), max(1, len(data) // 40)):
        try:
            container = read_container(PictureSource(io.BytesIO(data[:length]), is_complete=False))
        except EndError:
            continue
        assert container is not None
        assert (container.size, container.work_bytes) == (full.size, full.work_bytes)
