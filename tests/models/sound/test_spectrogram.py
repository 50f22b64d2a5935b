"""Log-mel spectrograms, beside the sums of their definition."""

import cmath
import math
import tracemalloc
from functools import lru_cache

import numpy as np
import pytest
from numpy.typing import NDArray

from models.sound.recipe import Sound
from models.sound.spectrogram import Waveform, mel_filters, work_bytes
from tests.examples import over
from tests.models.sounds import RECIPE, tone

SMALL = Sound(rate=1000, n_fft=16, hop=8, bins=5, frames=12)


def mel_of(hertz: float) -> float:
    """Slaney's scale, as its definition has it."""
    return 3 * hertz / 200 if hertz < 1000 else 15 + 27 * math.log(hertz / 1000) / math.log(6.4)


def hertz_of(mel: float) -> float:
    low, high = 0.0, 20_000.0
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if mel_of(middle) < mel else (low, middle)
    return low


@lru_cache(None)
def triangle(recipe: Sound, index: int, hertz: float) -> float:
    """Height of the triangle of bin ``index`` at ``hertz``, whose area in Hz is 1."""
    step = mel_of(8000) / (recipe.bins + 1)
    left, peak, right = (hertz_of(step * (index + more)) for more in range(3))
    height = 2 / (right - left)
    rising, falling = (hertz - left) / (peak - left), (right - hertz) / (right - peak)
    return height * max(0.0, min(rising, falling))


def reference(recipe: Sound, samples: NDArray[np.float32]) -> NDArray[np.float64]:
    """The spectrogram by its sums: what is missing is silence, both ends are mirrors."""
    half, count = recipe.n_fft // 2, recipe.n_samples
    heard = [*map(float, samples[:count]), *([0.0] * (count - len(samples)))]
    heard = [*heard[half:0:-1], *heard, *heard[-2 : -half - 2 : -1]]
    logs = np.zeros((recipe.bins, recipe.frames))
    for frame in range(recipe.frames):
        powers = []
        for frequency in range(half + 1):
            total = 0j
            for index in range(recipe.n_fft):
                window = 0.5 - 0.5 * math.cos(2 * math.pi * index / recipe.n_fft)
                phase = cmath.exp(-2j * math.pi * frequency * index / recipe.n_fft)
                total += heard[frame * recipe.hop + index] * window * phase
            powers.append(abs(total) ** 2)
        for row in range(recipe.bins):
            hertz = (index * (recipe.rate // 2) / half for index in range(half + 1))
            mel = sum(
                triangle(recipe, row, value) * power
                for value, power in zip(hertz, powers, strict=True)
            )
            logs[row, frame] = math.log10(max(mel, 1e-10))
    bounded: NDArray[np.float64] = np.maximum(logs, logs.max() - 8)
    return (bounded + 4) / 4


def spectrogram(recipe: Sound, samples: NDArray[np.float32]) -> NDArray[np.float32]:
    waveform = Waveform(recipe)
    for start in range(0, len(samples), 7):
        waveform.add(samples[start : start + 7])
    return waveform.log_mel()


@over("count", [1, 8, 40, 90, 95, 96, 97, 200])
def test_it_is_the_sums_of_its_definition(count: int) -> None:
    samples = tone(SMALL.rate, count / SMALL.rate)[:, 0]
    result = spectrogram(SMALL, samples)
    assert result.shape == SMALL.shape
    assert result.dtype == np.float32
    np.testing.assert_allclose(result[0], reference(SMALL, samples), atol=1e-6)


def test_silence_and_one_loud_sample() -> None:
    silence = np.zeros(50, np.float32)
    assert spectrogram(SMALL, silence).tolist() == np.full(SMALL.shape, -1.5).tolist()
    silence[20] = 1e30
    result = spectrogram(SMALL, silence)
    np.testing.assert_allclose(result[0], reference(SMALL, silence), rtol=1e-6)


def test_each_bin_of_whisper_has_an_area_of_one() -> None:
    recipe = Sound(rate=16_000, n_fft=400, hop=160, bins=80, frames=3000)
    filters = mel_filters(recipe)
    assert filters.shape == (80, 201)
    for row in (0, 1, 40, 79):
        expected = [triangle(recipe, row, 40.0 * index) for index in range(201)]
        np.testing.assert_allclose(filters[row], expected, atol=1e-9)


@pytest.mark.parametrize("n_samples", [159, 5000, 16_000, 16_001, 40_000])
def test_it_keeps_what_the_network_hears(n_samples: int) -> None:
    waveform = Waveform(RECIPE)
    samples = np.ones(n_samples, np.float32)
    for start in range(0, n_samples, 1000):
        waveform.add(samples[start : start + 1000])
    assert waveform.count == min(n_samples, RECIPE.n_samples)
    assert waveform.is_cut == (n_samples > RECIPE.n_samples)


def test_memory_is_as_counted() -> None:
    recipe = Sound(rate=16_000, n_fft=400, hop=160, bins=80, frames=400)
    waveform = Waveform(recipe)
    waveform.add(tone(recipe.rate, 4)[:, 0])
    tracemalloc.start()
    tensor = waveform.log_mel()
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert tensor.nbytes == recipe.tensor_bytes
    assert peak_bytes <= recipe.tensor_bytes + work_bytes(recipe)
