"""Titles and pictures in files of sound: they are passed over, or counted, before a library sees the file.

Libraries keep them in memory, which takes up to twice what they take in the file (libsndfile 1.2).
"""

import io
import struct
from typing import Any

from models.sound.wav import SoundError

_FLAC, _ID3, _OGG = b"fLaC", b"ID3", b"OggS"
# Of FLAC: the header of a block, the first block, which says what samples are, and the mark of the last.
_BLOCK, _STREAM_BYTES, _LAST = 4, 34, 0x80
_ID3_BYTES, _ID3_FOOTER = 10, 0x10
# Of Ogg: what precedes the lengths of a page's segments. A segment of 255 bytes goes on in the next.
_PAGE = struct.Struct("<4sBBqIIIB")
_GOES_ON = 255
#: Of one packet: titles are one, and samples take less.
_MAX_PACKET_BYTES = 256 << 10
_MAX_BLOCKS, _MAX_STREAMS = 1000, 16


def without_tags(file: io.BytesIO) -> io.RawIOBase:
    """Return ``file``, of FLAC, Ogg or MP3, without its tags; bytes of it may be written over.

    Raises:
        SoundError: it is damaged, or its tags cannot be passed over and are too large.
    """
    with file.getbuffer() as data:
        start = _end_of_id3(data)
        if data[start : start + len(_FLAC)] == _FLAC:
            start = _join_flac(data, start)
        elif data[start : start + len(_OGG)] == _OGG:
            _check_packets(data, start)
    return _Tail(file, start)


def _end_of_id3(data: memoryview) -> int:
    """Return where the tags at the beginning of an MP3 file end."""
    position = 0
    for _ in range(_MAX_BLOCKS):
        head = data[position : position + _ID3_BYTES]
        if len(head) < _ID3_BYTES or head[:3] != _ID3:
            return position
        length = 0
        for byte in head[6:]:
            length = length << 7 | byte & 0x7F
        footer_bytes = _ID3_BYTES if head[5] & _ID3_FOOTER else 0
        position += _ID3_BYTES + length + footer_bytes
    raise SoundError(f"damaged: more than {_MAX_BLOCKS:,} tags")


def _join_flac(data: memoryview, start: int) -> int:
    """Put the first block of a FLAC file right before its samples; return where it begins then."""
    first = start + len(_FLAC)
    stream = bytes(data[first : first + _BLOCK + _STREAM_BYTES])
    position = first
    for _ in range(_MAX_BLOCKS):
        head = bytes(data[position : position + _BLOCK])
        position += _BLOCK + int.from_bytes(head[1:], "big")
        if position > len(data) or len(head) < _BLOCK:
            raise SoundError("damaged FLAC: it ends before its samples")
        if head[0] & _LAST:
            break
    else:
        raise SoundError(f"damaged FLAC: more than {_MAX_BLOCKS:,} blocks before its samples")
    if stream[:_BLOCK] not in (b"\0\0\0\x22", b"\x80\0\0\x22"):
        raise SoundError("damaged FLAC: its first block does not say what its samples are")
    begin = position - len(stream) - len(_FLAC)
    data[begin:position] = _FLAC + bytes([_LAST]) + stream[1:]
    return begin


def _check_packets(data: memoryview, start: int) -> None:
    """Check that no packet of an Ogg file is too large; raises SoundError."""
    lengths: dict[int, int] = {}
    position = start
    while position + _PAGE.size <= len(data):
        magic, *_, serial, _, _, count = _PAGE.unpack_from(data, position)
        if magic != _OGG:
            raise SoundError("damaged Ogg: something lies between its pages")
        position += _PAGE.size
        segments = data[position : position + count]
        length = lengths.get(serial, 0)
        for segment in segments:
            length += segment
            if length > _MAX_PACKET_BYTES:
                raise SoundError(
                    f"Ogg: titles and pictures of more than {_MAX_PACKET_BYTES:,} bytes are not read"
                )
            if segment != _GOES_ON:
                length = 0
        lengths[serial] = length
        if len(lengths) > _MAX_STREAMS:
            raise SoundError(f"Ogg: more than {_MAX_STREAMS} streams")
        position += count + sum(segments)


class _Tail(io.RawIOBase):
    """``file`` from ``start`` on."""

    def __init__(self, file: io.BytesIO, start: int) -> None:
        self._file, self._start = file, start
        self.seek(0)

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        return self._file.readinto(buffer)

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        if whence == io.SEEK_CUR:
            offset += self._file.tell()
        elif whence == io.SEEK_END:
            offset += self._file.getbuffer().nbytes
        else:
            offset += self._start
        # The library seeks wherever a damaged file says.
        return self._file.seek(max(offset, self._start)) - self._start
