"""The log-mel spectrogram of samples, as transformers' WhisperFeatureExtractor makes it, in blocks.

Source: ``WhisperFeatureExtractor._np_extract_fbank_features`` and ``mel_filter_bank`` of transformers 5;
the mel scale and the areas of its triangles are those of M. Slaney's Auditory Toolbox.
"""

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from models.sound.recipe import Sound

Samples = NDArray[np.float32]
Reals = NDArray[np.float64]

# The scale is linear up to so many Hz, 15 steps, and from there 27 steps lead to 6.4 times as much.
_LINEAR_HZ, _LINEAR_STEPS = 1000.0, 15.0
_STEP = np.log(6.4) / 27.0
# Of Whisper, whatever the rate.
_MAX_HZ = 8000.0
# Powers are at least so much, then logarithms at most so much below the largest.
_FLOOR, _RANGE = 1e-10, 8.0
# Frames that are computed at once.
_BLOCK_FRAMES = 64
_REAL_BYTES = 8


class Waveform:
    """Samples of a sound as they come, at the rate of ``recipe``, between what is mirrored at their ends.

    A frame's middle is its sample: the first and the last see half a frame that is not there.
    """

    def __init__(self, recipe: Sound) -> None:
        self._recipe = recipe
        self._half = recipe.n_fft // 2
        self._samples = np.zeros(recipe.n_samples + recipe.n_fft, np.float32)
        #: What has come of what the network hears.
        self.count = 0
        #: Whether more came.
        self.is_cut = False

    def add(self, samples: Samples) -> None:
        """Take the next ``samples``, as many as there is room for."""
        heard = samples[: self._recipe.n_samples - self.count]
        start = self._half + self.count
        self._samples[start : start + len(heard)] = heard
        self.count += len(heard)
        self.is_cut = self.is_cut or len(heard) < len(samples)

    def log_mel(self) -> NDArray[np.float32]:
        """Return the spectrogram, float32[1, bins, frames]; takes ``work_bytes`` in addition."""
        recipe, half, samples = self._recipe, self._half, self._samples
        samples[:half] = samples[2 * half : half : -1]
        samples[len(samples) - half :] = samples[-half - 2 : -2 * half - 2 : -1]
        filters, window = mel_filters(recipe), np.hanning(recipe.n_fft + 1)[:-1]
        frames = sliding_window_view(samples, recipe.n_fft)[:: recipe.hop]
        tensor = np.full(recipe.shape, np.log10(_FLOOR), np.float32)
        # Those behind the last sample see zeros.
        end = min(recipe.frames, -(-(half + self.count) // recipe.hop))
        for start in range(0, end, _BLOCK_FRAMES):
            stop = min(start + _BLOCK_FRAMES, end)
            spectrum = np.fft.rfft(frames[start:stop] * window)
            power = np.square(spectrum.real) + np.square(spectrum.imag)
            # No matrix product: the library of those keeps memory for good.
            mel = np.einsum("bf,tf->bt", filters, power)
            tensor[0, :, start:stop] = np.log10(np.maximum(mel, _FLOOR))
        np.maximum(tensor, tensor.max() - np.float32(_RANGE), out=tensor)
        tensor += 4.0
        tensor /= 4.0
        return tensor


def work_bytes(recipe: Sound) -> int:
    """Return what ``Waveform.log_mel`` takes at most, without samples and spectrogram."""
    frequencies = recipe.n_fft // 2 + 1
    # Frames and their product with the window; complex numbers, twice; squares, twice, and their sum.
    frame = 2 * recipe.n_fft + (2 * 2 + 3) * frequencies + 3 * recipe.bins
    # The filters are made of two slopes.
    filters = 5 * recipe.bins * frequencies
    return _REAL_BYTES * (_BLOCK_FRAMES * frame + filters)


def mel_filters(recipe: Sound) -> Reals:
    """Return what each of the bins takes of each frequency, float64[bins, n_fft / 2 + 1]."""
    edges = _hertz(np.linspace(0.0, _mel(_MAX_HZ), recipe.bins + 2))
    frequencies = np.linspace(0.0, recipe.rate // 2, recipe.n_fft // 2 + 1)
    widths = np.diff(edges)[:, None]
    slopes = edges[:, None] - frequencies
    rising, falling = -slopes[:-2] / widths[:-1], slopes[2:] / widths[1:]
    triangles: Reals = np.maximum(0.0, np.minimum(rising, falling))
    triangles *= (2.0 / (edges[2:] - edges[:-2]))[:, None]
    return triangles


def _mel(hertz: float) -> float:
    """Return the step of ``hertz``, which are above the linear part."""
    return float(_LINEAR_STEPS + np.log(hertz / _LINEAR_HZ) / _STEP)


def _hertz(steps: Reals) -> Reals:
    above = _LINEAR_HZ * np.exp(_STEP * (steps - _LINEAR_STEPS))
    hertz: Reals = np.where(steps < _LINEAR_STEPS, steps * (_LINEAR_HZ / _LINEAR_STEPS), above)
    return hertz
