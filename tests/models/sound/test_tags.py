"""Titles and pictures in FLAC, Ogg and MP3: none of them reaches a library."""

import io
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from models.sound.tags import without_tags
from models.sound.wav import SoundError
from tests.examples import over

STREAM = bytes(range(34))


def block(kind: int, data: bytes, last: bool = False) -> bytes:
    return bytes([kind | 0x80 * last]) + len(data).to_bytes(3, "big") + data


def id3(n_bytes: int, footer: bool = False) -> bytes:
    length = bytes(n_bytes >> shift & 0x7F for shift in (21, 14, 7, 0))
    head = bytes([4, 0, 0x10 * footer]) + length
    return b"ID3" + head + bytes(n_bytes) + (b"3DI" + head) * footer


def page(serial: int, segments: bytes) -> bytes:
    head = struct.pack("<4sBBqIIIB", b"OggS", 0, 0, 0, serial, 0, 0, len(segments))
    return head + segments + bytes(sum(segments))


def read(data: bytes) -> bytes:
    return without_tags(io.BytesIO(data)).read()


def test_flac_has_its_first_block_and_its_samples() -> None:
    expected = b"fLaC" + block(0, STREAM, last=True) + b"samples"
    tags = block(4, b"title" * 99), block(6, bytes(70_000)), block(1, b"")
    for count in range(4):
        blocks = [block(0, STREAM), *tags[:count]]
        blocks[-1] = bytes([blocks[-1][0] | 0x80]) + blocks[-1][1:]
        data = b"fLaC" + b"".join(blocks) + b"samples"
        assert read(data) == expected
        assert read(id3(300) + data) == expected


def test_mp3_begins_after_its_tags() -> None:
    assert read(b"\xff\xfbsamples") == b"\xff\xfbsamples"
    assert read(id3(1000) + id3(200_000, footer=True) + b"\xff\xfbsamples") == b"\xff\xfbsamples"
    assert read(id3(1000)[:50]) == b""


def test_ogg_is_as_it_was() -> None:
    data = page(1, b"\x1e") + page(1, b"\xff" * 255) * 3 + page(2, b"\x05") + page(1, b"\xff\x07")
    assert read(data) == data
    assert read(data[:-4]) == data[:-4]


@over(
    "data, reason",
    [
        (b"fLaC", "ends before its samples"),
        (b"fLaC" + block(0, STREAM), "ends before its samples"),
        (b"fLaC" + block(0, STREAM, last=True)[:-1], "ends before its samples"),
        (b"fLaC" + block(4, STREAM, last=True), "first block"),
        (b"fLaC" + block(0, STREAM[1:], last=True), "first block"),
        (b"fLaC" + block(0, STREAM) + block(1, b"") * 1000, "1,000 blocks"),
        (id3(0) * 1001, "1,000 tags"),
        (page(1, b"\xff" * 255) * 5, "262,144 bytes"),
        (b"".join(page(1, b"\xff" * 255) + page(2, b"\x01") for _ in range(5)), "262,144 bytes"),
        (page(1, b"\x09") + b"?" + page(1, b"\x09"), "between its pages"),
        (b"".join(page(serial, b"\x01") for serial in range(17)), "16 streams"),
    ],
)
def test_what_is_damaged_or_too_large_is_refused(data: bytes, reason: str) -> None:
    with pytest.raises(SoundError, match=reason):
        read(data)


@given(st.integers(-99, 99), st.sampled_from([io.SEEK_SET, io.SEEK_CUR, io.SEEK_END]))
def test_no_offset_is_before_the_beginning(offset: int, whence: int) -> None:
    file = without_tags(io.BytesIO(id3(20) + b"0123456789"))
    file.seek(5)
    position = {io.SEEK_SET: 0, io.SEEK_CUR: 5, io.SEEK_END: 10}[whence] + offset
    assert file.seek(offset, whence) == max(position, 0) == file.tell()
    assert file.read(3) == b"0123456789"[max(position, 0) :][:3]
