"""PNG: chunks up to the pixels, which a decoder gets as one; text, profiles and frames are passed over."""

import struct
from functools import partial

from models.images.containers.orientation import Orientation, inflated
from models.images.containers.source import (
    Container,
    ContainerError,
    Countdown,
    DecoderView,
    EndError,
    PictureSource,
)

SIGNATURE = b"\x89PNG\r\n\x1a\n"
_CRC_BYTES = 4
_HEADER_BYTES = 13
_PALETTE_BYTES = 3 * 256
_MAX_LENGTH = (1 << 31) - 1
# What is read of a chunk that may say how the picture is turned. A longer one is passed over.
_MAX_METADATA_BYTES = 1 << 16
# 4 KiB each in the largest body that is usual.
_MAX_PIXEL_CHUNKS = 1 << 14
_END = bytes(_CRC_BYTES) + struct.pack(">I", 0) + b"IEND\xae\x42\x60\x82"
_XMP_KEY = b"XML:com.adobe.xmp"
_EXIF_KEY = b"Raw profile type exif"
# Kinds of pixels (bits a sample, kind of colour), and bytes a pixel of each until it is RGB.
_PIXEL_BYTES = {
    **{(bits, 0): 8 for bits in (1, 2, 4, 8)},
    **{(bits, 3): 8 for bits in (1, 2, 4, 8)},
    **{(bits, kind): 8 for bits in (8, 16) for kind in (4, 6)},
    **{(bits, 2): 4 for bits in (8, 16)},
    (16, 0): 20,
}
_PALETTE = 3


def read_png(source: PictureSource) -> Container:
    """Return what the chunks before the pixels say.

    Raises:
        ContainerError: they are damaged. EndError: the file ends before the pixels.
    """
    offset = len(SIGNATURE)
    length, kind = _chunk(source, offset)
    if kind != b"IHDR" or length != _HEADER_BYTES:
        raise ContainerError("the first chunk of the PNG is no header")
    header = _full_chunk(source, offset, length)
    width, height, bits, colour = struct.unpack_from(">IIBB", header, 8)
    pixel_bytes = _PIXEL_BYTES.get((bits, colour))
    if pixel_bytes is None:
        raise ContainerError(f"a PNG with {bits} bits a sample of colour type {colour}")
    orientation, palette = Orientation(), b""
    chunks = Countdown("chunks before the pixels")
    while kind != b"IDAT":
        chunks.step()
        offset += 8 + length + _CRC_BYTES
        length, kind = _chunk(source, offset)
        if kind == b"PLTE":
            palette = _palette(source, offset, length)
        elif kind == b"IEND":
            raise ContainerError("a PNG without pixels")
        elif length <= _MAX_METADATA_BYTES:
            _note(orientation, source, kind, offset + 8, length)
    if colour == _PALETTE and not palette:
        raise ContainerError("a PNG without its palette")
    views = partial(_views, SIGNATURE + header + palette, offset)
    # A decoder keeps two rows as they are in the file, and one as it is in memory.
    return Container("PNG", (width, height), pixel_bytes, views, 20 * width, orientation.value)


def _chunk(source: PictureSource, offset: int) -> tuple[int, bytes]:
    """Return length and kind of the chunk at ``offset``."""
    length, kind = struct.unpack(">I4s", source.take(offset, 8))
    if length > _MAX_LENGTH or not kind.isalpha():
        raise ContainerError("a broken chunk in the PNG")
    return length, kind


def _full_chunk(source: PictureSource, offset: int, length: int) -> bytes:
    """Return the chunk at ``offset`` with its length, kind and checksum."""
    return source.take(offset, 8 + length + _CRC_BYTES)


def _palette(source: PictureSource, offset: int, length: int) -> bytes:
    if not 0 < length <= _PALETTE_BYTES or length % 3:
        raise ContainerError(f"a palette of {length} bytes")
    return _full_chunk(source, offset, length)


def _note(
    orientation: Orientation, source: PictureSource, kind: bytes, offset: int, length: int
) -> None:
    """Take from a chunk at ``offset`` what it says of how the picture is turned."""
    if kind not in (b"eXIf", b"iTXt", b"zTXt", b"tEXt"):
        return
    data = source.take(offset, length)
    if kind == b"eXIf":
        orientation.exif(data)
        return
    key, _, text = data.partition(b"\0")
    try:
        if kind == b"iTXt" and key == _XMP_KEY:
            orientation.xmp(_international(text))
        elif kind != b"iTXt" and key == _EXIF_KEY:
            profile = inflated(text[1:]) if kind == b"zTXt" else text
            orientation.exif(bytes.fromhex("".join(profile.decode("latin-1").split("\n")[3:])))
    except (ContainerError, ValueError):
        pass  # as of any metadata that cannot be read


def _international(text: bytes) -> bytes:
    """Return the text behind flags, language and translated key of an iTXt chunk."""
    segments = text[2:].split(b"\0", 2)
    packet = segments[2] if len(segments) == 3 else b""
    return inflated(packet) if text[:1] == b"\1" else packet


def _views(head: bytes, offset: int, source: PictureSource) -> tuple[DecoderView, ...]:
    """Return the picture with one chunk of pixels, made of those in a row from ``offset`` on."""
    ranges: list[tuple[int, int]] = []
    chunks = Countdown("chunks of pixels", _MAX_PIXEL_CHUNKS)
    try:
        length, kind = _chunk(source, offset)
        while kind == b"IDAT":
            chunks.step()
            if length:
                ranges.append((offset + 8, min(offset + 8 + length, source.size)))
            offset += 8 + length + _CRC_BYTES
            length, kind = _chunk(source, offset)
    except EndError:
        pass  # the decoder sees whether pixels are missing
    total = sum(end - start for start, end in ranges)
    return (DecoderView(head + struct.pack(">I", total) + b"IDAT", ranges, _END),)
