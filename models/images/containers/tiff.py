"""TIFF and BigTIFF: the first directory, of which a decoder gets a copy with what it needs.

Structure: TIFF 6.0, sections 2 and 3, and its supplement 2; what a decoder holds: libtiff's tif_dirread.c,
tif_jpeg.c, tif_fax3.c.
"""

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Self

import numpy as np
from numpy.typing import NDArray

from models.images.containers.jpeg import check_plain
from models.images.containers.orientation import in_range, xmp_orientation
from models.images.containers.source import (
    MAX_SEGMENTS,
    Container,
    ContainerError,
    DecoderView,
    EndError,
    PictureSource,
)

SIGNATURES = (b"II\x2a\0", b"MM\0\x2a", b"II\x2b\0", b"MM\0\x2b")
_WIDTH, _LENGTH, _BITS, _COMPRESSION, _PHOTOMETRIC, _FILL_ORDER = 256, 257, 258, 259, 262, 266
_STRIPOFFSETS, _ORIENTATION, _SAMPLES, _ROWSPERSTRIP, _STRIPBYTECOUNTS, _PLANAR = (
    *(273, 274, 277, 278),
    *(279, 284),
)
_TILE_WIDTH, _TILE_LENGTH, _TILE_OFFSETS, _TILE_BYTES = 322, 323, 324, 325
_FORMAT, _XMP = 339, 700
# With options of fax (292, 293), predictor, palette, what else a pixel has, and tables and samples of JPEG.
_OTHERS = {292, 293, 317, 320, 332, 338, 347, 530, 531, 532}
_ROW_TAGS = {_STRIPOFFSETS, _ROWSPERSTRIP, _STRIPBYTECOUNTS}
_TILES = {_TILE_WIDTH, _TILE_LENGTH, _TILE_OFFSETS, _TILE_BYTES}
_ARRAYS = {_STRIPOFFSETS, _STRIPBYTECOUNTS, _TILE_OFFSETS, _TILE_BYTES}
_RETAINED = {
    *(_WIDTH, _LENGTH, _BITS, _COMPRESSION, _PHOTOMETRIC, _FILL_ORDER, _SAMPLES, _PLANAR, _FORMAT),
    *_OTHERS,
    *_ROW_TAGS,
    *_TILES,
}
_RAW, _JPEG = 1, 7
_FAX = (2, 3, 4)
# LZW, JPEG, deflate by two numbers, PackBits. Others hold windows of any size (LZMA, Zstandard), or
# pictures in containers of their own (WebP, JPEG as before 1995).
_COMPRESSIONS = (_RAW, *_FAX, 5, _JPEG, 8, 32946, 32773)
_SEPARATE, _YCBCR = 2, 6
_FLOATS = 3
_RGB = 2
_MAX_SAMPLES, _MAX_BITS = 6, 64
_MAX_ENTRIES = 4096
_MAX_VALUE_BYTES = 1 << 16
_MAX_XMP_BYTES = 1 << 16
# Bytes of the types that tags have.
_SIZES = {
    **dict.fromkeys((1, 2, 6, 7), 1),
    **dict.fromkeys((3, 8), 2),
    **dict.fromkeys((4, 9, 11, 13), 4),
    **dict.fromkeys((5, 10, 12, 16, 17, 18), 8),
}
_INTEGERS = {1: "u1", 3: "u2", 4: "u4", 13: "u4", 16: "u8", 18: "u8"}
_LONG = 4
_BLOCK = 1 << 13
# Of a strip or tile: a decoder's offsets and lengths, or what Pillow says of one that is not compressed.
_SEGMENT_BYTES, _RAW_SEGMENT_BYTES = 64, 1024
# Strips with pixels of JPEG, into each of which is looked.
_MAX_JPEGS = 1 << 12


@dataclass(frozen=True)
class _Entry:
    tag: int
    kind: int
    count: int
    #: As it is in the directory.
    raw: bytes
    #: Where its values are.
    offset: int


