"""Binary tensors over HTTP: as tritonclient sends and reads them, compressed or not, within memory."""

import gzip
import json
import zlib
from typing import Any

import numpy as np
import pytest

from server.errors import shown
from tests.examples import over
from tests.server.clients.messages import output, received, sent, strings, tensor
from tests.server.conftest import SettingsFactory
from tests.server.support import (
    LABELS,
    Connection,
    Packs,
    ServiceUnderTest,
    close,
    error,
    inputs_for,
    serving,
)

pytestmark = pytest.mark.asyncio(loop_scope="module")

INFER = "/v2/models/{}/infer"
TINY = inputs_for("tiny")
PAIR = inputs_for("pair")
MIXED = "application/octet-stream"


def tensors(inputs: Any, *as_json: str) -> list[Any]:
    return [tensor(name, array, name not in as_json) for name, array in inputs.items()]


@over("as_json", [(), ("x",), ("steps",), ("x", "steps")])
async def test_inputs_raw_and_json(
    shared: ServiceUnderTest, packs: Packs, as_json: tuple[str]
) -> None:
    answer = await shared.client.post(INFER.format("pair"), **sent(tensors(PAIR, *as_json)))
    found = received(answer)
    expected = packs.expected("pair", PAIR)
    close({name: found.as_numpy(name) for name in expected}, expected)
    assert answer.headers["content-type"] == MIXED
    assert int(answer.headers["content-length"]) == len(answer.content)


@over("as_json", [(), ("hidden",), ("hidden", "best")])
async def test_outputs_raw_and_json(
    shared: ServiceUnderTest, packs: Packs, as_json: tuple[str]
) -> None:
    wanted = [output(name, name not in as_json) for name in ("hidden", "best")]
    answer = await shared.client.post(INFER.format("pair"), **sent(tensors(PAIR), wanted))
    found = received(answer)
    expected = packs.expected("pair", PAIR)
    close(
        {n: found.as_numpy(n) for n in ("hidden", "best")},
        {n: expected[n] for n in ("hidden", "best")},
    )
    assert (answer.headers["content-type"] == MIXED) == (len(as_json) < 2)
    assert ("inference-header-content-length" in answer.headers) == (len(as_json) < 2)
    names = [item["name"] for item in found.get_response()["outputs"]]
    assert names == ["hidden", "best"]


async def test_a_body_without_json(shared: ServiceUnderTest, packs: Packs) -> None:
    headers = {"Inference-Header-Content-Length": "0"}
    answer = await shared.client.post(
        INFER.format("tiny"), content=TINY["image"].tobytes(), headers=headers
    )
    expected = packs.expected("tiny", TINY)
    close({name: received(answer).as_numpy(name) for name in expected}, expected)


@pytest.mark.parametrize("coding", ["gzip", "deflate"])
async def test_compressed_both_ways(shared: ServiceUnderTest, packs: Packs, coding: str) -> None:
    message = sent(tensors(PAIR), request_id="c")
    compress = gzip.compress if coding == "gzip" else zlib.compress
    message["content"] = compress(message["content"])
    message["headers"] |= {"Content-Encoding": coding, "Accept-Encoding": coding}
    answer = await shared.client.post(INFER.format("pair"), **message)
    assert answer.headers["content-encoding"] == coding
    expected = packs.expected("pair", PAIR)
    close({name: received(answer).as_numpy(name) for name in expected}, expected)
    assert received(answer).get_response()["id"] == "c"


async def test_json_answers_are_compressed_for_who_asks(shared: ServiceUnderTest) -> None:
    message = sent(tensors(PAIR), [output("hidden", False)])
    for accepted, coding in (("gzip", "gzip"), ("gzip, deflate, br", None)):
        message["headers"]["Accept-Encoding"] = accepted
        answer = await shared.client.post(INFER.format("pair"), **message)
        assert answer.headers.get("content-encoding") == coding
        assert len(answer.json()["outputs"][0]["data"]) == 256


