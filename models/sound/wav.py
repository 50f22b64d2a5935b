"""WAV files: integers of 8 to 32 bits and floats of 32, in any number of channels.

Nothing that a header says of lengths is trusted: there are as many samples as there are bytes of them. The
standard library's ``wave`` reads no floats, and no files of other programs that Python 3.11 does not know.
Source: Microsoft, "Multimedia Programming Interface and Data Specifications 1.0", and WAVEFORMATEXTENSIBLE.
"""

import math
import struct
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from models.errors import ModelError
from models.sound.recipe import MAX_RATE, MIN_RATE
from models.sound.spectrogram import Samples

_RIFF = (b"RIFF", b"RF64", b"BW64")
_CHUNK = struct.Struct("<4sI")
_FORMAT = struct.Struct("<HHIIHH")
_HEAD_BYTES = 12
# Behind the first fields: their count, bits that are used, places of speakers; then the codec.
_SUBFORMAT_AT = _FORMAT.size + 8
_PCM, _FLOAT, _EXTENSIBLE = 1, 3, 0xFFFE
#: Chunks before the samples: a file may be made of empty ones.
_MAX_CHUNKS = 1000
MAX_CHANNELS = 256


class SoundError(ModelError):
    """A file is no sound that is read."""


class WavFormat(NamedTuple):
    """What the header says: ``codec`` and ``bits`` of a sample, ``rate``: samples a second."""

    codec: int
    channels: int
    rate: int
    bits: int

    @property
    def frame_bytes(self) -> int:
        """What one sample of all channels takes."""
        return self.channels * self.bits // 8


def _bytes_8(data: NDArray[np.uint8]) -> Samples:
    return (data.astype(np.float32) - np.float32(128)) / np.float32(128)


def _integers_24(data: NDArray[np.uint8]) -> Samples:
    wide = np.zeros((len(data) // 3, 4), np.uint8)
    wide[:, 1:] = data.reshape(-1, 3)
    return _scaled(wide.view("<i4").reshape(-1), 32)


def _scaled(values: NDArray[Any], bits: int) -> Samples:
    return values.astype(np.float32) * np.float32(2.0 ** (1 - bits))


def _floats(data: NDArray[np.uint8]) -> Samples:
    samples: Samples = data.view("<f4").astype(np.float32)
    if not np.isfinite(samples).all():
        raise SoundError("it has samples that are NaN or infinite")
    return samples


_CODECS: Mapping[tuple[int, int], Callable[[NDArray[np.uint8]], Samples]] = {
    (_PCM, 8): _bytes_8,
    (_PCM, 16): lambda data: _scaled(data.view("<i2"), 16),
    (_PCM, 24): _integers_24,
    (_PCM, 32): lambda data: _scaled(data.view("<i4"), 32),
    (_FLOAT, 32): _floats,
}


def is_wav(head: bytes | memoryview) -> bool:
    """Return whether a file that begins with ``head`` says that it is WAV."""
    return bytes(head[:4]) in _RIFF and bytes(head[8:_HEAD_BYTES]) == b"WAVE"


class WavFile:
    """The WAV file ``data``, or its beginning.

    Raises:
        SoundError: it is none, or of a codec that is not read.
    """

    def __init__(self, data: memoryview) -> None:
        if not is_wav(data):
            raise SoundError("not WAV")
        self.header, self._samples, self._start = _parsed(data)

    @property
    def rate(self) -> int:
        return self.header.rate

    @property
    def channels(self) -> int:
        return self.header.channels

    def bytes_of(self, seconds: float) -> int:
        """Return how long a beginning of the file has so many seconds of samples."""
        return self._start + math.ceil(seconds * self.rate) * self.header.frame_bytes

    def blocks(self, n_frames: int) -> Iterator[Samples]:
        """Yield the samples, float32[frames, channels], from -1 to 1; at most ``n_frames`` at once.

        Raises:
            SoundError: floats are no numbers.
        """
        size, convert = self.header.frame_bytes, _CODECS[self.header.codec, self.header.bits]
        n_bytes = len(self._samples) // size * size
        for start in range(0, n_bytes, n_frames * size):
            block = self._samples[start : min(start + n_frames * size, n_bytes)]
            yield convert(np.frombuffer(block, np.uint8)).reshape(-1, self.header.channels)


def _parsed(data: memoryview) -> tuple[WavFormat, memoryview, int]:
    """Return the format, the samples that are there, and where they begin."""
    header: WavFormat | None = None
    position = _HEAD_BYTES
    for _ in range(_MAX_CHUNKS):
        if position + _CHUNK.size > len(data):
            raise SoundError("damaged WAV: it ends before its samples")
        kind, length = _CHUNK.unpack_from(data, position)
        position += _CHUNK.size
        if kind == b"data":
            if header is None:
                raise SoundError("damaged WAV: no format before the samples")
            return header, data[position : position + length], position
        if kind == b"fmt ":
            header = _format(data[position : position + length])
        position += length + length % 2
    raise SoundError(f"damaged WAV: more than {_MAX_CHUNKS:,} chunks before its samples")


def _format(chunk: memoryview) -> WavFormat:
    if len(chunk) < _FORMAT.size:
        raise SoundError(f"damaged WAV: its format has {len(chunk)} bytes of {_FORMAT.size}")
    codec, channels, rate, _, frame_bytes, bits = _FORMAT.unpack_from(chunk)
    if codec == _EXTENSIBLE and len(chunk) >= _SUBFORMAT_AT + 2:
        (codec,) = struct.unpack_from("<H", chunk, _SUBFORMAT_AT)
    header = WavFormat(codec, channels, rate, bits)
    if (codec, bits) not in _CODECS:
        raise SoundError(
            f"WAV of codec {codec:#06x} with {bits} bits; integers of 8, 16, 24, 32 bits (0x0001) and "
            "floats of 32 (0x0003) are read"
        )
    if not 1 <= channels <= MAX_CHANNELS:
        raise SoundError(f"damaged WAV: {channels} channels; 1 to {MAX_CHANNELS} are read")
    if frame_bytes != header.frame_bytes:
        raise SoundError(
            f"damaged WAV: {frame_bytes} bytes for {channels} channels of {bits} bits each"
        )
    check_rate(rate)
    return header


def check_rate(rate: int) -> None:
    """Check that sounds of so many samples a second are read.

    Raises:
        SoundError: they are not.
    """
    if not MIN_RATE <= rate <= MAX_RATE:
        raise SoundError(f"{rate:,} samples a second; {MIN_RATE:,} to {MAX_RATE:,} are read")
