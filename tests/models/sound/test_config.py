"""preprocessor_config.json of sounds: what has a recipe, and what is left out with a reason."""

import json
from pathlib import Path
from typing import Any

import pytest

from models.compiler.writing.hub_config import read_config
from models.packs.pack import open_pack
from models.sound.recipe import Sound
from tests.examples import over
from tests.models.sounds import CONFIG, RECIPE, compile_listener


def read(tmp_path: Path, document: dict[str, Any]) -> tuple[Sound | None, str]:
    """Return the recipe, and the reasons why there is none."""
    path = tmp_path / "preprocessor_config.json"
    path.write_text(json.dumps(document))
    config = read_config(path)
    return config.sound, "; ".join(config.reasons)


def test_whispers_file_and_a_processors_have_the_recipe(tmp_path: Path) -> None:
    whisper = {"feature_extractor_type": "WhisperFeatureExtractor", "sampling_rate": 16_000}
    expected = Sound(rate=16_000, n_fft=400, hop=160, bins=80, frames=3000)
    assert read(tmp_path, whisper) == (expected, "")
    assert read(tmp_path, {"feature_extractor": CONFIG}) == (RECIPE, "")
    assert expected.seconds == 30


@over(
    "changes, reason",
    [
        ({"feature_extractor_type": "Wav2Vec2FeatureExtractor"}, "'Wav2Vec2FeatureExtractor': no"),
        ({"feature_extractor_type": [1] * 1000}, "feature_extractor_type"),
        ({"do_normalize": True}, "do_normalize"),
        ({"dither": 1e-5}, "dither"),
        ({"padding_value": 1.0}, "padding"),
        ({"padding_side": "left"}, "padding"),
        ({"hop_length": 321}, "hop_length 321: 16000 samples"),
        ({"hop_length": 0}, "hop_length"),
        ({"n_fft": 401}, "n_fft 401: odd"),
        ({"n_fft": 1 << 15}, "n_fft"),
        ({"feature_size": "80"}, "feature_size"),
        ({"sampling_rate": 320}, "rate: Input should be"),
        ({"chunk_length": 10_000}, "160,000,000 samples"),
    ],
)
def test_what_changes_the_sound_otherwise_is_a_reason(
    tmp_path: Path, changes: dict[str, Any], reason: str
) -> None:
    recipe, reasons = read(tmp_path, {**CONFIG, **changes})
    assert recipe is None
    assert reason in reasons
    assert len(reasons.replace(str(tmp_path), "")) < 200


def test_files_of_pictures_and_models_say_nothing_of_sounds(tmp_path: Path) -> None:
    for document in (
        {"feature_extractor_type": "CLIPFeatureExtractor", "do_resize": True, "size": 4},
        {"model_type": "encodec", "sampling_rate": 24_000},
    ):
        recipe, reasons = read(tmp_path, document)
        assert recipe is None
        assert "sound" not in reasons
        assert "feature_extractor" not in reasons


def test_a_pack_has_the_recipe_and_its_file(tmp_path: Path) -> None:
    manifest = open_pack(compile_listener(tmp_path)).manifest
    assert manifest.sound == RECIPE
    assert manifest.origins["sound"] == "preprocessor_config.json"
    assert manifest.sound_verb == "classify"


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"feature_size": 9}, "becomes float32[1, 9, 50], the inputs are 'input_features'"),
        ({"feature_extractor_type": "SpeechT5FeatureExtractor"}, "'SpeechT5FeatureExtractor'"),
    ],
)
def test_one_of_another_network_is_skipped_with_a_warning(
    tmp_path: Path, changes: dict[str, Any], reason: str
) -> None:
    path = tmp_path / "other.json"
    path.write_text(json.dumps({**CONFIG, **changes}))
    lines: list[str] = []
    pack = compile_listener(tmp_path, configs=(read_config(path),), warn=lines.append)
    assert open_pack(pack).manifest.sound is None
    (line,) = lines
    assert reason in line
    assert line.endswith("left out")
