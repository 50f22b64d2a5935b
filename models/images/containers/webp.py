"""WebP: the first picture, without opacity, profiles and other frames.

Container: RFC 9649, section 2. Opacity is dropped from every picture, and colours do not depend on it.
"""

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

from models.images.containers.orientation import Orientation
from models.images.containers.source import (
    Container,
    ContainerError,
    Countdown,
    DecoderView,
    EndError,
    PictureSource,
)
from models.images.containers.vp8l import SIGNATURE, group_bytes

RIFF, WEBP = b"RIFF", b"WEBP"
_START_BYTES = 12
_LOSSY, _LOSSLESS, _EXTENDED, _FRAME = b"VP8 ", b"VP8L", b"VP8X", b"ANMF"
_EXTENDED_BYTES, _FRAME_BYTES = 10, 16
_ANIMATION = 0x02
_KEY_FRAME = b"\x9d\x01\x2a"
_MAX_METADATA_BYTES = 1 << 16
_SIDE = (1 << 14) - 1
# Two canvases of libwebp's and Pillow's copy of one, of four bytes each; with the picture of Pillow, RGB or
# with opacity.
_CANVAS_BYTES = 12
_RGB_BYTES, _OPAQUE_BYTES = 4, 8
# Of a lossy picture a decoder holds rows of blocks and what it needs to know of them.
_LOSSY_COLUMN_BYTES = 192
_LOSSLESS_COLUMN_BYTES = 96


@dataclass(frozen=True)
class _Chunk:
    kind: bytes
    #: Where its data are.
    offset: int
    length: int

    @property
    def end(self) -> int:
        """Where the next chunk begins."""
        return self.offset + self.length + self.length % 2


@dataclass(frozen=True)
class _Pixels:
    """A chunk with pixels: its size, and what the decoder takes in addition to them."""

    chunk: _Chunk
    width: int
    height: int
    work_bytes: int


def is_webp(start: bytes) -> bool:
    """Return whether a file with that ``start``, of 12 bytes, is a WebP."""
    return start[:4] == RIFF and start[8:12] == WEBP


def read_webp(source: PictureSource) -> Container:
    """Return what the container says of the first picture.

    Raises:
        ContainerError: it is damaged. EndError: the file ends before what has to be known.
    """
    chunks = _chunks(source, _START_BYTES)
    first = next(chunks)
    if first.kind != _EXTENDED:
        pixels = _pixels(source, first)
        return _container(pixels, (pixels.width, pixels.height), _plain(pixels), Orientation())
    if not source.is_complete:  # metadata come behind the pixels
        raise EndError("the WebP may go on")
    if first.length < _EXTENDED_BYTES:
        raise ContainerError("a damaged WebP")
    data = source.take(first.offset, _EXTENDED_BYTES)
    canvas = _integer(data[4:7]) + 1, _integer(data[7:10]) + 1
    result: tuple[_Pixels, bytes] | None = None
    orientation = Orientation()
    for chunk in chunks:
        if chunk.kind in (_LOSSY, _LOSSLESS, _FRAME):
            result = result or _first_picture(source, chunk, canvas)
        elif chunk.kind in (b"EXIF", b"XMP "):
            _note(orientation, source, chunk)
    if result is None:
        raise ContainerError("a WebP without pixels")
    return _container(result[0], canvas, result[1], orientation)


def _integer(data: bytes) -> int:
    return int.from_bytes(data, "little")


def _chunks(source: PictureSource, offset: int, end: int | None = None) -> Iterator[_Chunk]:
    """Yield the chunks from ``offset`` to ``end``; to where the file ends, if it does within one."""
    steps = Countdown("chunks of the WebP")
    is_first = True
    end = source.size if end is None else min(end, source.size)
    while is_first or offset + 8 <= end:
        steps.step()
        kind, length = struct.unpack("<4sI", source.take(offset, 8))
        chunk = _Chunk(kind, offset + 8, length)
        yield chunk
        offset, is_first = chunk.end, False