@dataclass(frozen=True)
class _Directory:
    """A directory of tags, of a file that is ``is_big`` or not, in byte ``order`` ("<" or ">")."""

    source: PictureSource
    order: str
    is_big: bool
    entries: dict[int, _Entry]

    @classmethod
    def first(cls, source: PictureSource) -> Self:
        """Read the first directory.

        Raises:
            ContainerError: it is damaged. EndError: the file ends before.
        """
        start = source.take(0, 8)
        order = "<" if start[:1] == b"I" else ">"
        is_big = start[:4] in SIGNATURES[2:]
        if is_big:
            (offset,) = struct.unpack(order + "Q", source.take(8, 8))
            (count,) = struct.unpack(order + "Q", source.take(offset, 8))
        else:
            (offset,) = struct.unpack(order + "L", start[4:])
            (count,) = struct.unpack(order + "H", source.take(offset, 2))
        if count > _MAX_ENTRIES:
            raise ContainerError(f"a TIFF with a directory of {count} entries")
        result = cls(source, order, is_big, {})
        for index in range(count):
            result._read(offset + (8 if is_big else 2) + index * result._entry_bytes)
        return result

    @property
    def _entry_bytes(self) -> int:
        return 20 if self.is_big else 12

    def _read(self, start: int) -> None:
        raw = self.source.take(start, self._entry_bytes)
        form, word = ("HHQ", "Q") if self.is_big else ("HHL", "L")
        tag, kind, count = struct.unpack_from(self.order + form, raw)
        inline = struct.calcsize(self.order + word)
        n_bytes = count * _SIZES.get(kind, 0)
        offset = start + len(raw) - inline
        if n_bytes > inline:
            (offset,) = struct.unpack(self.order + word, raw[-inline:])
        is_needed = tag in _RETAINED or tag in (_ORIENTATION, _XMP)
        if is_needed and tag not in self.entries and n_bytes:
            if n_bytes > _MAX_VALUE_BYTES and tag in _RETAINED - _ARRAYS:
                raise ContainerError(f"a TIFF with {n_bytes} bytes in tag {tag}")
            self.entries[tag] = _Entry(tag, kind, count, raw, offset)

    def blocks(self, tag: int) -> Iterator[NDArray[np.uint64]]:
        """Yield the values of ``tag``, some at a time.

        Raises:
            ContainerError: they are no whole numbers. EndError: they are not in the file.
        """
        entry = self.entries[tag]
        if entry.kind not in _INTEGERS:
            raise ContainerError(f"a TIFF with tag {tag} of type {entry.kind}")
        kind = np.dtype(self.order + _INTEGERS[entry.kind])
        for first in range(0, entry.count, _BLOCK):
            count = min(_BLOCK, entry.count - first)
            start = entry.offset + first * kind.itemsize
            data = self.source.take(start, count * kind.itemsize)
            yield np.frombuffer(data, kind).astype(np.uint64)

    def value(self, tag: int, default: int) -> int:
        """Return the largest value of ``tag`` in its first block; ``default``: there is no such tag."""
        if tag not in self.entries:
            return default
        return int(next(self.blocks(tag)).max())

    def need(self, tag: int) -> int:
        """Return the value of ``tag``, which is not 0.

        Raises:
            ContainerError: it is, or there is none.
        """
        value = self.value(tag, 0)
        if not value:
            raise ContainerError(f"a TIFF without a value of tag {tag}")
        return value

    def entry(self, tag: int, value: int) -> _Entry:
        """Return an entry with one ``value`` of 32 bits."""
        form, padding = ("HHQL", 4) if self.is_big else ("HHLL", 0)
        raw = struct.pack(self.order + form, tag, _LONG, 1, value) + bytes(padding)
        return _Entry(tag, _LONG, 1, raw, 0)

    def view(self, entries: dict[int, _Entry]) -> DecoderView:
        """Return the file with a directory of ``entries`` behind its end, the only one."""
        end = self.source.size + self.source.size % 2
        table = b"".join(entries[tag].raw for tag in sorted(entries))
        form, first = ("Q", 8) if self.is_big else ("H", 4)
        word = "Q" if self.is_big else "L"
        tail = bytes(end - self.source.size) + struct.pack(self.order + form, len(entries))
        head = self.source.take(0, first) + struct.pack(self.order + word, end)
        tail += table + struct.pack(self.order + word, 0)
        return DecoderView(head, ((len(head), self.source.size),), tail)


