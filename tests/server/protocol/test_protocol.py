"""The endpoints of the Open Inference Protocol, version 2, and ``:classify``."""

import asyncio
import re
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st
from PIL import Image

from models.classification import top_classes
from models.packs.pack import open_pack
from server.requests.pictures import PictureLimits, decode
from tests.examples import examples, over
from tests.server.support import (
    LABELS,
    PREPROCESS,
    Packs,
    ServiceUnderTest,
    arrays,
    close,
    inputs_for,
    picture,
)

pytestmark = pytest.mark.asyncio(loop_scope="module")

SHARED = examples(10, many=250, suppress_health_check=[HealthCheck.function_scoped_fixture])


async def test_server_metadata(shared: ServiceUnderTest) -> None:
    document = (await shared.client.get("/v2")).json()
    assert document["name"] == "layerstream"
    assert set(document) == {"name", "version", "extensions"}
    assert "model_repository" in document["extensions"]


@pytest.mark.parametrize(
    ("path", "key"), [("/v2/health/live", "live"), ("/v2/health/ready", "ready")]
)
async def test_health(shared: ServiceUnderTest, path: str, key: str) -> None:
    response = await shared.client.get(path)
    assert (response.status_code, response.json()) == (200, {key: True})


@pytest.mark.parametrize("suffix", ["", "/versions/1"])
async def test_model_metadata(shared: ServiceUnderTest, packs: Packs, suffix: str) -> None:
    document = (await shared.client.get(f"/v2/models/pair{suffix}")).json()
    assert document["name"] == "pair"
    assert document["versions"] == ["1"]
    assert document["inputs"] == [
        {"name": "x", "datatype": "FP32", "shape": [1, 64]},
        {"name": "steps", "datatype": "INT8", "shape": [1, 64]},
    ]
    assert [output["name"] for output in document["outputs"]] == ["scores", "hidden", "best"]
    assert document["parameters"]["weight_bytes"] == packs.weights("pair")
    memory = document["parameters"]["memory_bytes"]
    assert sum(memory.values()) == sum(shared.inside.budget.held()["pair"].values())


@pytest.mark.parametrize("suffix", ["", "/versions/1"])
async def test_model_ready(shared: ServiceUnderTest, suffix: str) -> None:
    response = await shared.client.get(f"/v2/models/tiny{suffix}/ready")
    assert (response.status_code, response.json()) == (200, {"name": "tiny", "ready": True})


@over("nested", [False, True])
@over("suffix", ["", "/versions/1"])
@over("name", ["tiny", "pair"])
async def test_infer_is_what_onnx_runtime_says(
    shared: ServiceUnderTest, packs: Packs, name: str, suffix: str, nested: bool
) -> None:
    inputs = inputs_for(name)
    response = await shared.infer(name + suffix, inputs, nested=nested)
    document = response.json()
    assert (document["model_name"], document["model_version"]) == (name, "1")
    close(arrays(response), packs.expected(name, inputs))


@pytest.mark.parametrize("more", [0, 1])
async def test_the_heap_is_trimmed_after_kernels_that_allocate_large_blocks(
    shared: ServiceUnderTest, monkeypatch: pytest.MonkeyPatch, more: int
) -> None:
    calls: list[int] = []
    scratch_bytes = shared.worker("tiny").engine.plan.scratch_bytes
    monkeypatch.setattr(shared.inside.trimming, "look", calls.append)
    monkeypatch.setattr("server.protocol.serving.LARGE_BYTES", scratch_bytes + more)
    arrays(await shared.infer("tiny", inputs_for("tiny")))
    assert calls == [scratch_bytes] * (1 - more)


@SHARED
@given(wanted=st.lists(st.sampled_from(["scores", "hidden", "best"]), unique=True))
async def test_outputs_wanted_come_in_their_order(
    shared: ServiceUnderTest, wanted: list[str]
) -> None:
    outputs = [{"name": name} for name in wanted]
    response = await shared.infer("pair", inputs_for("pair"), outputs=outputs)
    assert list(arrays(response)) == (wanted or ["scores", "hidden", "best"])


@SHARED
@given(identity=st.text(st.characters(codec="utf-8"), max_size=50))
async def test_id_comes_back(shared: ServiceUnderTest, identity: str) -> None:
    response = await shared.infer("pair", inputs_for("pair"), id=identity)
    assert response.json()["id"] == identity


async def test_no_id_no_id(shared: ServiceUnderTest) -> None:
    assert "id" not in (await shared.infer("pair", inputs_for("pair"))).json()


@SHARED
@given(seed=st.integers(0, 2**32 - 1))
async def test_any_input_is_answered_as_onnx_runtime_does(
    shared: ServiceUnderTest, packs: Packs, seed: int
) -> None:
    inputs = inputs_for("pair", seed)
    close(arrays(await shared.infer("pair", inputs)), packs.expected("pair", inputs))


