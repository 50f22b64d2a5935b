"""Masks on their way to a client or a file: PNG with a palette, and runs."""

import struct
import zlib
from collections.abc import Iterator, Sequence

import numpy as np

from models.segmentation import NONE, Counted, Mask

#: What zlib needs for a window of 2**13 bytes and tables for 2**6 hashes, as a mask is packed, and a piece.
PACKER_BYTES = 128 << 10
_WINDOW, _TABLES = 13, 6
_SIGNATURE = b"\x89PNG\r\n\x1a\n"


def png(mask: Mask) -> Iterator[bytes]:
    """Yield the pieces of a PNG whose pixels are classes, 255 for none, each in the colour of its class.

    The background is transparent, as is what is no class. A chunk of text, "classes", has their labels, one
    a line.
    """
    width, height = mask.size
    indices = range(NONE + 1)
    palette = bytes(value for index in indices for value in mask.color(index))
    opaque = bytes(0 if mask.segmentation.is_nothing(index) else 255 for index in indices)
    names = "\n".join(mask.segmentation.labels).encode()
    yield b"".join(
        (
            _SIGNATURE,
            _chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 3, 0, 0, 0)),
            _chunk(b"PLTE", palette),
            _chunk(b"tRNS", opaque),
            _chunk(b"iTXt", b"classes\0\0\0\0\0" + names) if names else b"",
        )
    )
    packer = zlib.compressobj(6, zlib.DEFLATED, _WINDOW, _TABLES)
    for band in mask.bands():
        rows = np.zeros((len(band), width + 1), np.uint8)  # before each row its filter: none
        rows[:, 1:] = band
        packed = packer.compress(rows.tobytes())
        yield _chunk(b"IDAT", packed) if packed else b""
    yield _chunk(b"IDAT", packer.flush()) + _chunk(b"IEND", b"")


def _chunk(kind: bytes, data: bytes) -> bytes:
    check = zlib.crc32(kind + data)
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", check)


def runs(mask: Mask, counted: Counted) -> Iterator[Sequence[int]]:
    """Yield the runs of the mask, row after row: class, length, class, length, and so on; some at a time.

    ``counted`` is shown all of them.
    """
    open_class, open_length = -1, 0
    for band in mask.bands():
        counted.add(band)
        flat = band.ravel()
        ends = np.append(np.flatnonzero(flat[1:] != flat[:-1]) + 1, flat.size)
        lengths = np.diff(ends, prepend=0)
        classes = flat[ends - 1].astype(np.int64)
        if classes[0] == open_class:
            lengths[0] += open_length
        elif open_length:
            yield (open_class, open_length)
        open_class, open_length = int(classes[-1]), int(lengths[-1])
        closed = np.stack([classes[:-1], lengths[:-1]], axis=1).ravel()
        yield closed.tolist()
    yield (open_class, open_length)
