"""How a sound becomes the input of a network: its rate, and the spectrogram that is made of it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Literal

from models.network.fields import Array
from models.records import Bounds, PositiveInt, Record

#: Rates of sounds that are read, in samples a second: filters between others would take any memory.
MIN_RATE, MAX_RATE = 1_000, 768_000
# Of one sound: half an hour of Whisper's, and 128 MiB.
_MAX_SAMPLES = 1 << 25
_FLOAT_BYTES = 4

Rate = Annotated[int, Bounds(ge=MIN_RATE, le=MAX_RATE)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sound(Record):
    """How sounds become float32[1, bins, frames], as transformers' WhisperFeatureExtractor has it.

    ``rate``: samples a second. ``n_fft``: samples that a frame sees, ``hop``: from one to the next.
    ``bins``: triangles on the mel scale. ``normalisation``: of powers; "whisper": their log10, at most 8
    below the largest, plus 4, divided by 4.
    """

    rate: Rate
    n_fft: Annotated[int, Bounds(ge=2, le=1 << 14)]
    hop: PositiveInt
    bins: Annotated[int, Bounds(ge=1, le=1 << 10)]
    frames: PositiveInt
    normalisation: Literal["whisper"] = "whisper"

    @property
    def n_samples(self) -> int:
        """What the network hears of a sound: the rest is cut, and less is padded with zeros."""
        return self.frames * self.hop

    @property
    def seconds(self) -> float:
        return self.n_samples / self.rate

    @property
    def shape(self) -> tuple[int, int, int]:
        return 1, self.bins, self.frames

    @property
    def waveform_bytes(self) -> int:
        """What all samples take, with what is mirrored at both ends."""
        return _FLOAT_BYTES * (self.n_samples + self.n_fft)

    @property
    def tensor_bytes(self) -> int:
        return _FLOAT_BYTES * self.bins * self.frames

    @property
    def fault(self) -> str | None:
        """Why there is no such spectrogram; None: there is."""
        if self.n_fft % 2:
            return f"n_fft {self.n_fft}: odd"
        if not self.n_fft // 2 < self.n_samples <= _MAX_SAMPLES:
            return f"{self.n_samples:,} samples; from {self.n_fft // 2 + 1:,} to {_MAX_SAMPLES:,} may be"
        return None


def sound_fault(recipe: Sound, inputs: Mapping[str, Array]) -> str | None:
    """Return why a sound does not become ``inputs``, those that must be given; None: it does."""
    if recipe.fault:
        return f"sound: {recipe.fault}"
    if [(array.dtype, array.shape) for array in inputs.values()] == [("float32", recipe.shape)]:
        return None
    listed = ", ".join(
        f"{name!r} {array.dtype}{list(array.shape)}" for name, array in inputs.items()
    )
    return f"sound: it becomes float32{list(recipe.shape)}, the inputs are {listed}"
