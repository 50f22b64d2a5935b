"""Fuzz what is read of sounds: ``python -m tests.fuzz.sounds [seconds] [first] [--minutes N]``.

Each example damages a WAV file, and a file of other kinds where the extra ``sound`` is installed, and a
preprocessor_config.json. A file has no more samples than bytes, and a finite spectrogram, or a short reason
why not; a recipe is one that can be computed, or there is a reason.
"""

import io
import json
import random
import struct
import sys
import tempfile
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from models.compiler.writing.hub_config import read_config
from models.sound.decoding import decoding_bytes, waveform
from models.sound.recipe import MAX_RATE, MIN_RATE
from models.sound.wav import SoundError, WavFile, is_wav
from tests.fuzz.pack import change_bytes, chosen_run, run_examples
from tests.fuzz.texts import changed, check
from tests.models.sounds import CONFIG, FLOAT, PCM, RECIPE, tone, wav

_KINDS = (("FLAC", "PCM_24"), ("OGG", "VORBIS"), ("MP3", "MPEG_LAYER_III"))
_LENGTHS = (0, 1, 3, 0x7FFFFFFF, 0xFFFFFFFF, 4_000_000_000)
_RATES = (0, 1, MIN_RATE, 8000, 16_000, 44_100, MAX_RATE, MAX_RATE + 1, 0xFFFFFFFF)


def run(seed: int) -> bool:
    """Read one file and one configuration; return whether both were accepted."""
    rng = random.Random(seed)
    accepted = read_file(rng)
    return read_configuration(rng) and accepted


def read_file(rng: random.Random) -> bool:
    data = drawn(rng)
    try:
        decoding_bytes(data[:100], RECIPE)
        if is_wav(data):
            check_wav(data)
        samples = waveform(io.BytesIO(data), RECIPE)
    except SoundError as exc:
        return check(str(exc))
    assert 0 < samples.count <= RECIPE.n_samples
    assert np.isfinite(samples.log_mel()).all()
    return True


def check_wav(data: bytes) -> None:
    file = WavFile(memoryview(data))
    count = sum(len(block) for block in file.blocks(500))
    assert count * file.header.frame_bytes <= len(data), (count, file.header)


def drawn(rng: random.Random) -> bytes:
    """Return a WAV file, or one of another kind, mostly damaged."""
    if rng.random() < 0.3 and find_spec("soundfile") is not None:
        data = compressed(rng.randrange(len(_KINDS)))
    else:
        codec, bits = rng.choice([(PCM, 8), (PCM, 16), (PCM, 24), (PCM, 32), (FLOAT, 32)])
        claimed = rng.choice(_LENGTHS) if rng.random() < 0.3 else None
        samples = tone(16_000, rng.choice((0.0, 0.01, 0.1)), rng.choice((1, 2, 5)))
        data = wav(samples, 16_000, bits, codec, claimed, rng.random() < 0.3)
        if rng.random() < 0.3:
            data = data[:24] + struct.pack("<I", rng.choice(_RATES)) + data[28:]
    if rng.random() < 0.5:
        data = change_bytes(data, rng)
    if rng.random() < 0.2:
        data = data[: rng.randrange(len(data) + 1)]
    return data


@lru_cache(None)
def compressed(kind: int) -> bytes:
    import soundfile

    file: Any = io.BytesIO()
    name, subtype = _KINDS[kind]
    soundfile.write(file, tone(48_000, 0.05, 2), 48_000, format=name, subtype=subtype)
    data: bytes = file.getvalue()
    return data


def read_configuration(rng: random.Random) -> bool:
    document: Any = dict(CONFIG)
    for _ in range(rng.randrange(3)):
        document = changed(rng, document)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "preprocessor_config.json"
        text = json.dumps(document).encode()
        path.write_bytes(change_bytes(text, rng) if rng.random() < 0.2 else text)
        config = read_config(path)
    for reason in config.reasons:
        check(reason.replace(folder, ""))
    assert config.sound is None or config.sound.fault is None
    return config.sound is not None


def main(arguments: list[str]) -> int:
    seconds, first = chosen_run(arguments)
    return run_examples(run, seconds, first)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
