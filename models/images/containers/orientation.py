"""How a picture is turned, by EXIF or XMP: the only metadata that an answer depends on."""

import re
import struct
import zlib

from models.images.containers.source import UPRIGHT, ContainerError

_TAG = 0x0112
_PREFIX = b"Exif\0\0"
_ORDERS = {b"II": "<", b"MM": ">"}
# Types of TIFF that the tag may have: SHORT and LONG; and bytes of those that fit where its value stands.
_TYPES = {3: "H", 4: "L"}
_SIZES = {1: 1, 2: 1, 3: 2, 4: 4, 6: 1, 7: 1, 8: 2, 9: 4, 11: 4, 13: 4}
_INLINE_BYTES = 4
# Of entries in the first directory.
_MAX_ENTRIES = 1024
_XMP = re.compile(rb"tiff:Orientation(?:=[\"']|>)([1-8])")
# How far an XMP packet or a compressed text is looked through.
_MAX_TEXT_BYTES = 1 << 16


def exif_orientation(block: bytes) -> int | None:
    """Return the orientation that a block of EXIF has, 1 to 8; None: it has none, or is damaged."""
    block = block.removeprefix(_PREFIX)
    order = _ORDERS.get(block[:2])
    if order is None:
        return None
    try:
        (directory,) = struct.unpack_from(order + "L", block, 4)
        (count,) = struct.unpack_from(order + "H", block, directory)
        for index in range(min(count, _MAX_ENTRIES)):
            entry = directory + 2 + 12 * index
            tag, kind, n_values = struct.unpack_from(order + "HHL", block, entry)
            if tag != _TAG or not 0 < n_values * _SIZES.get(kind, 0) <= _INLINE_BYTES:
                continue
            if kind not in _TYPES or n_values != 1:
                return UPRIGHT
            return in_range(struct.unpack_from(order + _TYPES[kind], block, entry + 8)[0])
    except struct.error:
        return None
    return None


def in_range(value: int) -> int:
    """Return ``value`` if it is an orientation, else that of an upright picture."""
    return value if 1 <= value <= 8 else UPRIGHT


def xmp_orientation(packet: bytes) -> int | None:
    """Return the orientation that a packet of XMP has; None: it has none in its first 64 KiB."""
    match = _XMP.search(packet, 0, _MAX_TEXT_BYTES)
    return None if match is None else int(match[1])


def inflated(text: bytes) -> bytes:
    """Return the first 64 KiB of what was compressed by zlib.

    Raises:
        ContainerError: it is damaged.
    """
    try:
        return zlib.decompressobj().decompress(text, _MAX_TEXT_BYTES)
    except zlib.error as exc:
        raise ContainerError("damaged text") from exc


class Orientation:
    """The orientation of a picture, of whatever says it: EXIF before XMP."""

    def __init__(self) -> None:
        self._exif: int | None = None
        self._has_exif = False
        self._xmp: int | None = None

    def exif(self, block: bytes) -> None:
        """Take a block; the first one of EXIF counts, also where it has no orientation."""
        if not self._has_exif and block.removeprefix(_PREFIX)[:2] in _ORDERS:
            self._exif, self._has_exif = exif_orientation(block), True

    def xmp(self, packet: bytes) -> None:
        """Take a packet of XMP; the first one with an orientation counts."""
        if self._xmp is None:
            self._xmp = xmp_orientation(packet)

    @property
    def value(self) -> int:
        """1 to 8; 1 where nothing says it."""
        return self._exif or self._xmp or UPRIGHT
