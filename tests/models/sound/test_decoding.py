"""Files of sound to samples of one channel at the network's rate."""

import io
import subprocess
import sys
from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest

from models.sound.decoding import NoSoundLibraryError, decoding_bytes, file_limit, waveform
from models.sound.wav import SoundError
from tests.examples import over
from tests.models.sounds import RECIPE, tone, wav

needs_extra = pytest.mark.skipif(
    find_spec("soxr") is None or find_spec("soundfile") is None,
    reason="the extra `sound` is not installed",
)


def test_channels_are_mixed_and_what_is_more_is_cut() -> None:
    for seconds in (0.25, 1.0, 2.5):
        samples = tone(RECIPE.rate, seconds, 2)
        result = waveform(io.BytesIO(wav(samples)), RECIPE)
        assert result.count == min(len(samples), RECIPE.n_samples)
        assert result.is_cut == (seconds > 1)
        half = RECIPE.n_fft // 2
        heard = result._samples[half : half + result.count]
        np.testing.assert_allclose(heard, samples.mean(axis=1)[: result.count], atol=1e-4)


@over(
    "data, reason",
    [
        (b"\0", "not WAV, FLAC, Ogg or MP3"),
        (b"FORM\0\0\0\0AIFF", "not WAV, FLAC, Ogg or MP3"),
        (wav(np.zeros((0, 1), np.float32)), "no samples"),
        (wav(tone(16_000, 0.1), claimed=0), "no samples"),
        (wav(tone(16_000, 0.1))[:-3199], "no samples"),
    ],
)
def test_what_is_no_sound_is_refused(data: bytes, reason: str) -> None:
    with pytest.raises(SoundError, match=reason):
        waveform(io.BytesIO(data), RECIPE)


def test_without_the_extra_an_error_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "soxr", None)
    monkeypatch.setitem(sys.modules, "soundfile", None)
    for data in (wav(tone(8000, 0.1), 8000), b"fLaC\0\0\0\0", b"OggS", b"ID3", b"\xff\xfb\x90\0"):
        with pytest.raises(NoSoundLibraryError, match=r"pip install '\.\[sound\]'"):
            waveform(io.BytesIO(data), RECIPE)
    assert waveform(io.BytesIO(wav(tone(16_000, 0.1))), RECIPE).count == 1600


def test_more_memory_is_counted_where_libraries_work() -> None:
    same, other = (decoding_bytes(wav(tone(rate, 0.01), rate), RECIPE) for rate in (16_000, 8000))
    assert same < other < decoding_bytes(b"fLaC", RECIPE)
    assert decoding_bytes(b"RIFF\0\0\0\0WAVE", RECIPE) == other  # its rate comes later


def test_of_a_long_wav_the_file_limit_shows_that_it_is_cut() -> None:
    data = wav(tone(8000, 4, 2), 8000)
    limit = file_limit(data[:100], RECIPE)
    assert limit is not None
    assert len(data) / 2 < limit < len(data) / 2 + 100
    assert waveform(io.BytesIO(wav(tone(16_000, 4))[:64_100]), RECIPE).is_cut
    assert file_limit(data[:20], RECIPE) is None
    assert file_limit(b"fLaC", RECIPE) is None


@pytest.mark.slow
def test_nothing_is_imported_before_it_is_needed() -> None:
    program = (
        "import sys, server.serve, server.protocol.sounds\n"
        "print(*sorted({'soxr', 'soundfile', 'cffi', 'wave', 'scipy'} & sys.modules.keys()))"
    )
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


@needs_extra
@pytest.mark.parametrize(("rate", "channels"), [(8000, 1), (44_100, 2), (48_000, 6), (1000, 1)])
def test_other_rates_become_the_networks(rate: int, channels: int) -> None:
    import soxr

    samples = tone(rate, 0.7, channels)
    result = waveform(io.BytesIO(wav(samples, rate, 24)), RECIPE)
    expected = soxr.resample(samples.mean(axis=1), rate, RECIPE.rate)
    half = RECIPE.n_fft // 2
    np.testing.assert_allclose(result._samples[half : half + result.count], expected, atol=1e-5)


@needs_extra
@pytest.mark.parametrize(
    ("kind", "subtype"),
    [("FLAC", "PCM_16"), ("OGG", "VORBIS"), ("OGG", "OPUS"), ("MP3", "MPEG_LAYER_III")],
)
def test_other_files_are_read_complete_and_damaged(kind: str, subtype: str) -> None:
    import soundfile

    file: Any = io.BytesIO()
    soundfile.write(file, tone(48_000, 0.5, 2), 48_000, format=kind, subtype=subtype)
    data = file.getvalue()
    result = waveform(io.BytesIO(data), RECIPE)
    assert abs(result.count - 8000) <= 1600
    for length in (4, 40, len(data) // 2):
        count, reason = result.count, "read"
        try:
            count = waveform(io.BytesIO(data[:length]), RECIPE).count
        except SoundError as exc:
            reason = str(exc)
        assert reason.isprintable()
        assert 0 < count <= result.count
