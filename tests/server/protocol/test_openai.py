"""OpenAI's endpoint of vectors: what its clients send and read, by a model whose tokenizer is a fake."""

import asyncio
import base64
from collections.abc import AsyncIterator, Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import pytest_asyncio
from numpy.typing import NDArray

from models.embedding import Embedding
from models.text.fakes import WordTokenizer
from models.text.recipe import Tokens
from server.errors import InvalidRequestError
from server.protocol.serving import Inference
from server.requests.exchange import ClientOfSeveral
from server.settings.settings import Settings
from tests.examples import over
from tests.models.texts import (
    OPENING,
    TOKENS,
    VOCABULARY,
    WIDTH,
    compile_encoder,
    open_fake,
    write_files,
)
from tests.server.requests.test_exchange import Client
from tests.server.support import ServiceUnderTest, serving

URL = "/v1/embeddings"
pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def texts(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[ServiceUnderTest]:
    folder: Path = tmp_path_factory.mktemp("texts")
    write_files(folder)
    recipe = Embedding(
        output="last_hidden_state", pooling="mean", normalise=True, matryoshka=(2, 4)
    )
    pack = compile_encoder(folder, embedding=recipe)
    values = {"repository": pack.parent, "budget": 64 << 20, "threads": 1, "memory_pressure": "off"}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(OPENING, open_fake)
        async with serving(Settings.model_validate(values)) as service:
            yield service


async def ask(service: ServiceUnderTest, **fields: Any) -> Mapping[str, Any]:
    answer = await service.client.post(URL, json={"model": "encoder", **fields})
    assert answer.status_code == 200, answer.text
    document: Mapping[str, Any] = answer.json()
    return document


def vectors(document: Mapping[str, Any]) -> NDArray[np.float32]:
    rows = [item["embedding"] for item in document["data"]]
    assert [item["index"] for item in document["data"]] == list(range(len(rows)))
    return np.array(
        [
            np.frombuffer(base64.b64decode(row), np.float32) if isinstance(row, str) else row
            for row in rows
        ],
        np.float32,
    )


async def test_a_text_in_a_list_has_the_vector_of_a_single_one(
    texts: ServiceUnderTest,
) -> None:
    several = ["one", "two words", "one", "long " * 40]
    document = await ask(texts, input=several)
    assert document["object"] == "list"
    assert document["model"] == "encoder"
    used = 3 + 4 + 3 + TOKENS
    assert document["usage"] == {"prompt_tokens": used, "total_tokens": used}
    assert [item.get("truncated", False) for item in document["data"]] == [
        False,
        False,
        False,
        True,
    ]
    singly = [vectors(await ask(texts, input=text))[0] for text in several]
    assert vectors(document).tolist() == np.array(singly).tolist()
    embedded = [
        (await texts.client.post("/v2/models/encoder:embed", json={"text": text})).json()[
            "embedding"
        ]
        for text in several
    ]
    assert vectors(document).tolist() == np.array(embedded, np.float32).tolist()


async def test_floats_and_base64_are_the_same_numbers(texts: ServiceUnderTest) -> None:
    plain = vectors(await ask(texts, input=["one", "two"]))
    coded = await ask(texts, input=["one", "two"], encoding_format="base64")
    assert all(isinstance(item["embedding"], str) for item in coded["data"])
    assert vectors(coded).tolist() == plain.tolist()


async def test_token_ids_stay_as_they_are(texts: ServiceUnderTest) -> None:
    singly = vectors(await ask(texts, input=[1, 9, 2]))
    several = await ask(texts, input=[[1, 9, 2], [1, 2]])
    assert vectors(several)[0].tolist() == singly[0].tolist()
    assert several["usage"]["prompt_tokens"] == 5


async def test_fewer_dimensions_where_the_recipe_has_them(texts: ServiceUnderTest) -> None:
    vector = vectors(await ask(texts, input="one"))[0]
    assert len(vector) == WIDTH
    for dimensions in (2, 4, WIDTH):
        short = vectors(await ask(texts, input="one", dimensions=dimensions))[0]
        expected = vector[:dimensions] / np.linalg.norm(vector[:dimensions])
        np.testing.assert_allclose(short, expected, rtol=1e-5)


async def test_other_fields_are_ignored(texts: ServiceUnderTest) -> None:
    await ask(texts, input="one", user="somebody", priority=1)


def refused(answer: httpx.Response, status: int, words: str) -> None:
    assert answer.status_code == status, answer.text
    assert set(answer.json()) == {"error"}
    fault = answer.json()["error"]
    assert set(fault) == {"message", "type", "param", "code"}
    assert fault["type"] == ("invalid_request_error" if status < 500 else "server_error")
    assert words in fault["message"]


BAD: dict[str, tuple[Any, int, str]] = {
    "no model": ({"input": "a"}, 400, "model: Field required"),
    "no input": ({"model": "encoder"}, 400, "input: Field required"),
    "nobody": ({"model": "nobody", "input": "a"}, 404, "'nobody': not found"),
    "empty": ({"model": "encoder", "input": ""}, 400, "input: empty"),
    "one of several empty": ({"model": "encoder", "input": ["a", " "]}, 400, "input.1: empty"),
    "none": ({"model": "encoder", "input": []}, 400, "not empty"),
    "mixed": ({"model": "encoder", "input": ["a", 1]}, 400, "all texts"),
    "mixed lists": ({"model": "encoder", "input": [[1], ["a"]]}, 400, "all texts"),
    "an empty list of ids": ({"model": "encoder", "input": [[1], []]}, 400, "all texts"),
    "booleans": ({"model": "encoder", "input": [True]}, 400, "all texts"),
    "an object": ({"model": "encoder", "input": {"a": 1}}, 400, "a text, or a list"),
    "too many": ({"model": "encoder", "input": ["a"] * 2049}, 400, "2,048"),
    "too many lists": ({"model": "encoder", "input": [[1]] * 2100}, 400, "2,048"),
    "an id beyond": ({"model": "encoder", "input": [VOCABULARY]}, 400, f"token {VOCABULARY}"),
    "a negative id": ({"model": "encoder", "input": [[1], [-1, 2]]}, 400, "input.1: token -1"),
    "too many ids": ({"model": "encoder", "input": [1] * 17}, 400, "17 tokens; the model takes 16"),
    "dimensions": ({"model": "encoder", "input": "a", "dimensions": 3}, 400, "8, or 2, 4"),
    "no dimensions": ({"model": "encoder", "input": "a", "dimensions": 0}, 400, "dimensions"),
    "a format": ({"model": "encoder", "input": "a", "encoding_format": "int8"}, 400, "'base64'"),
    "one word": ({"model": "encoder", "input": ["a", "x" * 99_999]}, 400, "input.1: 99,999 bytes"),
}  # fmt: skip


@over("body, status, words", BAD.values(), BAD)
async def test_what_is_refused(
    texts: ServiceUnderTest, body: object, status: int, words: str
) -> None:
    refused(await texts.client.post(URL, json=body), status, words)
    assert texts.inside.request_memory.used_bytes == 0


async def test_other_refusals_have_the_form_of_openai(texts: ServiceUnderTest) -> None:
    refused(await texts.client.post(URL, content=b'{"model"'), 400, "not JSON")
    half = b'{"model": "encoder", "input": "\\udc00"}'
    refused(await texts.client.post(URL, content=half), 400, "not JSON")
    refused(await texts.client.get(URL), 405, "takes POST")
    long = {"model": "encoder", "input": ["word " * 1000] * 2000}
    refused(await texts.client.post(URL, json=long), 413, "memory")


async def test_one_answer_is_counted_for_all_texts_of_a_request(texts: ServiceUnderTest) -> None:
    async def counted() -> list[float]:
        names = ("layerstream_requests_total", "layerstream_text_tokens_total")
        labels: list[dict[str, str]] = [{"outcome": "ok"}, {}]
        return [
            await texts.metric(name, model="encoder", **more) or 0
            for name, more in zip(names, labels, strict=True)
        ]

    before = await counted()
    await ask(texts, input=["one", "two", "three"])
    assert [b - a for a, b in zip(before, await counted(), strict=True)] == [1, 9]


# Several texts in one pass, and a client that leaves meanwhile.


class Leaving(Client):
    """A client that knows what is called when it leaves."""

    called: Callable[[], None] | None = None

    def on_leave(self, leaves: Callable[[], None] | None) -> None:
        self.called = leaves


async def test_texts_share_passes_where_the_plan_has_a_batch(
    texts: ServiceUnderTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("server.repository.served_engine.ServedEngine.is_quick", False)
    inputs = [f"text {index}" for index in range(12)]
    expected = vectors(await ask(texts, input=inputs))
    values = {"lanes": 4, "budget": 64 << 20, "threads": 1, "memory_pressure": "off"}
    repository = texts.inside.settings.repository
    async with serving(Settings.model_validate({**values, "repository": repository})) as laned:
        served = laned.worker("encoder").served
        assert served.engine.plan.batch_size == 4
        document = await ask(laned, input=inputs)
        assert (served.requests, document["usage"]["prompt_tokens"]) == (12, 48)
        assert served.sweeps < 12
        np.testing.assert_allclose(vectors(document), expected, atol=1e-6)
        tokenizer = laned.worker("encoder").tokenizer
        assert isinstance(tokenizer, WordTokenizer)
        monkeypatch.setattr(tokenizer, "encode", lambda text: Tokens([VOCABULARY], [0]))
        several = {"model": "encoder", "input": ["a", "b"]}
        refused(await laned.client.post(URL, json=several), 400, "input.0")
        assert laned.inside.request_memory.used_bytes == 0


async def test_an_unload_waits_for_the_rest_of_a_request_of_many_texts(
    texts: ServiceUnderTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """New requests are refused meanwhile."""
    compute_all, change = Inference.compute_all, "/v2/repository/models/encoder"
    unloads: list[asyncio.Task[httpx.Response]] = []
    later: list[httpx.Response] = []

    async def unloading(self: Inference, questions: Any) -> Any:
        if not unloads:
            unloads.append(asyncio.create_task(texts.client.post(f"{change}/unload")))
            (entry,) = texts.inside.repository.models.of("encoder")
            for _ in range(100):
                if entry.serves:
                    await asyncio.sleep(0)
            later.append(await texts.client.post(URL, json={"model": "encoder", "input": "late"}))
        return await compute_all(self, questions)

    monkeypatch.setattr(Inference, "compute_all", unloading)
    try:
        several = [f"text {index}" for index in range(5)]
        document = await ask(texts, input=several)
        assert len(vectors(document)) == len(several)
        assert (await unloads[0]).status_code == 200
        assert later[0].status_code in (404, 503)
    finally:
        assert (await texts.client.post(f"{change}/load")).status_code == 200


async def test_the_first_error_ends_what_is_computed_with_it(
    texts: ServiceUnderTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    cancelled: list[int] = []

    async def computed(model: Inference, question: int, keep: object, client: object) -> None:
        if question == 1:
            raise InvalidRequestError("the second")
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.append(question)

    monkeypatch.setattr(Inference, "compute_part", computed)
    with texts.inside.exchanges.exchange(Client()) as exchange:
        model = Inference(texts.inside, exchange, "encoder", None)
        questions: Any = [(index, None) for index in range(3)]
        with pytest.raises(InvalidRequestError, match="the second"):
            await model.compute_all(questions)
    assert sorted(cancelled) == [0, 2]


async def test_a_client_that_leaves_ends_all_that_is_computed_for_it() -> None:
    client, left, others = Leaving(), list[int](), dict[ClientOfSeveral, Callable[[], None]]()
    several = [ClientOfSeveral(client, others) for _ in range(3)]
    for index, item in enumerate(several):
        item.on_leave(partial(left.append, index))
    several[1].on_leave(None)
    called = client.called
    assert called is not None
    called()
    assert left == [0, 2]
    several[0].on_leave(None)
    several[2].on_leave(None)
    assert client.called is None