async def test_requests_together_get_their_own_answers(
    shared: ServiceUnderTest, packs: Packs
) -> None:
    seeds = range(12)
    responses = await asyncio.gather(
        *(shared.infer("tiny", inputs_for("tiny", seed)) for seed in seeds)
    )
    for seed, response in zip(seeds, responses, strict=True):
        close(arrays(response), packs.expected("tiny", inputs_for("tiny", seed)))


@pytest.mark.parametrize("is_form", [False, True])
async def test_a_photograph_needs_no_temporary_file(
    shared: ServiceUnderTest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, is_form: bool
) -> None:
    """Also a large one, which libraries would put there."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "nowhere"))
    image = picture(1000, 800, "BMP")
    sent: dict[str, Any] = {"files": {"a": image}} if is_form else {"content": image}
    answer = await shared.client.post("/v2/models/tiny:classify", **sent)
    assert answer.status_code == 200, answer.text
    assert not (tmp_path / "nowhere").exists()


@over("how", ["raw", "multipart"])
@over("suffix", ["", "/versions/1"])
@over("kind", ["PNG", "JPEG", "BMP"])
async def test_classify(
    shared: ServiceUnderTest, packs: Packs, tmp_path: Path, kind: str, suffix: str, how: str
) -> None:
    data = picture(kind=kind)
    body: dict[str, Any] = {"content": data}
    if how == "multipart":
        body = {"data": {"note": "a field"}, "files": {"image": ("cat", data, "image/x")}}
    response = await shared.client.post(f"/v2/models/tiny{suffix}:classify", **body)
    document = response.json()
    assert (document["model_name"], document["model_version"]) == ("tiny", "1")
    assert document["delay_ms"] > 0

    file = tmp_path / "picture"
    file.write_bytes(data)
    tensor = PREPROCESS.apply(decode(file, PictureLimits(10**6, 10**8)).image)
    classification = open_pack(packs.repository / "tiny").manifest.classification
    assert classification is not None
    scores = packs.expected("tiny", {"image": tensor})["logits"]
    best = top_classes(classification, scores, 5)
    assert [item["index"] for item in document["predictions"]] == [item.index for item in best]
    for item, right in zip(document["predictions"], best, strict=True):
        assert item["label"] == right.label == LABELS[right.index]
        assert item["probability"] == pytest.approx(right.probability, rel=1e-4)


@SHARED
@given(top_k=st.integers(1, 10**9))
async def test_top_k(shared: ServiceUnderTest, top_k: int) -> None:
    response = await shared.client.post(
        "/v2/models/tiny:classify", params={"top_k": top_k}, content=picture()
    )
    predictions = response.json()["predictions"]
    assert len(predictions) == min(top_k, len(LABELS))
    probabilities = [item["probability"] for item in predictions]
    assert probabilities == sorted(probabilities, reverse=True)
    assert 0 < sum(probabilities) <= 1 + 1e-6


async def test_the_orientation_of_a_photograph_counts(
    shared: ServiceUnderTest, tmp_path: Path
) -> None:
    upright = Image.new("RGB", (32, 16))
    upright.paste((255, 255, 255), (0, 0, 8, 16))
    exif = Image.Exif()
    exif[0x0112] = 6  # stored lying on its side
    files = {"upright": tmp_path / "a.png", "lying": tmp_path / "b.png"}
    upright.save(files["upright"])
    upright.transpose(Image.Transpose.ROTATE_90).save(files["lying"], exif=exif)
    answers = [
        await shared.client.post("/v2/models/tiny:classify", content=file.read_bytes())
        for file in files.values()
    ]
    assert answers[0].json()["predictions"] == answers[1].json()["predictions"]


@over("path", ["/v2", "/v2/models/tiny", "/v2/models/none", "/nowhere"])
async def test_request_id_is_echoed(shared: ServiceUnderTest, path: str) -> None:
    response = await shared.client.get(path, headers={"X-Request-ID": "A-1.b_c"})
    assert response.headers["x-request-id"] == "A-1.b_c"


@SHARED
@given(offered=st.text(sorted({*map(chr, range(1, 256))} - {"\r", "\n"}), max_size=80))
async def test_request_id_is_always_a_sane_one(shared: ServiceUnderTest, offered: str) -> None:
    headers = [(b"X-Request-ID", offered.encode("latin-1"))]
    identity = (await shared.client.get("/v2", headers=headers)).headers["x-request-id"]
    assert re.fullmatch(r"[A-Za-z0-9._-]{1,64}", identity)
    if re.fullmatch(r"[A-Za-z0-9._-]{1,64}", offered):
        assert identity == offered


async def test_request_ids_differ(shared: ServiceUnderTest) -> None:
    responses = [await shared.client.get("/v2") for _ in range(10)]
    assert len({response.headers["x-request-id"] for response in responses}) == 10