@dataclass(frozen=True)
class _Layout:
    """How pixels lie in strips or tiles of ``width`` x ``length`` pixels, ``count`` in all."""

    width: int
    length: int
    count: int
    n_bytes: int
    offsets: int
    lengths: int

    @classmethod
    def of(cls, directory: _Directory) -> Self:
        """Return the layout that ``directory`` says; raises as ``read_tiff``."""
        across, down = directory.need(_WIDTH), directory.need(_LENGTH)
        samples, bits = directory.value(_SAMPLES, 1), directory.value(_BITS, 1)
        if not 0 < samples <= _MAX_SAMPLES or not 0 < bits <= _MAX_BITS:
            raise ContainerError(f"a TIFF with {samples} samples of {bits} bits")
        if _TILE_OFFSETS in directory.entries:
            width, length = directory.need(_TILE_WIDTH), directory.need(_TILE_LENGTH)
            tags = _TILE_OFFSETS, _TILE_BYTES
        else:
            width, length = across, min(directory.value(_ROWSPERSTRIP, down) or down, down)
            tags = _STRIPOFFSETS, _STRIPBYTECOUNTS
        planes = samples if directory.value(_PLANAR, 1) == _SEPARATE else 1
        count = -(-across // width) * -(-down // length) * planes
        n_bytes = -(-width * bits * samples // planes // 8) * length
        if tags[0] not in directory.entries or directory.entries[tags[0]].count < count:
            raise ContainerError(f"a TIFF with fewer than its {count} strips or tiles")
        return cls(width, length, count, n_bytes, *tags)


def read_tiff(source: PictureSource) -> Container:
    """Return what the first directory says.

    Raises:
        ContainerError: it is damaged, or of a kind that is not read. EndError: the file ends before.
    """
    if not source.is_complete:  # any of it may be behind the pixels
        raise EndError("the directory may come later")
    directory = _Directory.first(source)
    compression = directory.value(_COMPRESSION, _RAW)
    if compression not in _COMPRESSIONS:
        raise ContainerError(f"a TIFF compressed by method {compression} is not taken")
    layout = _Layout.of(directory)
    dropped = _ROW_TAGS if layout.offsets == _TILE_OFFSETS else _TILES
    entries = {tag: entry for tag, entry in directory.entries.items() if tag in _RETAINED - dropped}
    if compression == _RAW:
        work_bytes = _check_raw(directory, layout, entries)
    else:
        work_bytes = _check_compressed(directory, layout, compression)
    size = directory.need(_WIDTH), directory.need(_LENGTH)
    return Container(
        "TIFF",
        size,
        _pixel_bytes(directory),
        partial(_views, directory.order, directory.is_big, entries),
        work_bytes,
        _orientation(directory),
    )


def _views(
    order: str, is_big: bool, entries: dict[int, _Entry], source: PictureSource
) -> tuple[DecoderView, ...]:
    return (_Directory(source, order, is_big, {}).view(entries),)


def _pixel_bytes(directory: _Directory) -> int:
    samples, bits = directory.value(_SAMPLES, 1), directory.value(_BITS, 1)
    if directory.value(_FORMAT, 1) == _FLOATS:
        return 9
    if samples == 1 and bits > 8:
        return 20
    is_rgb = directory.value(_PHOTOMETRIC, 0) in (_RGB, _YCBCR) and samples == 3
    return 4 if is_rgb else 8


def _orientation(directory: _Directory) -> int:
    if _ORIENTATION in directory.entries and directory.entries[_ORIENTATION].count == 1:
        return in_range(directory.value(_ORIENTATION, 1))
    if _XMP not in directory.entries:
        return 1
    packet = directory.entries[_XMP]
    data = directory.source.take(packet.offset, min(packet.count, _MAX_XMP_BYTES))
    return xmp_orientation(data) or 1


def _check_raw(directory: _Directory, layout: _Layout, entries: dict[int, _Entry]) -> int:
    """Return what strips or tiles take that are not compressed; such in a row become one strip."""
    if _is_in_a_row(directory, layout):
        first = int(next(directory.blocks(layout.offsets))[0])
        if first < 1 << 32:
            entries[_STRIPOFFSETS] = directory.entry(_STRIPOFFSETS, first)
            entries[_ROWSPERSTRIP] = directory.entry(_ROWSPERSTRIP, directory.need(_LENGTH))
            entries.pop(_STRIPBYTECOUNTS, None)
            return 2 * layout.n_bytes // layout.length
    _check_count(layout, directory.entries[layout.offsets])
    offsets = np.sort(np.concatenate(list(directory.blocks(layout.offsets)))).astype(np.int64)
    # Pillow reads up to the next one, twice while it joins what it has read.
    gap = int(np.diff(offsets, append=directory.source.size).max())
    return layout.count * _RAW_SEGMENT_BYTES + 2 * max(gap, 0)


def _is_in_a_row(directory: _Directory, layout: _Layout) -> bool:
    """Return whether strips of one plane lie one behind the other."""
    if layout.offsets == _TILE_OFFSETS or directory.value(_PLANAR, 1) == _SEPARATE:
        return False
    last: int | None = None
    remaining = layout.count
    for block in directory.blocks(layout.offsets):
        offsets = block[:remaining].astype(np.int64)
        remaining -= len(offsets)
        if last is not None:
            offsets = np.insert(offsets, 0, last)
        if not (np.diff(offsets) == layout.n_bytes).all():
            return False
        if not remaining:
            return True
        last = int(offsets[-1])
    return False


def _check_count(layout: _Layout, entry: _Entry) -> None:
    if max(layout.count, entry.count) > MAX_SEGMENTS:
        raise ContainerError(
            f"a TIFF in {max(layout.count, entry.count)} strips or tiles; the limit is {MAX_SEGMENTS}"
        )


def _check_compressed(directory: _Directory, layout: _Layout, compression: int) -> int:
    """Return what strips or tiles take that are compressed."""
    source = directory.source
    _check_count(layout, directory.entries[layout.offsets])
    if layout.lengths not in directory.entries:
        raise ContainerError("a TIFF that does not say how long its strips are")
    _check_count(layout, directory.entries[layout.lengths])
    total = sum(int(block.sum()) for block in directory.blocks(layout.lengths))
    if total > 2 * source.size:  # else each could be all of the file, and decoding it take hours
        raise ContainerError("a TIFF whose strips are longer than the file")
    if compression == _JPEG:
        _check_jpegs(directory, layout)
    is_turned = directory.value(_FILL_ORDER, 1) == 2
    is_ycbcr = directory.value(_PHOTOMETRIC, 0) == _YCBCR
    return (
        # The file as a decoder gets it, and its bytes in the other order.
        source.size * (2 if is_turned else 1)
        + layout.count * _SEGMENT_BYTES
        + 2 * layout.n_bytes
        + (4 * layout.width * layout.length if is_ycbcr else 0)
        + (24 * layout.width if compression in _FAX else 0)
    )


def _check_jpegs(directory: _Directory, layout: _Layout) -> None:
    if layout.count > _MAX_JPEGS:
        raise ContainerError(f"a TIFF in {layout.count} strips or tiles of JPEG")
    remaining = layout.count
    for block in directory.blocks(layout.offsets):
        for offset in block[:remaining]:
            check_plain(directory.source, int(offset), layout.width)
        remaining -= len(block[:remaining])
