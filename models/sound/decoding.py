"""Files of sound to samples of one channel, at the rate of a network.

WAV is read here; FLAC, Ogg and MP3 by ``soundfile``, other rates become the network's by ``soxr``: both are
imported where first used.
"""

from collections.abc import Iterator
from io import BytesIO
from typing import Any, Protocol

import numpy as np

from models.sound.recipe import Sound
from models.sound.spectrogram import Samples, Waveform
from models.sound.tags import without_tags
from models.sound.wav import MAX_CHANNELS, SoundError, WavFile, check_rate, is_wav

#: How to get the libraries.
INSTALL = "pip install '.[sound]' in a clone of Layerstream"
# Of samples at once, of all channels, and frames at most: of a low rate many come out.
_BLOCK_SAMPLES, _MAX_FRAMES = 16 << 10, 2048
# Of a block: bytes of a file, samples of 32 bits and their mean, twice each.
_BLOCK_BYTES = 16 * _BLOCK_SAMPLES + 16 * 4 * MAX_CHANNELS
# Peaks of anonymous memory: soxr 1.1 (0.3 MB from 44,100 Hz, 0.9 from 1,000); soundfile 0.14 and
# libsndfile: 2.3 MB with their code and a stream of MP3, 8.2 with one of Vorbis in 255 channels; a block of
# FLAC takes less (65,535 samples of 8 channels).
_RESAMPLER_BYTES = 3 << 19
_LIBRARY_BYTES, _MPEG_BYTES = 8 << 20, 3 << 20
# Behind what is heard: it shows that there is more, when it has passed the filter of a resampler.
_MORE_SECONDS = 1.0
# How files begin that the library reads.
_STARTS = (b"fLaC", b"OggS", b"ID3")
_FORMATS = ("FLAC", "OGG", "MP3", "MPEG")


class NoSoundLibraryError(SoundError):
    """The library that reads such a file, or makes its rate the network's, is not installed."""


class _Reader(Protocol):
    @property
    def rate(self) -> int: ...
    @property
    def channels(self) -> int: ...
    def blocks(self, n_frames: int) -> Iterator[Samples]: ...


def waveform(file: BytesIO, recipe: Sound) -> Waveform:
    """Return the samples of the sound ``file``, the mean of its channels, at the rate of ``recipe``.

    What the network does not hear is not read. Blocks; takes ``decoding_bytes`` in addition to the file.

    Raises:
        SoundError: it is no sound that is read, or has no samples. NoSoundLibraryError: a library is not
            installed.
    """
    with file.getbuffer() as data:
        if is_wav(data):
            return _heard(WavFile(data), recipe)
        _is_mpeg(bytes(data[:4]))
    return _heard(_LibraryFile(file), recipe)


def decoding_bytes(head: bytes, recipe: Sound) -> int:
    """Return what decoding a file that begins with ``head`` takes in addition to it, with its samples.

    Raises:
        SoundError: it is no kind of file that is read.
    """
    if not is_wav(head):
        return wav_bytes(recipe) + (_MPEG_BYTES if _is_mpeg(head) else _LIBRARY_BYTES)
    try:
        return wav_bytes(recipe, WavFile(memoryview(head)).rate)
    except SoundError:  # its samples begin later, or it will be refused
        return wav_bytes(recipe)


def file_limit(head: bytes, recipe: Sound) -> int | None:
    """Return how much of a file that begins with ``head`` is decoded at most; None: all of it may be."""
    try:
        return WavFile(memoryview(head)).bytes_of(recipe.seconds + _MORE_SECONDS)
    except SoundError:
        return None


def wav_bytes(recipe: Sound, rate: int | None = None) -> int:
    """Return what decoding a WAV file of this ``rate``, or of any, takes, without the file."""
    more_bytes = 0 if rate == recipe.rate else _RESAMPLER_BYTES
    return recipe.waveform_bytes + _BLOCK_BYTES + more_bytes


def _is_mpeg(start: bytes) -> bool:
    """Return whether a file for the library, which begins with ``start``, has frames of MPEG at once.

    Raises:
        SoundError: it is none for the library.
    """
    is_mpeg = len(start) > 1 and start[0] == 0xFF and start[1] & 0xE0 == 0xE0
    if not is_mpeg and not start.startswith(_STARTS):
        raise SoundError("not WAV, FLAC, Ogg or MP3")
    return is_mpeg


def _heard(reader: _Reader, recipe: Sound) -> Waveform:
    samples = Waveform(recipe)
    for block in _resampled(reader, recipe.rate):
        samples.add(block)
        if samples.is_cut:
            break
    if not samples.count:
        raise SoundError("it has no samples")
    return samples


def _resampled(reader: _Reader, rate: int) -> Iterator[Samples]:
    """Yield the mean of the channels at this ``rate``."""
    if reader.rate == rate:
        yield from _mixed(reader)
        return
    try:
        import soxr
    except ImportError as exc:
        raise NoSoundLibraryError(
            f"its rate is {reader.rate:,} and the model's {rate:,} Hz; the library that changes it is "
            f"missing: {INSTALL}"
        ) from exc
    stream = soxr.ResampleStream(reader.rate, rate, 1, dtype="float32")
    for block in _mixed(reader):
        yield stream.resample_chunk(block)
    yield stream.resample_chunk(np.zeros(0, np.float32), last=True)


def _mixed(reader: _Reader) -> Iterator[Samples]:
    n_frames = max(min(_MAX_FRAMES, _BLOCK_SAMPLES // reader.channels), 1)
    for block in reader.blocks(n_frames):
        yield block.mean(axis=1, dtype=np.float32)


class _LibraryFile:
    """A file as libsndfile reads it.

    Raises:
        SoundError: it does not read it. NoSoundLibraryError: it is not there.
    """

    def __init__(self, file: BytesIO) -> None:
        try:
            import soundfile
        except (ImportError, OSError) as exc:  # OSError: the library beside its package
            raise NoSoundLibraryError(
                f"FLAC, Ogg or MP3: the library that reads it is missing: {INSTALL}"
            ) from exc
        self._error: type[Exception] = soundfile.SoundFileError
        tail = without_tags(file)
        try:
            self._file: Any = soundfile.SoundFile(tail)
        except self._error as exc:
            raise SoundError(f"damaged, or of a codec that is not known: {exc}") from exc
        if self._file.format not in _FORMATS:
            raise SoundError(f"{self._file.format}; WAV, FLAC, Ogg and MP3 are read")
        self.channels: int = self._file.channels
        if not 1 <= self.channels <= MAX_CHANNELS:
            raise SoundError(f"{self.channels} channels; 1 to {MAX_CHANNELS} are read")
        self.rate: int = self._file.samplerate
        check_rate(self.rate)

    def blocks(self, n_frames: int) -> Iterator[Samples]:
        """Yield the samples, float32[frames, channels]; raises SoundError where they are damaged."""
        while True:
            try:
                block: Samples = self._file.read(n_frames, dtype="float32", always_2d=True)
            except self._error as exc:
                raise SoundError(f"damaged: {exc}") from exc
            if not len(block):
                return
            if not np.isfinite(block).all():
                raise SoundError("it has samples that are NaN or infinite")
            yield block
