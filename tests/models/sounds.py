"""Files of sounds, and a tiny network that takes their spectrogram."""

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from models.compiler import CompileOptions, compile_onnx
from models.compiler.writing.hub_config import read_config
from models.sound.recipe import Sound
from tests.models.nets import parsed

#: A second of 16,000 samples, in 50 frames of 8 bins.
RECIPE = Sound(rate=16_000, n_fft=400, hop=320, bins=8, frames=50)
CONFIG: dict[str, Any] = {
    "feature_extractor_type": "WhisperFeatureExtractor",
    "feature_size": 8,
    "sampling_rate": 16_000,
    "hop_length": 320,
    "chunk_length": 1,
    "n_fft": 400,
    "padding_value": 0.0,
    "padding_side": "right",
    "return_attention_mask": False,
}
PCM, FLOAT, EXTENSIBLE = 1, 3, 0xFFFE


def tone(rate: int, seconds: float, channels: int = 1, seed: int = 0) -> NDArray[np.float32]:
    """Return tones and noise, float32[samples, channels]."""
    count = round(rate * seconds)
    noise = np.random.default_rng(seed).standard_normal((count, channels)) * 0.05
    times = np.arange(count)[:, None] / rate
    tones = 0.5 * np.sin(2 * np.pi * times * (440.0 + 110.0 * np.arange(channels)))
    return (tones + noise).astype(np.float32)


def encoded(samples: NDArray[np.float32], bits: int, codec: int = PCM) -> bytes:
    """Return the bytes of ``samples`` in a WAV file."""
    if codec == FLOAT:
        return bytes(samples.astype("<f4").data)
    integers = np.round(samples.astype(np.float64) * 2 ** (bits - 1))
    integers = np.clip(integers, -(2 ** (bits - 1)), 2 ** (bits - 1) - 1).astype("<i8")
    if bits == 8:
        return bytes((integers + 128).astype(np.uint8).data)
    rows = integers.reshape(-1, 1).view(np.uint8)
    return bytes(np.ascontiguousarray(rows[:, : bits // 8]).data)


def wav(
    samples: NDArray[np.float32],
    rate: int = 16_000,
    bits: int = 16,
    codec: int = PCM,
    claimed: int | None = None,
    extensible: bool = False,
) -> bytes:
    """Return a WAV file of ``samples``, float32[samples, channels]; ``claimed``: the length it says."""
    channels = samples.shape[1]
    data = encoded(samples, bits, codec)
    frame = channels * bits // 8
    fields = (EXTENSIBLE if extensible else codec, channels, rate, rate * frame, frame, bits)
    chunk = struct.pack("<HHIIHH", *fields)
    if extensible:
        chunk += struct.pack("<HHIH14s", 22, bits, 0, codec, bytes(14))
    length = len(data) if claimed is None else claimed
    chunks = (
        *(b"fmt ", struct.pack("<I", len(chunk)), chunk),
        *(b"LIST", struct.pack("<I", 5), b"a\0\0\0b\0"),  # of odd length
        *(b"data", struct.pack("<I", length), data),
    )
    body = b"WAVE" + b"".join(chunks)
    return b"RIFF" + struct.pack("<I", min(len(body), 0xFFFFFFFF)) + body


def listener(recipe: Sound = RECIPE, labels: int = 3) -> onnx.ModelProto:
    """Return a network of a spectrogram: scores of it all."""
    return parsed(
        f"g (float[1,{recipe.bins},{recipe.frames}] input_features) => (float[1,{labels}] logits) {{"
        " t = Tanh(input_features) m = ReduceMean<axes=[2], keepdims=0>(t) logits = MatMul(m, w) }",
        {"w": (recipe.bins, labels)},
    )


def compile_listener(folder: Path, name: str = "ear", **options: Any) -> Path:
    """Compile the network with a preprocessor_config.json to ``folder``/repository/NAME."""
    folder.mkdir(parents=True, exist_ok=True)
    config = folder / "preprocessor_config.json"
    config.write_text(json.dumps(CONFIG))
    onnx.save(listener(), folder / f"{name}.onnx")
    pack = folder / "repository" / name
    options = {"configs": (read_config(config),), **options}
    compile_onnx(folder / f"{name}.onnx", pack, CompileOptions(**options))
    return pack
