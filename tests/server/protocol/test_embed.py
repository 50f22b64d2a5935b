"""Vectors of texts and pictures, and texts in place of tokens, by a model whose tokenizer is a fake."""

import asyncio
import shutil
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import numpy as np
import onnx
import pytest
import pytest_asyncio
from numpy.typing import NDArray

from models.compiler import CompileOptions, compile_onnx
from models.embedding import Embedding
from models.images.preprocess import Preprocess
from models.packs.pack import open_pack
from models.text.fakes import WordTokenizer
from models.text.recipe import Tokens
from server.grpc.messages import inference_pb2 as messages
from server.repository.environment import RepositoryEnvironment
from server.repository.worker import Worker
from server.settings.settings import Settings
from tests.examples import over
from tests.models.nets import parsed
from tests.models.texts import (
    OPENING,
    TOKENIZER_BYTES,
    TOKENS,
    WIDTH,
    compile_encoder,
    encoder,
    expected_tokens,
    open_fake,
    write_files,
)
from tests.server.grpc.stubs import calling
from tests.server.support import ServiceUnderTest, arrays, error, picture, serving

_open = RepositoryEnvironment.open_tokenizer
URL = "/v2/models/encoder:embed"
BUDGET = 64 << 20


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a text encoder, and an encoder of pictures that gives 4 numbers."""
    folder = tmp_path_factory.mktemp("texts")
    write_files(folder)
    compile_encoder(folder)
    (folder / "modules.json").unlink()
    judge = encoder(labels=3)
    compile_encoder(folder, judge, name="judge", labels=("bad", "good", "neither"))
    model = parsed(
        "g (float[1,3,8,8] image) => (float[1,4,1,1] vector) {"
        " f = Conv<pads=[1,1,1,1]>(image, w) vector = GlobalAveragePool(f) }",
        {"w": (4, 3, 3, 3)},
    )
    onnx.save(model, folder / "eye.onnx")
    recipe = Embedding(output="vector", normalise=True, matryoshka=(2,))
    options = CompileOptions(preprocess=Preprocess(size=(8, 8), scale=1 / 255), embedding=recipe)
    compile_onnx(folder / "eye.onnx", folder / "repository" / "eye", options)
    return folder


def settings_of(folder: Path, budget: int = BUDGET, **changes: object) -> Settings:
    return Settings.model_validate(
        {
            "repository": folder / "repository",
            "budget": budget,
            "threads": 1,
            "memory_pressure": "off",
            **changes,
        }
    )


def has_tokenizer(worker: Worker) -> bool:
    return worker.tokenizer is not None


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def texts(folder: Path) -> AsyncIterator[ServiceUnderTest]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(OPENING, open_fake)
        async with serving(settings_of(folder)) as service:
            yield service


pytestmark = pytest.mark.asyncio(loop_scope="module")


def vector_of(folder: Path, text: str) -> NDArray[np.float32]:
    """What the source and the recipe make of ``text``."""
    recipe = open_pack(folder / "repository" / "encoder").manifest
    assert recipe.text is not None
    ids = WordTokenizer(recipe.text).encode(text).ids
    padded, mask = np.zeros((1, TOKENS), np.int64), np.zeros((1, TOKENS), np.int64)
    padded[0, : len(ids)], mask[0, : len(ids)] = ids, 1
    mean = expected_tokens(folder / "encoder.onnx", padded, mask)[0, : len(ids)].mean(axis=0)
    vector: NDArray[np.float32] = mean / np.linalg.norm(mean)
    return vector


@pytest.mark.parametrize("words", [1, 5, TOKENS - 2, TOKENS - 1, 400])
async def test_a_text_has_the_vector_that_its_tokens_make(
    texts: ServiceUnderTest, folder: Path, words: int
) -> None:
    text = " ".join(f"word{index}" for index in range(words))
    answer = await texts.client.post(URL, json={"text": text})
    assert answer.status_code == 200, answer.text
    document = answer.json()
    assert document["tokens"] == min(words + 2, TOKENS)
    assert document["truncated"] == (words + 2 > TOKENS)
    np.testing.assert_allclose(document["embedding"], vector_of(folder, text), atol=1e-5)


async def test_a_megabyte_is_cut_before_it_is_tokenised(
    texts: ServiceUnderTest, folder: Path
) -> None:
    tokenizer = texts.worker("encoder").tokenizer
    assert isinstance(tokenizer, WordTokenizer)
    tokenizer.texts.clear()
    text = "word " * 200_000
    document = (await texts.client.post(URL, json={"text": text})).json()
    assert document["truncated"]
    np.testing.assert_allclose(document["embedding"], vector_of(folder, text), atol=1e-5)
    assert max(map(len, tokenizer.texts)) <= 16 * TOKENS + 1024


BAD = {
    "empty": (b'{"text": ""}', 400, "empty"),
    "white": (b'{"text": " \\n"}', 400, "empty"),
    "no text": (b"{}", 400, "text: Field required"),
    "a number": (b'{"text": 1}', 400, "text: Input should be a valid string"),
    "another field": (b'{"text": "a", "texts": []}', 400, "texts"),
    "nothing": (b"", 400, "not JSON"),
    "a list": (b'["a"]', 400, "not a JSON object"),
    "not UTF-8": (b'{"text": "\xff"}', 400, "not JSON"),
    "half of a character": (b'{"text": "\\ud800"}', 400, "not JSON"),
    "deep": (b'{"text": ' + b"[" * 5000, 400, "lists"),
    "a word of a megabyte": (b'{"text": "%b"}' % (b"x" * (1 << 20)), 400, "are 3 tokens"),
}


@over("body, status, words", BAD.values(), BAD)
async def test_what_is_no_text(
    texts: ServiceUnderTest, body: bytes, status: int, words: str
) -> None:
    error(await texts.client.post(URL, content=body), status, words)
    assert texts.inside.request_memory.used_bytes == 0


async def test_a_text_without_a_token(
    texts: ServiceUnderTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenizer = texts.worker("encoder").tokenizer
    assert isinstance(tokenizer, WordTokenizer)
    monkeypatch.setattr(tokenizer, "encode", lambda text: Tokens([], []))
    error(await texts.client.post(URL, json={"text": "a"}), 400, "no token")


async def test_bodies_are_limited_and_not_compressed(texts: ServiceUnderTest) -> None:
    compressed = {"Content-Encoding": "gzip"}
    error(await texts.client.post(URL, content=b"x", headers=compressed), 415, "gzip")
    long = b'{"text": "%b"}' % (b"x " * (4 << 20))
    error(await texts.client.post(URL, content=long), 413, "memory")


async def test_a_text_stands_for_the_tensors_of_an_infer_request(texts: ServiceUnderTest) -> None:
    port = {"name": "text", "shape": [1], "datatype": "BYTES", "data": ["one two three"]}
    body = {"inputs": [port]}
    by_text = await texts.client.post("/v2/models/encoder/infer", json=body)
    direct = await texts.client.post("/v2/models/encoder:infer", json={"text": "one two three"})
    assert arrays(by_text)["last_hidden_state"].shape == (1, TOKENS, WIDTH)
    assert by_text.json()["outputs"] == direct.json()["outputs"]
    assert "x-text-truncated" not in by_text.headers
    port["data"] = ["word " * 40]
    for answer in (
        await texts.client.post("/v2/models/encoder/infer", json=body),
        await texts.client.post("/v2/models/encoder:infer", json={"text": "word " * 40}),
    ):
        assert answer.headers["x-text-truncated"] == str(TOKENS)


async def test_a_text_over_grpc(texts: ServiceUnderTest) -> None:
    direct = await texts.client.post("/v2/models/encoder:infer", json={"text": "one two"})
    message = messages.ModelInferRequest(model_name="encoder")
    port = message.inputs.add(name="text", datatype="BYTES", shape=[1])
    port.contents.bytes_contents.append(b"")
    async with calling(texts.inside) as client:
        for text, count in (("one two", None), ("word " * 40, TOKENS)):
            port.contents.bytes_contents[0] = text.encode()
            answer = await client("ModelInfer", message)
            assert dict(answer.parameters).keys() == (
                set() if count is None else {"text_truncated"}
            )
            if count is None:
                (output,) = answer.raw_output_contents
                expected = arrays(direct)["last_hidden_state"]
                np.testing.assert_array_equal(
                    np.frombuffer(output, np.float32).reshape(expected.shape), expected
                )
            else:
                assert answer.parameters["text_truncated"].int64_param == count
        port.contents.bytes_contents[0] = b"\xff"
        refused = await client.refused("ModelInfer", message)
        assert "not UTF-8" in (refused.details() or "")


async def test_a_text_or_tokens(texts: ServiceUnderTest) -> None:
    url = "/v2/models/encoder/infer"
    text = {"name": "text", "shape": [1], "datatype": "BYTES", "data": ["one"]}
    ids = {"name": "input_ids", "shape": [1, TOKENS], "datatype": "INT64", "data": [1] * TOKENS}
    both = await texts.client.post(url, json={"inputs": [text, ids]})
    error(both, 400, "'text'", "not both")
    error(await texts.client.post(url, json={"inputs": [ids]}), 400, "'attention_mask' is missing")
    several = {**text, "shape": [2], "data": ["one", "two"]}
    error(await texts.client.post(url, json={"inputs": [several]}), 400, "shape [2]")
    mask = {**ids, "name": "attention_mask"}
    assert arrays(await texts.client.post(url, json={"inputs": [ids, mask]}))


async def test_pictures_have_vectors(texts: ServiceUnderTest) -> None:
    url = "/v2/models/eye:embed"
    answer = await texts.client.post(url, content=picture())
    assert answer.status_code == 200, answer.text
    document = answer.json()
    assert document["image"] == {"width": 40, "height": 30}
    assert np.linalg.norm(document["embedding"]) == pytest.approx(1, rel=1e-5)
    short = (await texts.client.post(url, content=picture(), params={"dimensions": 2})).json()
    expected = np.array(document["embedding"][:2])
    expected /= np.linalg.norm(expected)
    np.testing.assert_allclose(short["embedding"], expected, rtol=1e-5)
    error(await texts.client.post(url, content=picture(), params={"dimensions": 3}), 400, "4, or 2")
    error(
        await texts.client.post(url, content=picture(), params={"dimensions": 0}), 400, "dimensions"
    )
    error(await texts.client.post("/v2/models/eye:classify", content=picture()), 400, ":embed")


async def test_models_that_give_no_vectors(
    service: ServiceUnderTest, texts: ServiceUnderTest
) -> None:
    answer = await service.client.post("/v2/models/tiny:embed", content=picture())
    error(answer, 400, "gives no vectors", "--embedding")
    answer = await texts.client.post("/v2/models/encoder:classify", json={"text": "a"})
    error(answer, 400, "does not classify texts")


async def test_a_network_of_scores_names_what_a_text_is(texts: ServiceUnderTest) -> None:
    url = "/v2/models/judge:classify"
    answer = await texts.client.post(url, json={"text": "one two"}, params={"top_k": 2})
    assert answer.status_code == 200, answer.text
    best, second = answer.json()["predictions"]
    assert {best["label"], second["label"]} < {"bad", "good", "neither"}
    assert best["probability"] > second["probability"]
    cut = await texts.client.post(url, json={"text": "word " * 40})
    assert cut.headers["x-text-truncated"] == str(TOKENS)
    error(await texts.client.post(url, json={"text": ""}), 400, "empty")
    error(await texts.client.post("/v2/models/judge:embed", json={"text": "a"}), 400, "no vectors")


async def test_metadata_of_a_model_with_texts(texts: ServiceUnderTest) -> None:
    metadata = (await texts.client.get("/v2/models/encoder")).json()
    assert metadata["inputs"][-1] == {"name": "text", "datatype": "BYTES", "shape": [1]}
    assert metadata["parameters"]["memory_bytes"]["tokenizer"] == TOKENIZER_BYTES
    config = (await texts.client.get("/v2/models/encoder/config")).json()
    assert {port["name"]: port["optional"] for port in config["input"]} == dict.fromkeys(
        ("input_ids", "attention_mask", "text"), True
    )
    assert await texts.metric("layerstream_memory_bytes", model="encoder", kind="tokenizer") == (
        TOKENIZER_BYTES
    )


async def test_tokens_are_counted(texts: ServiceUnderTest) -> None:
    async def counted() -> list[float]:
        names = ("layerstream_text_tokens_total", "layerstream_truncated_texts_total")
        return [await texts.metric(name, model="encoder") or 0 for name in names]

    before = await counted()
    await texts.client.post(URL, json={"text": "one two"})
    await texts.client.post(URL, json={"text": "word " * 40})
    after = await counted()
    assert [b - a for a, b in zip(before, after, strict=True)] == [4 + TOKENS, 1]


async def test_the_tokenizer_is_released_with_its_model(folder: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(OPENING, open_fake)
        async with serving(settings_of(folder, model_control="explicit")) as service:
            await service.client.post("/v2/repository/models/encoder/load")
            worker, used = service.worker("encoder"), service.inside.budget.used_bytes
            assert has_tokenizer(worker)
            await service.client.post("/v2/repository/models/encoder/unload")
            assert not has_tokenizer(worker)
            assert used - service.inside.budget.used_bytes > TOKENIZER_BYTES


async def test_an_evicted_model_is_loaded_for_a_text(folder: Path, tmp_path: Path) -> None:
    for name in ("first", "second"):
        shutil.copytree(folder / "repository" / "encoder", tmp_path / "repository" / name)
    changes = {"budget_policy": "evict-lru", "request_memory": 4 << 20}
    settings = settings_of(tmp_path, budget=8 << 20, **changes)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(OPENING, open_fake)
        async with serving(settings) as service:
            for name in ("first", "second", "first"):
                answer = await service.client.post(f"/v2/models/{name}:embed", json={"text": "one"})
                assert answer.status_code == 200, answer.text
                (loaded,) = [entry for entry in service.inside.repository.entries() if entry.worker]
                assert loaded.name == name


async def test_texts_wait_for_memory_and_none_is_refused(folder: Path) -> None:
    """Each holds at once all that it needs: one that holds some and waits for more would refuse others."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(OPENING, open_fake)
        settings = settings_of(folder, request_memory=2 << 20, models=("encoder",))
        async with serving(settings) as service:
            text = "word " * 400
            body = {"model": "encoder", "input": [text, text]}
            answers = await asyncio.gather(
                *(service.client.post(URL, json={"text": text}) for _ in range(6)),
                *(service.client.post("/v1/embeddings", json=body) for _ in range(6)),
            )
    assert [answer.status_code for answer in answers] == [200] * 12


async def test_a_budget_that_is_too_small_for_the_tokenizer(folder: Path) -> None:
    settings = settings_of(folder, budget=3 << 20, request_memory=2 << 20)
    async with serving(settings) as service:
        refused = await service.client.post(URL, json={"text": "a"})
    error(refused, 409, "3.0 MiB for the tokenizer")


async def test_no_library_is_imported_without_texts(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "tokenizers"]:
        monkeypatch.delitem(sys.modules, name)
    async with serving(settings_of(folder, models=("eye",))) as service:
        answer = await service.client.post("/v2/models/eye:embed", content=picture())
    assert answer.status_code == 200
    assert "tokenizers" not in sys.modules


async def test_a_pack_whose_tokenizer_is_damaged(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(OPENING, _open)
    shutil.copytree(folder / "repository", tmp_path / "repository")
    tokenizer = tmp_path / "repository" / "encoder" / "1" / "tokenizer.json"
    tokenizer.write_text("[]")
    async with serving(settings_of(tmp_path)) as service:
        refused = await service.client.post(URL, json={"text": "a"})
        error(refused, 503, "tokenizer.json", "damaged")
        assert service.inside.budget.account().keys() == {"eye"}
