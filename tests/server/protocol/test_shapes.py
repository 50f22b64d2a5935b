"""Requests to a model in several shapes: a shorter text is padded, other shapes are refused."""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import pytest_asyncio

from server.grpc.messages import inference_pb2 as messages
from server.page.state import state
from tests.models.texts import (
    OPENING,
    TOKENS,
    compile_encoder,
    encoder,
    expected_tokens,
    open_fake,
    write_files,
)
from tests.server.grpc.stubs import calling
from tests.server.protocol.test_embed import settings_of
from tests.server.support import ServiceUnderTest, arrays, error, serving

SIZES = (4, 8, TOKENS)
pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A text encoder of three lengths, and the same of the longest alone."""
    folder = tmp_path_factory.mktemp("shapes")
    write_files(folder)
    compile_encoder(folder, encoder("n"), shapes={"tokens": SIZES})
    compile_encoder(folder, name="single")
    return folder


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def texts(folder: Path) -> AsyncIterator[ServiceUnderTest]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(OPENING, open_fake)
        async with serving(settings_of(folder)) as service:
            yield service


def body(*shape: int, data_first: bool = False) -> dict[str, Any]:
    """Return a request with tokens of ``shape``."""
    count = int(np.prod(shape))
    values = {"input_ids": list(range(3, 3 + count)), "attention_mask": [1] * count}
    inputs = []
    for name, data in values.items():
        fields = {"name": name, "shape": list(shape), "datatype": "INT64", "data": data}
        inputs.append(dict(reversed(fields.items())) if data_first else fields)
    return {"inputs": inputs}


@pytest.mark.parametrize("words", [1, 2, 3, 7, 14, 400])
async def test_a_text_has_the_vector_of_the_longest_shape(
    texts: ServiceUnderTest, words: int
) -> None:
    text = {"text": " ".join(f"word{index}" for index in range(words))}
    answer, single = [
        (await texts.client.post(f"/v2/models/{name}:embed", json=text)).json()
        for name in ("encoder", "single")
    ]
    assert answer["tokens"] == single["tokens"]
    assert answer["truncated"] == single["truncated"] == (words + 2 > TOKENS)
    np.testing.assert_allclose(answer["embedding"], single["embedding"], atol=1e-6)


@pytest.mark.parametrize("count", range(1, TOKENS + 1))
async def test_an_answer_has_as_many_tokens_as_its_request(
    texts: ServiceUnderTest, folder: Path, count: int
) -> None:
    request = body(1, count, data_first=count % 2 == 0)
    answer = arrays(await texts.client.post("/v2/models/encoder/infer", json=request))
    ids, mask = np.zeros((2, 1, TOKENS), np.int64)
    ids[0, :count], mask[0, :count] = range(3, 3 + count), 1
    expected = expected_tokens(folder / "single.onnx", ids, mask)[:, :count]
    np.testing.assert_allclose(answer["last_hidden_state"], expected, atol=1e-5)


async def test_raw_tensors_have_their_shape(texts: ServiceUnderTest) -> None:
    plain = arrays(await texts.client.post("/v2/models/encoder/infer", json=body(1, 6)))
    request, raw = body(1, 6), b""
    for tensor in request["inputs"]:
        data = np.array(tensor.pop("data"), np.int64).tobytes()
        tensor["parameters"] = {"binary_data_size": len(data)}
        raw += data
    text = json.dumps(request).encode()
    headers = {"inference-header-content-length": str(len(text))}
    sent = await texts.client.post("/v2/models/encoder/infer", content=text + raw, headers=headers)
    np.testing.assert_array_equal(arrays(sent)["last_hidden_state"], plain["last_hidden_state"])


async def test_each_shape_over_grpc(texts: ServiceUnderTest) -> None:
    plain = arrays(await texts.client.post("/v2/models/encoder/infer", json=body(1, 3)))
    message = messages.ModelInferRequest(model_name="encoder")
    for tensor in body(1, 3)["inputs"]:
        message.inputs.add(name=tensor["name"], datatype="INT64", shape=tensor["shape"])
        message.raw_input_contents.append(np.array(tensor["data"], np.int64).tobytes())
    async with calling(texts.inside) as client:
        answer = await client("ModelInfer", message)
        described = await client("ModelMetadata", messages.ModelMetadataRequest(name="encoder"))
    assert list(answer.outputs[0].shape) == [1, 3, 8]
    values = np.frombuffer(answer.raw_output_contents[0], np.float32)
    np.testing.assert_allclose(values, plain["last_hidden_state"].ravel())
    assert [list(port.shape) for port in described.inputs][:2] == [[1, -1], [1, -1]]
    assert list(described.outputs[0].shape) == [1, -1, 8]


async def test_metadata_leaves_open_what_differs(texts: ServiceUnderTest) -> None:
    document = (await texts.client.get("/v2/models/encoder")).json()
    assert [port["shape"] for port in document["inputs"]] == [[1, -1], [1, -1], [1]]
    assert document["outputs"][0]["shape"] == [1, -1, 8]
    assert document["parameters"]["shapes"] == ["[1, 16]", "[1, 8]", "[1, 4]"]
    config = (await texts.client.get("/v2/models/encoder/config")).json()
    assert [port["dims"] for port in config["input"]][:2] == [[-1], [-1]]


@pytest.mark.parametrize("shape", [(1, TOKENS + 1), (2, 4), (1, 0), (4,), (1, 1, 4)])
async def test_a_shape_that_nobody_compiled_is_refused(
    texts: ServiceUnderTest, shape: tuple[int, ...]
) -> None:
    refused = await texts.client.post("/v2/models/encoder/infer", json=body(*shape))
    error(refused, 400, "[1, 16]; [1, 8]; [1, 4]")
    answered = await texts.client.post("/v2/models/encoder/infer", json=body(1, 4))
    assert answered.status_code == 200


async def test_inputs_of_different_shapes_are_refused(texts: ServiceUnderTest) -> None:
    request = body(1, 4)
    request["inputs"][1] |= {"shape": [1, 8], "data": [1] * 8}
    refused = await texts.client.post("/v2/models/encoder/infer", json=request)
    error(refused, 400, "'input_ids' is [1, 4], 'attention_mask' is [1, 8]")


async def test_more_values_than_its_shape_has_are_refused(texts: ServiceUnderTest) -> None:
    for data_first in (False, True):
        request = body(1, 4, data_first=data_first)
        request["inputs"][0]["data"].append(1)
        refused = await texts.client.post("/v2/models/encoder/infer", json=request)
        error(refused, 400, "input_ids")


async def test_inferences_of_each_shape_are_counted(texts: ServiceUnderTest) -> None:
    async def count(shape: str) -> float | None:
        name = "layerstream_shape_inferences_total"
        return await texts.metric(name, model="encoder", shape=shape)

    before = await count("[1, 8]"), await count("[1, 4]")
    for length in (7, 8, 2):
        await texts.client.post("/v2/models/encoder/infer", json=body(1, length))
    assert (await count("[1, 8]"), await count("[1, 4]")) == (
        2 + (before[0] or 0),
        1 + (before[1] or 0),
    )
    models = {model["name"]: model for model in state(texts.inside, ())["models"]}
    assert models["encoder"]["shapes"]["[1, 4]"] == await count("[1, 4]")
    assert "shapes" not in models["single"]
