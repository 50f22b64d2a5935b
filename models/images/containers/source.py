"""What readers of containers share: bytes at an offset, errors, limits, the file that a decoder gets."""

from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from io import SEEK_CUR, SEEK_END, SEEK_SET
from itertools import accumulate
from typing import BinaryIO

from models.images.placement import Size

#: Of EXIF's orientations, 1 to 8, that of a picture which nothing turns.
UPRIGHT = 1
#: Chunks, segments, blocks or strips that a file may have: each takes a step of Python to pass.
MAX_SEGMENTS = 1 << 16
_BLOCK_BYTES = 1 << 16


class ContainerError(Exception):
    """The file is damaged, or is of a kind that is not read; the message says why, without the file."""


class UnknownKindError(ContainerError):
    """The file is no picture, or none of a kind that is read."""


class EndError(ContainerError):
    """The file ends before what has to be read of it."""


class PictureSource:
    """The bytes of ``file``, which are read where they are needed.

    ``is_complete``: whether no more bytes come.
    """

    def __init__(self, file: BinaryIO, *, is_complete: bool = True) -> None:
        self.file, self.is_complete = file, is_complete
        self.size = file.seek(0, SEEK_END)

    def take(self, offset: int, count: int) -> bytes:
        """Return ``count`` bytes at ``offset``.

        Raises:
            EndError: the file does not have them.
        """
        if offset + count > self.size:
            raise EndError("the file is truncated")
        self.file.seek(offset)
        return self.file.read(count)

    def blocks(self, offset: int, overlap: int) -> Iterator[bytes]:
        """Yield blocks from ``offset`` on; each repeats the last ``overlap`` bytes of the one before."""
        while True:
            self.file.seek(offset)
            block = self.file.read(_BLOCK_BYTES)
            yield block
            if offset + len(block) >= self.size or len(block) <= overlap:
                return
            offset += len(block) - overlap


class Countdown:
    """Counts steps down from a limit, `MAX_SEGMENTS` where no other is given."""

    def __init__(self, what: str, limit: int | None = None) -> None:
        self._what, self._limit = what, MAX_SEGMENTS if limit is None else limit
        self._remaining = self._limit

    def step(self) -> None:
        """Count one.

        Raises:
            ContainerError: it is one too many.
        """
        self._remaining -= 1
        if self._remaining < 0:
            raise ContainerError(f"more than {self._limit} {self._what}")


@dataclass(frozen=True)
class DecoderView:
    """What a decoder gets: ``head``, then ``ranges`` of the file (half-open), then ``tail``."""

    head: bytes = b""
    ranges: Iterable[tuple[int, int]] = ()
    tail: bytes = b""


@dataclass(frozen=True)
class Container:
    """What the container of a picture says, before any of its pixels is decoded."""

    #: Pillow's name of the format.
    kind: str
    #: Width and height as stored, which ``orientation`` (of EXIF, 1 to 8) may turn.
    size: Size
    #: Bytes a pixel takes until it is RGB, upright or not.
    pixel_bytes: int
    #: Returns what a decoder gets, once the whole file is there; where that are several views, pixels that
    #: differ between them are not in the file. Raises ContainerError.
    views: Callable[[PictureSource], tuple[DecoderView, ...]]
    #: Bytes a decoder takes in addition to pixels, and to the file itself.
    work_bytes: int = 0
    orientation: int = UPRIGHT
    #: Whether the decoder makes smaller pixels in less memory: at a half, a quarter or an eighth.
    shrinks: bool = False


def full_file(source: PictureSource) -> tuple[DecoderView, ...]:
    """Return the file as it is."""
    return (DecoderView(ranges=((0, source.size),)),)


class ViewFile:
    """A file for reading that has the bytes of ``view`` of ``source``."""

    def __init__(self, source: PictureSource, view: DecoderView) -> None:
        self._file = source.file
        self._head, self._tail = view.head, view.tail
        self._starts = array("Q")
        lengths = array("Q")
        for start, end in view.ranges:
            self._starts.append(start)
            lengths.append(end - start)
        middle = accumulate(lengths, initial=len(self._head))
        #: Where head and ranges end.
        self._ends = array("Q", middle)
        self.size = self._ends[-1] + len(self._tail)
        self._position = 0

    def seek(self, offset: int, whence: int = SEEK_SET) -> int:
        """Set the position, as of files."""
        base = {SEEK_SET: 0, SEEK_CUR: self._position, SEEK_END: self.size}[whence]
        if base + offset < 0:
            raise OSError("negative position in the file")
        self._position = base + offset
        return self._position

    def tell(self) -> int:
        """Return the position."""
        return self._position

    def read(self, count: int | None = -1) -> bytes:
        """Return the next ``count`` bytes, fewer at the end."""
        end = self.size
        if count is not None and count >= 0:
            end = min(end, self._position + count)
        pieces = []
        while self._position < end:
            piece = self._piece(end)
            if not piece:
                break
            pieces.append(piece)
            self._position += len(piece)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def _piece(self, end: int) -> bytes:
        """Return bytes from the position on, at most to ``end``, of one part."""
        position, index = self._position, bisect_right(self._ends, self._position)
        if index == 0:
            return self._head[position:end]
        before = self._ends[index - 1]
        if index == len(self._ends):
            return self._tail[position - before : end - before]
        self._file.seek(self._starts[index - 1] + position - before)
        return self._file.read(min(end, self._ends[index]) - position)
