"""PPM, PGM, PBM and PFM, the binary kinds: their header."""

import re
from functools import partial

import numpy as np
from numpy.typing import NDArray

from models.images.containers.source import (
    Container,
    ContainerError,
    DecoderView,
    EndError,
    PictureSource,
)

SIGNATURE = re.compile(rb"P[1-6f][ \t\n\v\f\r]")
# Comments among it: a decoder reads them byte by byte.
_MAX_HEADER_BYTES = 1 << 12
_SPACE = rb"(?:[ \t\n\v\f\r]|#[^\r\n]*[\r\n])+"
_SIZE = re.compile(rb"P." + _SPACE + rb"(\d{1,10})" + _SPACE + rb"(\d{1,10})")
# One byte of space, of any kind, is before the pixels.
_THIRD = re.compile(_SPACE + rb"([-+.\deE]{1,10})[ \t\n\v\f\r]")
_NO_THIRD = re.compile(rb"[ \t\n\v\f\r]")
_TEXT = (b"1", b"2", b"3")
_BITS, _GREY, _COLOURS, _FLOATS = b"4", b"5", b"6", b"f"
_BYTE, _SHORT = 0xFF, 0xFFFF
_BLOCK = 1 << 16


def read_ppm(source: PictureSource) -> Container:
    """Return what the header says.

    Raises:
        ContainerError: it is damaged, or of a kind that is not read. EndError: the file ends in it.
    """
    header = source.take(0, min(source.size, _MAX_HEADER_BYTES))
    kind = header[1:2]
    if kind in _TEXT:  # decoded in Python, for seconds
        raise ContainerError("a PPM as text is not taken; send the binary kind")
    sized = _SIZE.match(header)
    third = sized and (_NO_THIRD if kind == _BITS else _THIRD).match(header, sized.end())
    if sized is None or third is None:
        missing = "the header of the PPM is damaged"
        raise EndError(missing) if len(header) < _MAX_HEADER_BYTES else ContainerError(missing)
    size = int(sized[1]), int(sized[2])
    start = third.end()
    if kind in (_GREY, _COLOURS):
        bands = 3 if kind == _COLOURS else 1
        return _samples(size, bands, start, _maximum(third[1]))
    head = header[:2] + b"\n%d %d\n" % size + (third[1] + b"\n" if kind == _FLOATS else b"")
    pixel_bytes = 9 if kind == _FLOATS else 8
    return Container("PPM", size, pixel_bytes, partial(_stored, head, start), 8 * size[0])


def _maximum(text: bytes) -> int:
    if not text.isdigit() or not 0 < int(text) <= _SHORT:
        raise ContainerError("the largest value of the PPM is none from 1 to 65535")
    return int(text)


def _samples(size: tuple[int, int], bands: int, start: int, maximum: int) -> Container:
    """Return a picture of whole numbers up to ``maximum``; those of 8 bits a decoder reads as they are."""
    head = b"P%d\n%d %d\n255\n" % (6 if bands == 3 else 5, *size)
    pixel_bytes = 4 if bands == 3 else 8
    if maximum == _BYTE:
        return Container("PPM", size, pixel_bytes, partial(_stored, head, start), 8 * size[0])
    views = partial(_scaled, head, start, size[0] * size[1] * bands, maximum)
    return Container("PPM", size, pixel_bytes + 2 * bands, views, 8 * size[0] + 8 * _BLOCK)


def _stored(head: bytes, start: int, source: PictureSource) -> tuple[DecoderView, ...]:
    return (DecoderView(head, ((start, source.size),)),)


def _scaled(
    head: bytes, start: int, count: int, maximum: int, source: PictureSource
) -> tuple[DecoderView, ...]:
    """Return the picture with samples of eight bits, as a decoder written in Python would make them."""
    kind = np.dtype(">u2" if maximum > _BYTE else "u1")
    table = _table(maximum, is_grey=head.startswith(b"P5"))
    scaled = bytearray(head)
    count = min(count, (source.size - start) // kind.itemsize)
    for first in range(0, count, _BLOCK):
        n_samples = min(_BLOCK, count - first)
        data = source.take(start + first * kind.itemsize, n_samples * kind.itemsize)
        scaled += table[np.frombuffer(data, kind)].tobytes()
    return (DecoderView(bytes(scaled)),)


def _table(maximum: int, *, is_grey: bool) -> NDArray[np.uint8]:
    """Return what becomes of every number that a file may hold: of 8 bits, grey by way of 16."""
    values = np.arange((_SHORT if maximum > _BYTE else _BYTE) + 1) / maximum
    if is_grey and maximum > _BYTE:
        return (np.round(values * _SHORT).clip(0, _SHORT).astype(np.uint16) >> 8).astype(np.uint8)
    return np.round(values * _BYTE).clip(0, _BYTE).astype(np.uint8)
