"""GIF: the first picture, without comments and what programs have added."""

import struct
from functools import partial

from models.images.containers.source import (
    Container,
    ContainerError,
    Countdown,
    DecoderView,
    PictureSource,
)

SIGNATURES = (b"GIF87a", b"GIF89a")
_SCREEN_BYTES = 13
_HAS_PALETTE, _PALETTE_BITS = 0x80, 0x07
_CONTROL = 0xF9
_CONTROL_BYTES = 4
_PICTURE_BYTES = 10
_PIXEL_BYTES = 8


def read_gif(source: PictureSource) -> Container:
    """Return what stands before the pixels of the first picture.

    Raises:
        ContainerError: it is damaged. EndError: the file ends before.
    """
    screen = source.take(0, _SCREEN_BYTES)
    width, height, flags = struct.unpack_from("<HHB", screen, 6)
    offset = _SCREEN_BYTES + _palette_bytes(flags)
    head = source.take(0, offset)
    offset, transparent = _skip_extensions(source, offset)
    left, top, across, down, flags = struct.unpack(
        "<HHHHB", source.take(offset, _PICTURE_BYTES)[1:]
    )
    source.take(offset, _PICTURE_BYTES + _palette_bytes(flags) + 1)
    size = max(width, left + across), max(height, top + down)
    if transparent is not None:
        # Nothing of how the picture is disposed of, for which a decoder would hold another one.
        head += struct.pack("<BBBBHBB", 0x21, _CONTROL, _CONTROL_BYTES, 1, 0, transparent, 0)
    return Container("GIF", size, _PIXEL_BYTES, partial(_views, head, offset), 4 * across)


def _palette_bytes(flags: int) -> int:
    return 3 << ((flags & _PALETTE_BITS) + 1) if flags & _HAS_PALETTE else 0


def _skip_extensions(source: PictureSource, offset: int) -> tuple[int, int | None]:
    """Return where the first picture begins, and which colour of it is transparent, if one is."""
    transparent: int | None = None
    blocks = Countdown("blocks before the picture of the GIF")
    while True:
        blocks.step()
        match source.take(offset, 1):
            case b",":
                return offset, transparent
            case b"!":
                label, length = source.take(offset + 1, 2)
                if label == _CONTROL and length >= _CONTROL_BYTES:
                    data = source.take(offset + 3, _CONTROL_BYTES)
                    transparent = data[3] if data[0] & 1 else None
                offset = _skip_blocks(source, offset + 2, blocks)
            case b";":
                raise ContainerError("a GIF without a picture")
            case _:
                offset += 1  # bytes that mean nothing are passed over by all that read GIF


def _skip_blocks(source: PictureSource, offset: int, blocks: Countdown) -> int:
    """Return the offset behind the blocks that begin at ``offset``."""
    while length := source.take(offset, 1)[0]:
        blocks.step()
        offset += 1 + length
    return offset + 1


def _views(head: bytes, offset: int, source: PictureSource) -> tuple[DecoderView, ...]:
    return (DecoderView(head, ((offset, source.size),)),)
