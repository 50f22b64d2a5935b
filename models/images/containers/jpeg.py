"""JPEG, MPO among it: the segments that a decoder needs, and what the frame makes it hold.

Frames and components: ITU T.81, B.2; what a decoder holds: libjpeg-turbo's jdmainct.c, jdcoefct.c.
"""

import re
import struct
from dataclasses import dataclass
from functools import partial
from typing import Self

from models.images.containers.orientation import Orientation
from models.images.containers.source import (
    Container,
    ContainerError,
    Countdown,
    DecoderView,
    EndError,
    PictureSource,
)

SIGNATURE = b"\xff\xd8\xff"
_START = b"\xff\xd8"
_END = b"\xff\xd9"
_SCAN = re.compile(rb"\xff\xda")
# What follows an unfinished scan, if there is one, with other bits than a decoder would assume: it takes
# zeros. With all restarts, as one of those may be what comes next.
_OTHER_BITS = b"\xfe" + bytes((37 * index + 11) % 255 for index in range(48))
_OTHER_BITS += b"".join(bytes((0xFF, 0xD0 + index)) + _OTHER_BITS for index in range(8))
# Markers without a length: TEM, restarts, start.
_BARE = {0x01, *range(0xD0, 0xD9)}
_FRAMES = {0xC0, 0xC1, 0xC2, 0xC3, 0xC9, 0xCA, 0xCB}
_PROGRESSIVE = {0xC2, 0xCA}
# Frames of a hierarchy, and their relatives, which no decoder at hand reads.
_HIERARCHICAL = {0xC5, 0xC6, 0xC7, 0xC8, 0xCD, 0xCE, 0xCF, 0xDE, 0xDF}
# DHT, DAC, DQT, DRI: tables.
_TABLES = {0xC4, 0xCC, 0xDB, 0xDD}
_SOS, _EOI, _JFIF, _EXIF, _ADOBE = 0xDA, 0xD9, 0xE0, 0xE1, 0xEE
_XMP = b"http://ns.adobe.com/xap/1.0/\0"
# What segments with tables may take; those of a file from a camera take 1 KiB.
_MAX_TABLE_BYTES = 1 << 16
_BLOCK = 8
_COEFFICIENT_BYTES = 2
# Scans of a file, and the pixels that all of them may go over: 24 megapixels in 22 scans take a second.
_MAX_SCANS = 100
_MAX_SCANNED_PIXELS = 1 << 29
_USUAL_SCANS = 12
_MODES = {1: 8, 3: 4, 4: 8}


@dataclass(frozen=True)
class _Component:
    name: int
    across: int
    down: int


