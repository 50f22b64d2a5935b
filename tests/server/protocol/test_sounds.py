"""Requests with sounds: scores and vectors of them, what is cut, and what is refused."""

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import pytest_asyncio
from numpy.typing import NDArray

from models.compiler import CompileOptions, compile_onnx
from models.embedding import Embedding
from models.images.preprocess import Preprocess
from models.sound.spectrogram import Waveform
from server.settings.settings import Settings
from tests.models.nets import parsed
from tests.models.sounds import RECIPE, compile_listener, tone, wav
from tests.server.support import ServiceUnderTest, error, serving

BUDGET, MAX_BODY = 32 << 20, 1 << 20
AUDIO = {"content-type": "audio/wav"}
pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a network of sounds as scores and as vectors, and one of pictures."""
    folder = tmp_path_factory.mktemp("sounds")
    compile_listener(folder, labels=("bird", "car", "rain"))
    compile_listener(folder, "voice", embedding=Embedding(output="logits", normalise=True))
    import onnx

    eye = "g (float[1,3,4,4] image) => (float[1,3,1,1] out) { out = GlobalAveragePool(image) }"
    onnx.save(parsed(eye), folder / "eye.onnx")
    recipe = CompileOptions(preprocess=Preprocess(size=(4, 4)))
    compile_onnx(folder / "eye.onnx", folder / "repository" / "eye", recipe)
    return folder


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def sounds(folder: Path) -> AsyncIterator[ServiceUnderTest]:
    settings = {"repository": folder / "repository", "budget": BUDGET, "max_body": MAX_BODY}
    extra = {"threads": 1, "memory_pressure": "off"}
    async with serving(Settings.model_validate({**settings, **extra})) as service:
        yield service


def scores_of(folder: Path, samples: NDArray[np.float32]) -> NDArray[np.float32]:
    """What ONNX Runtime makes of the spectrogram."""
    import onnxruntime

    waveform = Waveform(RECIPE)
    waveform.add(samples.mean(axis=1))
    session = onnxruntime.InferenceSession(str(folder / "ear.onnx"))
    scores: NDArray[np.float32] = session.run(None, {"input_features": waveform.log_mel()})[0][0]
    return scores


async def ask(
    service: ServiceUnderTest, verb: str, body: bytes, headers: Any = AUDIO, model: str = "ear"
) -> Any:
    return await service.client.post(f"/v2/models/{model}:{verb}", content=body, headers=headers)


@pytest.mark.parametrize("seconds", [0.3, 1.0, 1.5, 3.5])
async def test_scores_vectors_and_tensors_of_a_sound(
    sounds: ServiceUnderTest, folder: Path, seconds: float
) -> None:
    samples = tone(RECIPE.rate, seconds, 2)
    expected = scores_of(folder, samples)
    body, is_cut = wav(samples, bits=24), seconds > 1
    answer = await ask(sounds, "infer", body)
    assert answer.status_code == 200, answer.text
    result = answer.json()["outputs"][0]["data"]
    np.testing.assert_allclose(result, expected, atol=1e-4)
    assert answer.headers.get("x-sound-truncated") == ("1" if is_cut else None)
    answer = await ask(sounds, "classify", body)
    labels = [item["label"] for item in answer.json()["predictions"]]
    assert labels == [("bird", "car", "rain")[index] for index in np.argsort(-expected)]
    assert ("x-sound-truncated" in answer.headers) == is_cut
    answer = await ask(sounds, "embed", body, model="voice")
    document = answer.json()
    vector = expected / np.linalg.norm(expected)
    np.testing.assert_allclose(document["embedding"], vector, atol=1e-4)
    assert (document["seconds"], document["truncated"]) == (min(seconds, 1), is_cut)
    assert sounds.inside.request_memory.used_bytes == 0


async def test_tensors_are_accepted_as_before(sounds: ServiceUnderTest) -> None:
    port = {"name": "input_features", "datatype": "FP32", "shape": [1, 8, 50], "data": [0.0] * 400}
    answer = await sounds.client.post("/v2/models/ear/infer", json={"inputs": [port]})
    assert answer.status_code == 200
    assert answer.json()["outputs"][0]["data"] == [0.0] * 3


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"", "the body is empty"),
        (b'{"text": "a"}', "not WAV, FLAC, Ogg or MP3"),
        (wav(tone(16_000, 0.1))[:36], "damaged WAV: it ends before its samples"),
        (wav(np.zeros((0, 1), np.float32)), "it has no samples"),
        (wav(tone(16_000, 0.1), bits=16, codec=2), "WAV of codec 0x0002"),
    ],
)
async def test_what_is_no_sound_is_refused(
    sounds: ServiceUnderTest, body: bytes, reason: str
) -> None:
    for verb in ("infer", "classify"):
        answer = await ask(sounds, verb, body)
        assert reason in error(answer, 400)
    assert sounds.inside.request_memory.used_bytes == 0


async def test_without_the_extra_an_error_says_so(
    sounds: ServiceUnderTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "soxr", None)
    answer = await ask(sounds, "infer", wav(tone(8000, 0.1), 8000))
    assert "pip install '.[sound]' in a clone" in error(answer, 400)


async def test_models_that_cannot_say_so(sounds: ServiceUnderTest) -> None:
    body = wav(tone(16_000, 0.1))
    for verb in ("infer", "classify"):
        answer = await ask(sounds, verb, body, model="eye")
        assert "model 'eye' takes no sounds" in error(answer, 400)
    answer = await ask(sounds, "embed", body)
    assert "gives no vectors" in error(answer, 400)
    answer = await ask(sounds, "infer", body, {"content-type": "multipart/form-data; boundary=x"})
    assert "send the file of the sound as the body" in error(answer, 400)
    answer = await ask(sounds, "infer", body, {**AUDIO, "content-encoding": "gzip"})
    assert answer.status_code == 415


async def test_a_header_that_claims_4_gb_is_bounded_by_what_comes(sounds: ServiceUnderTest) -> None:
    samples = tone(RECIPE.rate, 0.5)
    plain, claiming = wav(samples), wav(samples, claimed=0xFFFFFFFF)
    expected, result = [(await ask(sounds, "infer", body)).json() for body in (plain, claiming)]
    assert result["outputs"] == expected["outputs"]


async def test_a_long_body_is_refused_before_and_while_it_comes(sounds: ServiceUnderTest) -> None:
    body = wav(tone(RECIPE.rate, 0.1)) + bytes(MAX_BODY)
    answer = await ask(sounds, "infer", body)
    assert answer.status_code == 413

    async def blocks() -> AsyncIterator[bytes]:
        for start in range(0, len(body), 50_000):
            yield body[start : start + 50_000]
            await asyncio.sleep(0)

    answer = await sounds.client.post("/v2/models/ear:infer", content=blocks(), headers=AUDIO)
    assert "max_body" in error(answer, 413)
    answer = await ask(sounds, "infer", wav(tone(RECIPE.rate, 0.1)))
    assert answer.status_code == 200
    assert sounds.inside.request_memory.used_bytes == 0


async def test_parts_without_a_length_are_one_sound(sounds: ServiceUnderTest) -> None:
    body = wav(tone(RECIPE.rate, 0.9, 2), bits=32)

    async def blocks() -> AsyncIterator[bytes]:
        for start in range(0, len(body), 9999):
            yield body[start : start + 9999]
            await asyncio.sleep(0)

    expected = await ask(sounds, "infer", body)
    answer = await sounds.client.post("/v2/models/ear:infer", content=blocks(), headers=AUDIO)
    assert json.loads(answer.text)["outputs"] == expected.json()["outputs"]
