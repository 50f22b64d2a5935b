"""PNG, piece by piece: no more of it is held than some rows."""

import struct
import zlib
from collections.abc import Iterable, Iterator

from models.segmentation import Bytes

#: What zlib needs for a window of 2**13 bytes and tables for 2**6 hashes, as rows are packed, and a piece.
PACKER_BYTES = 128 << 10
_WINDOW, _TABLES = 13, 6
_SIGNATURE = b"\x89PNG\r\n\x1a\n"


def pieces(
    size: tuple[int, int], bits: int, color: int, more: bytes, bands: Iterable[Bytes]
) -> Iterator[bytes]:
    """Yield the pieces of a PNG of ``size`` (width, height); some are empty, where nothing is packed yet.

    ``bits``: of a number. ``color``: its colour type, as PNG numbers them. ``more``: chunks before the
    pixels. ``bands``: all rows, some at a time, each behind the number of its filter.
    """
    header = struct.pack(">IIBBBBB", *size, bits, color, 0, 0, 0)
    yield _SIGNATURE + chunk(b"IHDR", header) + more
    packer = zlib.compressobj(6, zlib.DEFLATED, _WINDOW, _TABLES)
    for band in bands:
        packed = packer.compress(band.tobytes())
        yield chunk(b"IDAT", packed) if packed else b""
    yield chunk(b"IDAT", packer.flush()) + chunk(b"IEND", b"")


def chunk(kind: bytes, data: bytes) -> bytes:
    """Return a chunk of this ``kind``: length, kind, data, checksum."""
    check = zlib.crc32(kind + data)
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", check)