def _pixels(source: PictureSource, chunk: _Chunk) -> _Pixels:
    """Return the pixels in ``chunk``; raises as ``read_webp``."""
    # A decoder gets its bytes twice.
    work_bytes = 2 * chunk.length
    if chunk.kind == _LOSSY:
        data = source.take(chunk.offset, 10)
        if data[0] & 1 or data[3:6] != _KEY_FRAME:
            raise ContainerError("a damaged WebP")
        width, height = (side & _SIDE for side in struct.unpack("<HH", data[6:]))
        return _Pixels(chunk, width, height, work_bytes + _LOSSY_COLUMN_BYTES * width)
    if chunk.kind != _LOSSLESS:
        raise ContainerError("a WebP without pixels")
    if not source.is_complete:
        raise EndError("what a lossless WebP takes is known at its end")
    length = min(chunk.length, source.size - chunk.offset)
    data = source.take(chunk.offset, min(length, 5))
    if len(data) < 5 or data[0] != SIGNATURE:
        raise ContainerError("a damaged WebP")
    sides = int.from_bytes(data[1:], "little")
    width, height = (sides & _SIDE) + 1, (sides >> 14 & _SIDE) + 1
    work_bytes += group_bytes(source.take(chunk.offset, length))
    return _Pixels(chunk, width, height, work_bytes + _LOSSLESS_COLUMN_BYTES * width)


def _first_picture(
    source: PictureSource, chunk: _Chunk, canvas: tuple[int, int]
) -> tuple[_Pixels, bytes]:
    """Return the pixels of ``chunk``, a picture or a frame, and what stands before them for a decoder."""
    if chunk.kind != _FRAME:
        pixels = _pixels(source, chunk)
        if (pixels.width, pixels.height) != canvas:
            raise ContainerError("a WebP whose picture is not as large as it says")
        return pixels, _plain(pixels)
    frame = source.take(chunk.offset, _FRAME_BYTES)
    inner = _chunks(source, chunk.offset + _FRAME_BYTES, chunk.offset + chunk.length)
    pixels = (
        next((_pixels(source, item) for item in inner if item.kind in (_LOSSY, _LOSSLESS)), None)
        or _no_pixels()
    )
    left, top = 2 * _integer(frame[:3]), 2 * _integer(frame[3:6])
    if left + pixels.width > canvas[0] or top + pixels.height > canvas[1]:
        raise ContainerError("a WebP whose first frame is not within it")
    if (pixels.width, pixels.height) == canvas:
        return pixels, _plain(pixels)
    return pixels, _animated(pixels, canvas, frame)


def _no_pixels() -> _Pixels:
    raise ContainerError("a WebP without pixels")


def _header(kind: bytes, length: int) -> bytes:
    return struct.pack("<4sI", kind, length)


def _riff(content: bytes, after_bytes: int) -> bytes:
    """Return the start of a file: ``content``, and ``after_bytes`` that follow it."""
    return _header(RIFF, len(WEBP) + len(content) + after_bytes) + WEBP + content


def _plain(pixels: _Pixels) -> bytes:
    length = pixels.chunk.length
    return _riff(_header(pixels.chunk.kind, length), length + length % 2)


def _animated(pixels: _Pixels, canvas: tuple[int, int], frame: bytes) -> bytes:
    """Return an animation of one ``frame``, which does not fill the canvas."""
    length = pixels.chunk.length
    padded = length + length % 2
    sides = b"".join((side - 1).to_bytes(3, "little") for side in canvas)
    extended = _header(_EXTENDED, _EXTENDED_BYTES) + bytes((_ANIMATION, 0, 0, 0)) + sides
    animation = _header(b"ANIM", 6) + bytes(6)
    inner = _header(pixels.chunk.kind, length)
    frame_chunk = _header(_FRAME, _FRAME_BYTES + len(inner) + padded) + frame + inner
    return _riff(extended + animation + frame_chunk, padded)


def _note(orientation: Orientation, source: PictureSource, chunk: _Chunk) -> None:
    data = source.take(
        chunk.offset, min(chunk.length, _MAX_METADATA_BYTES, source.size - chunk.offset)
    )
    if chunk.kind == b"EXIF":
        orientation.exif(data)
    else:
        orientation.xmp(data)


def _container(
    pixels: _Pixels, size: tuple[int, int], head: bytes, orientation: Orientation
) -> Container:
    is_plain = pixels.chunk.kind == _LOSSY and (pixels.width, pixels.height) == size
    return Container(
        "WEBP",
        size,
        _CANVAS_BYTES + (_RGB_BYTES if is_plain else _OPAQUE_BYTES),
        partial(_views, head, pixels.chunk),
        pixels.work_bytes,
        orientation.value,
    )


def _views(head: bytes, chunk: _Chunk, source: PictureSource) -> tuple[DecoderView, ...]:
    end = min(chunk.offset + chunk.length, source.size)
    return (DecoderView(head, ((chunk.offset, end),), bytes(chunk.length % 2)),)
