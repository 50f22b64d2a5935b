"""WAV files: every format that is read, and what is wrong with others."""

import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from models.sound.wav import MAX_CHANNELS, SoundError, WavFile, is_wav
from tests.examples import over
from tests.models.sounds import FLOAT, PCM, tone, wav


def read(data: bytes, n_frames: int = 100) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    file = WavFile(memoryview(data))
    blocks = [*file.blocks(n_frames)]
    assert all(0 < len(block) <= n_frames for block in blocks)
    return np.concatenate([np.zeros((0, file.channels), np.float32), *blocks])


@over(
    "bits, codec",
    [(8, PCM), (16, PCM), (24, PCM), (32, PCM), (32, FLOAT)],
)
def test_samples_are_those_that_were_written(bits: int, codec: int) -> None:
    for channels in (1, 2, 6):
        samples = tone(8000, 0.05, channels)
        for extensible in (False, True):
            data = wav(samples, 8000, bits, codec, extensible=extensible)
            assert is_wav(data[:12])
            assert WavFile(memoryview(data)).rate == 8000
            step = 0.0 if codec == FLOAT else 2.0 ** (1 - bits)
            np.testing.assert_allclose(read(data), samples, atol=step / 2 + 1e-7)


def test_the_ends_of_integers() -> None:
    ends = np.array([[-1.0], [0.0], [1.0]], np.float32)
    for bits in (8, 16, 24, 32):
        low, zero, high = read(wav(ends, bits=bits))[:, 0]
        assert (low, zero) == (-1, 0)
        assert 1 - 2.0 ** (1 - bits) - 1e-7 <= high <= 1


@over("claimed", [0xFFFFFFFF, 0x7FFFFFFF, 4_000_000_000, 321, 320])
def test_a_length_that_is_claimed_is_bounded_by_what_is_there(claimed: int) -> None:
    samples = tone(16_000, 0.01)
    assert read(wav(samples, claimed=claimed)).shape == samples.shape


def test_half_a_frame_at_the_end_is_skipped() -> None:
    assert read(wav(tone(16_000, 0.01, 2))[:-3]).shape == (159, 2)


def _format(**changes: int) -> bytes:
    fields = {"codec": 1, "channels": 1, "rate": 16_000, "pace": 32_000, "frame": 2, "bits": 16}
    return struct.pack("<HHIIHH", *{**fields, **changes}.values())


def _file(*chunks: tuple[bytes, bytes]) -> bytes:
    pieces = (name + struct.pack("<I", len(data)) + data for name, data in chunks)
    return b"RIFF\0\0\0\0WAVE" + b"".join(pieces)


@over(
    "data, reason",
    [
        (b"", "not WAV"),
        (b"RIFF\0\0\0\0AVI ", "not WAV"),
        (_file(), "ends before its samples"),
        (_file((b"fmt ", _format())), "ends before its samples"),
        (_file((b"data", b"\0\0")), "no format before the samples"),
        (_file((b"fmt ", _format()[:15])), "15 bytes of 16"),
        (_file((b"fmt ", _format(codec=0x55))), "codec 0x0055 with 16 bits"),
        (_file((b"fmt ", _format(codec=0xFFFE))), "codec 0xfffe"),
        (_file((b"fmt ", _format(bits=0))), "with 0 bits"),
        (_file((b"fmt ", _format(bits=12))), "with 12 bits"),
        (_file((b"fmt ", _format(channels=0))), "0 channels"),
        (_file((b"fmt ", _format(channels=MAX_CHANNELS + 1))), "257 channels"),
        (_file((b"fmt ", _format(frame=3))), "3 bytes for 1 channels of 16 bits"),
        (_file((b"fmt ", _format(rate=0))), "0 samples a second"),
        (_file((b"fmt ", _format(rate=0xFFFFFFFF))), "4,294,967,295 samples a second"),
        (_file(*[(b"junk", b"")] * 1001), "1,000 chunks"),
    ],
)
def test_the_error_names_what_is_wrong(data: bytes, reason: str) -> None:
    with pytest.raises(SoundError, match=reason):
        WavFile(memoryview(data))


@over("value", [float("nan"), float("inf"), float("-inf")])
def test_floats_that_are_no_numbers_are_refused(value: float) -> None:
    data = wav(np.array([[0.0], [value]], np.float32), bits=32, codec=FLOAT)
    with pytest.raises(SoundError, match="NaN or infinite"):
        read(data)


@given(st.data())
def test_any_bytes_are_read_or_refused(data: st.DataObject) -> None:
    complete = wav(tone(16_000, 0.01, 2), bits=data.draw(st.sampled_from([8, 16, 24, 32])))
    start = data.draw(st.integers(0, 60))
    change = data.draw(st.binary(max_size=8))
    damaged = (complete[:start] + change + complete[start + len(change) :])[
        : data.draw(st.integers(0, len(complete)))
    ]
    try:
        samples, reason = read(damaged), "read"
    except SoundError as exc:
        samples, reason = np.zeros((0, 1), np.float32), str(exc)
    assert samples.nbytes <= 4 * len(damaged)
    assert reason.isprintable()
    assert len(reason) < 200
