"""Depth on its way to a client: PNG in shades of grey, and numbers as a file of NumPy."""

import io
from collections.abc import Iterator

import numpy as np

from models.depth import DepthMap, DepthRange
from models.segmentation import Bytes
from server.requests.png import chunk, pieces

# Pixels of a PNG are shades of grey.
_GREY = 0
# The filter of a row that has differences to the row before.
_UP = 2


def png(depth: DepthMap, span: DepthRange, bits: int) -> Iterator[bytes]:
    """Return the pieces of a PNG of so many ``bits``: none is the least number of ``span``.

    All bits are the greatest. Rounded down, as transformers' pipeline does with 8 bits. Chunks of text,
    "minimum" and "maximum", have these numbers.
    """
    texts = (("minimum", span.minimum), ("maximum", span.maximum))
    more = b"".join(chunk(b"tEXt", f"{name}\0{value!r}".encode()) for name, value in texts)
    return pieces(depth.size, bits, _GREY, more, _rows(depth, span, bits))


def _rows(depth: DepthMap, span: DepthRange, bits: int) -> Iterator[Bytes]:
    """Yield all rows, each behind its filter."""
    before = np.zeros((1, depth.size[0] * bits // 8), np.uint8)
    for band in depth.bands():
        shades = span.pixels(band, (1 << bits) - 1).astype(f">u{bits // 8}")
        values = shades.view(np.uint8).reshape(len(band), -1)
        rows = np.full((len(band), values.shape[1] + 1), _UP, np.uint8)
        np.subtract(values[:1], before, out=rows[:1, 1:])
        np.subtract(values[1:], values[:-1], out=rows[1:, 1:])
        before = values[-1:].copy()
        yield rows


def npy(depth: DepthMap) -> Iterator[bytes]:
    """Yield the pieces of a file for ``numpy.load``: float32[height, width], little-endian."""
    file = io.BytesIO()
    described = {"descr": "<f4", "fortran_order": False, "shape": depth.size[::-1]}
    np.lib.format.write_array_header_1_0(file, described)
    yield file.getvalue()
    for band in depth.bands():
        yield band.astype("<f4", copy=False).tobytes()


def headers(span: DepthRange) -> list[tuple[bytes, bytes]]:
    """Return the least and greatest number as headers of an answer."""
    return [
        (b"x-depth-minimum", repr(span.minimum).encode()),
        (b"x-depth-maximum", repr(span.maximum).encode()),
    ]