@dataclass(frozen=True)
class JpegFrame:
    """A frame: how large its components are."""

    width: int
    height: int
    components: tuple[_Component, ...]
    is_progressive: bool

    @classmethod
    def read(cls, marker: int, data: bytes) -> Self:
        """Return the frame in the segment ``data`` of that ``marker``.

        Raises:
            ContainerError: it is damaged, or has no pixels of eight bits of one, three or four colours.
        """
        if len(data) < 6 or len(data) != 6 + 3 * data[5]:
            raise ContainerError("a damaged frame of the JPEG")
        bits, height, width, count = struct.unpack_from(">BHHB", data)
        if bits != 8:
            raise ContainerError(f"a JPEG with {bits} bits a sample")
        if count not in _MODES:
            raise ContainerError(f"a JPEG with {count} colours")
        if not height or not width:
            raise ContainerError("a JPEG whose size stands behind its pixels")
        components = tuple(
            _Component(data[first], *divmod(data[first + 1], 16))
            for first in range(6, len(data), 3)
        )
        if not all(
            1 <= component.across <= 4 and 1 <= component.down <= 4 for component in components
        ):
            raise ContainerError("a JPEG with other sampling factors than 1 to 4")
        return cls(width, height, components, marker in _PROGRESSIVE)

    def _blocks(self, component: _Component) -> tuple[int, int]:
        """Return how many blocks of a component there are, across and down, whole units of the frame."""
        across = max(other.across for other in self.components)
        down = max(other.down for other in self.components)
        return (
            -(-self.width // (_BLOCK * across)) * component.across,
            -(-self.height // (_BLOCK * down)) * component.down,
        )

    @property
    def coefficient_bytes(self) -> int:
        """What all coefficients take, which a decoder holds of a file with several scans."""
        blocks = [self._blocks(component) for component in self.components]
        return sum(across * down for across, down in blocks) * _BLOCK**2 * _COEFFICIENT_BYTES

    @property
    def row_bytes(self) -> int:
        """What rows on their way from blocks to pixels take: of components, upsampled, and of a decoder."""
        down = max(component.down for component in self.components)
        of_components = sum(
            # With rows above and below those that are upsampled.
            self._blocks(component)[0] * _BLOCK * component.down * (_BLOCK + 4)
            for component in self.components
        )
        return of_components + len(self.components) * (down + 1) * (self.width + 4 * _BLOCK)


def read_jpeg(source: PictureSource) -> Container:
    """Return what the segments before the first scan say.

    Raises:
        ContainerError: they are damaged, or of a kind that is not read. EndError: the file ends before.
    """
    walk = _Walk(source)
    frame = walk.to_first_scan()
    has_one_scan = walk.n_in_scan == len(frame.components) and not frame.is_progressive
    views = partial(_views, bytes(walk.head), walk.offset, None if has_one_scan else frame)
    return Container(
        "JPEG",
        (frame.width, frame.height),
        _MODES[len(frame.components)],
        views,
        frame.row_bytes + (0 if has_one_scan else frame.coefficient_bytes),
        walk.orientation.value,
        has_one_scan,
    )


def check_plain(source: PictureSource, offset: int, width: int) -> None:
    """Check that there is a JPEG of one scan at ``offset``, at most so wide.

    Raises:
        ContainerError: it is another, or damaged. EndError: the file ends before its scan.
    """
    walk = _Walk(source, offset)
    frame = walk.to_first_scan()
    if frame.is_progressive or walk.n_in_scan != len(frame.components):
        raise ContainerError("a JPEG of several scans inside of another file")
    if frame.width > width:
        raise ContainerError("a JPEG that is wider than its place in another file")


class _Walk:
    """Goes through segments from ``offset`` on, and collects those that a decoder needs."""

    def __init__(self, source: PictureSource, offset: int = 0) -> None:
        self._source = source
        self.offset = offset + len(_START)
        self.head = bytearray(_START)
        self.orientation = Orientation()
        self.n_in_scan = 0
        self._frame: JpegFrame | None = None
        self._segments = Countdown("segments before the pixels")

    def to_first_scan(self) -> JpegFrame:
        """Return the frame, and stop where the first scan begins; raises as ``read_jpeg``."""
        while True:
            marker, data = self._next()
            if marker == _SOS:
                break
            self._take(marker, data)
            self.offset += 4 + len(data)
        if self._frame is None or not data:
            raise ContainerError("a JPEG whose scan has no frame")
        self.n_in_scan = data[0]
        return self._frame

    def _next(self) -> tuple[int, bytes]:
        """Return marker and data of the next segment, at whose marker the offset is then."""
        while True:
            self._segments.step()
            self.offset = _next_marker(self._source, self.offset)
            marker = self._source.take(self.offset + 1, 1)[0]
            if marker == _EOI:
                raise ContainerError("a JPEG without pixels")
            if marker not in _BARE:
                break
            self.offset += 2
        (length,) = struct.unpack(">H", self._source.take(self.offset + 2, 2))
        if length < 2:
            raise ContainerError("a damaged segment of the JPEG")
        return marker, self._source.take(self.offset + 4, length - 2)

    def _take(self, marker: int, data: bytes) -> None:
        if marker in _HIERARCHICAL:
            raise ContainerError("a hierarchical JPEG")
        if marker in _FRAMES:
            if self._frame is not None:
                raise ContainerError("a JPEG with two frames")
            self._frame = JpegFrame.read(marker, data)
        elif marker == _EXIF:
            self._note(data)
        is_colour = (marker == _JFIF and data.startswith(b"JFIF")) or (
            marker == _ADOBE and data.startswith(b"Adobe")
        )
        if marker in _FRAMES or marker in _TABLES or is_colour:
            self.head += struct.pack(">BBH", 0xFF, marker, len(data) + 2) + data
            if len(self.head) > _MAX_TABLE_BYTES:
                raise ContainerError(f"a JPEG with over {_MAX_TABLE_BYTES >> 10} KiB of tables")

    def _note(self, data: bytes) -> None:
        if data.startswith(b"Exif\0\0"):
            self.orientation.exif(data)
        elif data.startswith(_XMP):
            self.orientation.xmp(data)


_MARKER = re.compile(rb"\xff[^\0\xff]")


def _next_marker(source: PictureSource, offset: int) -> int:
    """Return the offset of the next marker, past anything else.

    Raises:
        EndError: there is none.
    """
    pair = source.take(offset, 2)
    if _MARKER.match(pair):  # as nearly always
        return offset
    for block in source.blocks(offset, 1):
        if match := _MARKER.search(block):
            return offset + match.start()
        offset += len(block) - 1
    source.take(source.size, 1)
    raise AssertionError("a byte behind the end")


def _views(
    head: bytes, offset: int, scanned: JpegFrame | None, source: PictureSource
) -> tuple[DecoderView, ...]:
    """Return ``head`` with the scans from ``offset`` on; where the last has no end, with one.

    ``scanned``: the frame of a file with several scans, None for one.
    """
    scans, has_end = list[int](), False
    start = offset
    for block in source.blocks(offset, 1):
        scans += [start + match.start() for match in _SCAN.finditer(block)]
        has_end = has_end or _END in block
        start += len(block) - 1
        if scanned is not None:
            _check_scans(scanned, len(scans))
    if has_end:
        return (DecoderView(head, ((offset, source.size),)),)
    if scanned is not None and not _has_all_scans(scanned, source, scans):
        raise EndError("image file is truncated")
    # Half of the marker of the end may be there.
    end = source.size - (source.take(source.size - 1, 1) == _END[:1])
    ranges = ((offset, end),)
    return DecoderView(head, ranges, _OTHER_BITS + _END), DecoderView(head, ranges, _END)


def _has_all_scans(frame: JpegFrame, source: PictureSource, scans: list[int]) -> bool:
    """Return whether the ``scans`` that begin at those offsets have all bits of all coefficients."""
    missing = {component.name: [True] * _BLOCK**2 for component in frame.components}
    for offset in scans:
        try:
            (count,) = source.take(offset + 4, 1)
            names = source.take(offset + 5, 2 * count)[::2]
            first, last, bits = source.take(offset + 5 + 2 * count, 3)
        except EndError:
            return False
        for name in names:
            # The lower half says how many bits a later scan has to add.
            for index in range(first, min(last + 1, _BLOCK**2)):
                missing.get(name, [True] * _BLOCK**2)[index] = bool(bits & 15)
    return not any(map(any, missing.values()))


def _check_scans(frame: JpegFrame, n_scans: int) -> None:
    scanned = n_scans * frame.width * frame.height
    if n_scans > _MAX_SCANS or (n_scans > _USUAL_SCANS and scanned > _MAX_SCANNED_PIXELS):
        raise ContainerError(f"a JPEG of {frame.width}x{frame.height} pixels in {n_scans} scans")