@pytest.mark.parametrize("is_binary", [True, False])
async def test_classes(shared: ServiceUnderTest, packs: Packs, is_binary: bool) -> None:
    wanted = [output("logits", is_binary, 3)]
    answer = await shared.client.post(INFER.format("tiny"), **sent(tensors(TINY), wanted))
    found = received(answer).as_numpy("logits")
    (scores,) = packs.expected("tiny", TINY).values()
    assert found.shape == (1, 3)
    for line, index in zip(found[0], np.argsort(-scores[0])[:3], strict=True):
        text = line.decode() if is_binary else line
        value, place, label = text.split(":")
        assert (int(place), label) == (index, LABELS[index])
        assert float(value) == pytest.approx(scores[0][index], rel=1e-4)


async def test_classes_without_labels(shared: ServiceUnderTest) -> None:
    wanted = [output("hidden", True, 1), output("scores", True, 99)]
    answer = await shared.client.post(INFER.format("pair"), **sent(tensors(PAIR), wanted))
    found = received(answer)
    assert found.as_numpy("hidden").shape == (1, 1)
    assert found.as_numpy("scores").shape == (1, 16)
    assert found.as_numpy("scores")[0, 0].count(b":") == 1


NAMED = sent(tensors(TINY))


@over(
    "length, words",
    [("-1", "not a number"), ("9" * 400, "not a number"), ("5", "JSON"), ("999999", "ends")],
)
async def test_lengths_that_lie(shared: ServiceUnderTest, length: str, words: str) -> None:
    headers = {"Inference-Header-Content-Length": length}
    answer = await shared.client.post(
        INFER.format("tiny"), content=NAMED["content"], headers=headers
    )
    assert len(error(answer, 400, words)) < 300


@over("body", [b"", b"{", b"\x1f\x8b", gzip.compress(b"{}", mtime=0)[:-3]])
async def test_compressed_bodies_that_are_none(shared: ServiceUnderTest, body: bytes) -> None:
    headers = {"Content-Encoding": "gzip"}
    answer = await shared.client.post(INFER.format("tiny"), content=body, headers=headers)
    error(answer, 400, "gzip")


async def test_a_bomb_is_refused(settings: SettingsFactory) -> None:
    """By what the model takes; white space, of which JSON may have any amount, by the limit of bodies."""
    text, json_bytes = NAMED["content"], int(NAMED["headers"]["Inference-Header-Content-Length"])
    image = {"name": "image", "shape": [1, 3, 16, 16], "datatype": "FP32"}
    spaces = json.dumps({"inputs": [{**image, "data": [0]}]})[:-4].encode() + b" " * (8 << 20)
    async with serving(settings(max_body=1 << 20)) as service:
        for body, length, status in (
            (text + bytes(8 << 20), json_bytes, 400),
            (b" " * (8 << 20), None, 413),
            (spaces, None, 413),
        ):
            headers = {"Content-Encoding": "gzip"}
            if length is not None:
                headers["Inference-Header-Content-Length"] = str(length)
            content = gzip.compress(body, mtime=0)
            assert len(content) < 50_000
            answer = await service.client.post(
                INFER.format("tiny"), content=content, headers=headers
            )
            error(answer, status)
        assert service.inside.request_memory.used_bytes == 0
        received(await service.client.post(INFER.format("tiny"), **NAMED))


async def test_a_client_that_leaves_in_the_middle_holds_nothing(shared: ServiceUnderTest) -> None:
    length = NAMED["headers"]["Inference-Header-Content-Length"]
    client = Connection(
        INFER.format("tiny"),
        NAMED["content"][:-5],
        ("inference-header-content-length", length),
        more=True,
    )
    client.go_away()
    await client.call(shared.asgi)
    assert shared.inside.request_memory.used_bytes == 0


async def test_errors_name_the_input(shared: ServiceUnderTest) -> None:
    long = "n" * 300
    wrong = tensor(long, TINY["image"])
    answer = await shared.client.post(INFER.format("tiny"), **sent([wrong]))
    error(answer, 400, shown(long), "'image'")
    texts = tensor("image", strings("a").reshape(1))
    error(await shared.client.post(INFER.format("tiny"), **sent([texts])), 400, "BYTES", "FP32")
