"""Requests that are wrong in every way: the right status, a named fault, and the next one is served."""

import gc
import gzip
import json
import struct
import zlib
from collections.abc import AsyncIterator, Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given
from hypothesis import strategies as st

from server.faults import Outcome
from tests.examples import examples, over
from tests.server.conftest import SettingsFactory
from tests.server.support import (
    ServiceUnderTest,
    arrays,
    error,
    inputs_for,
    picture,
    request,
    serving,
)

INFER = "/v2/models/pair/infer"
CLASSIFY = "/v2/models/tiny:classify"

pytestmark = pytest.mark.asyncio(loop_scope="module")

SHARED = examples(20, many=1500, suppress_health_check=[HealthCheck.function_scoped_fixture])


async def outcomes(service: ServiceUnderTest, model: str) -> dict[str, float]:
    """How many requests ended how."""
    name = "layerstream_requests_total"
    found = await service.metrics(name)
    labels = {outcome: {"model": model, "outcome": outcome} for outcome in Outcome}
    return {key: found.get((name, frozenset(labels[key].items())), 0) for key in Outcome}


async def still_serves(shared: ServiceUnderTest) -> None:
    arrays(await shared.infer("pair", inputs_for("pair")))


@over(
    "method, path, status, words",
    [
        ("GET", "/v2/models/none", 404, ["'none'"]),
        ("GET", "/v2/models/none/ready", 404, ["'none'"]),
        ("POST", "/v2/models/none/infer", 404, ["'none'"]),
        ("POST", "/v2/models/none:classify", 404, ["'none'"]),
        ("GET", "/v2/models/pair/versions/2", 404, ["'pair'", "'2'"]),
        ("GET", "/v2/models/pair/versions/01", 404, ["'pair'", "'01'"]),
        ("GET", "/v2/models/pair/versions/2/ready", 404, ["'pair'", "'2'"]),
        ("POST", "/v2/models/pair/versions/x/infer", 404, ["'pair'", "'x'"]),
        ("POST", "/v2/models/tiny/versions/2:classify", 404, ["'tiny'", "'2'"]),
        ("POST", "/v2/repository/models/none/load", 404, ["'none'"]),
        ("POST", "/v2/repository/models/none/unload", 404, ["'none'"]),
        ("POST", "/v2/repository/models/../load", 404, []),
        ("POST", "/v2/repository/models/.hidden/load", 404, ["'.hidden'"]),
        ("POST", "/v2/repository/models/%2e%2e/load", 404, []),
        ("POST", "/v2/repository/models/..%2frepository%2ftiny/load", 404, []),
        ("POST", "/v2/repository/models/ti%00ny/load", 404, []),
        ("POST", f"/v2/repository/models/{'n' * 5000}/load", 404, []),
        ("GET", "/v2/models/p%D0%B0ir", 404, [r"'p\u0430ir'"]),  # a Cyrillic letter
        ("GET", "/v2/models/pair%00", 404, [r"'pair\x00'"]),
        ("GET", f"/v2/models/{'n' * 300}", 404, ["'nnn"]),
        ("GET", "/v1/models/pair", 404, ["Not Found", "'/v1/models/pair'"]),
        ("GET", "/v2/models/..%2f..%2fetc", 404, ["Not Found", "'/v2/models/../../etc'"]),
        ("GET", f"/{'n' * 5000}", 404, ["Not Found"]),
        ("GET", "/v2/models/twin", 404, ["'twin'", "not loaded", "POST", "/models/twin/load"]),
        ("GET", "/v2/models/twin/ready", 404, ["'twin'", "not loaded"]),
        ("POST", "/v2/models/twin/infer", 404, ["'twin'", "not loaded"]),
        ("GET", "/v2/models/pair/infer", 405, ["Method Not Allowed"]),
        ("DELETE", "/v2/models/pair", 405, ["Method Not Allowed"]),
        ("POST", "/metrics", 405, ["Method Not Allowed"]),
        ("BREW", "/v2", 405, ["Method Not Allowed"]),
    ],
)
async def test_what_is_not_there(
    shared: ServiceUnderTest, method: str, path: str, status: int, words: list[str]
) -> None:
    error(await shared.client.request(method, path), status, *words)
    await still_serves(shared)


def changed(**fields: Any) -> dict[str, Any]:
    """A request whose tensor "x" has other fields; None leaves one out."""
    body = request(inputs_for("pair"))
    body["inputs"][0].update(fields)
    body["inputs"][0] = {
        key: value for key, value in body["inputs"][0].items() if value is not None
    }
    return body


def steps(data: list[Any]) -> dict[str, Any]:
    """A request whose tensor "steps" (INT8) holds ``data`` and zeros."""
    body = request(inputs_for("pair"))
    body["inputs"][1]["data"] = data + [0] * (64 - len(data))
    return body


X = inputs_for("pair")["x"]
NUMBERS = X.ravel().tolist()
TWO = request(inputs_for("pair"))["inputs"]

BAD_REQUESTS: dict[str, tuple[Any, list[str]]] = {
    "wrong name": (changed(name="y"), ["'y'", "'x'", "'steps'"]),
    "duplicate": ({"inputs": [TWO[0], TWO[0], TWO[1]]}, ["'x'", "twice"]),
    "missing": ({"inputs": TWO[:1]}, ["'steps'", "missing"]),
    "no tensors": ({"inputs": []}, ["'x'", "missing"]),
    "wrong datatype": (changed(datatype="FP64"), ["'x'", "FP64", "FP32"]),
    "no such datatype": (changed(datatype="float32"), ["'x'", "float32", "FP32"]),
    "bytes": (changed(datatype="BYTES"), ["'x'", "BYTES", "FP32"]),
    "wrong shape": (changed(shape=[64]), ["'x'", "[64]", "[1, 64]"]),
    "negative shape": (changed(shape=[-1, 64]), ["'x'", "[-1, 64]"]),
    "huge shape": (changed(shape=[10**30, 64]), ["inputs.0.shape.0"]),
    "fractional shape": (changed(shape=[1.5, 64]), ["inputs.0.shape"]),
    "shape of many dimensions": (changed(shape=[1] * 100), ["'x'", "[1, 1,"]),
    "shape of strings": (changed(shape=["1", "64"]), ["inputs.0.shape.0"]),
    "shape of booleans": (changed(shape=[True, 64]), ["inputs.0.shape.0"]),
    "shape of text": (changed(shape="1,64"), ["inputs.0.shape"]),
    "too few": (changed(data=NUMBERS[:-1]), ["'x'", "63", "64"]),
    "too many": (changed(data=[*NUMBERS, 0.0]), ["'x'", "65", "64"]),
    "empty": (changed(data=[]), ["'x'", "0", "64"]),
    "ragged": (changed(data=[NUMBERS[:32], NUMBERS[32:-1]]), ["'x'"]),
    "mixed depth": (changed(data=[NUMBERS[:32], *NUMBERS[32:]]), ["'x'"]),
    "strings": (changed(data=["1"] * 64), ["'x'", "strings"]),
    "one string": (changed(data=["1", *NUMBERS[1:]]), ["'x'", "strings"]),
    "booleans": (changed(data=[True] * 64), ["'x'", "booleans"]),
    "one boolean": (changed(data=[True, *NUMBERS[1:]]), ["'x'", "booleans"]),
    "nested boolean": (changed(data=[[*NUMBERS[:-1], False]]), ["'x'", "booleans"]),
    "null": (changed(data=[None, *NUMBERS[1:]]), ["'x'"]),
    "objects": (changed(data=[{}] * 64), ["'x'"]),
    "one object": (changed(data=[{"a": 1}, *NUMBERS[1:]]), ["'x'"]),
    "data of text": (changed(data="AAAA"), ["inputs.0.data"]),
    "no data": (changed(data=None), ["inputs.0.data"]),
    "no name": (changed(name=None), ["inputs.0.name"]),
    "no shape": (changed(shape=None), ["inputs.0.shape"]),
    "no datatype": (changed(datatype=None), ["inputs.0.datatype"]),
    "unknown field": (changed(dtype="FP32"), ["inputs.0.dtype"]),
    "over float32": (changed(data=[1e39, *NUMBERS[1:]]), ["'x'", "FP32"]),
    "integer over float": (changed(data=[10**400, *NUMBERS[1:]]), ["'x'"]),
    "over int8": (steps([128]), ["'steps'"]),
    "under int8": (steps([-129]), ["'steps'"]),
    "over int64": (steps([2**63]), ["'steps'"]),
    "over uint64": (steps([2**64]), ["'steps'"]),
    "boolean as integer": (steps([True]), ["'steps'", "booleans"]),
    "fraction": (steps([0.5]), ["'steps'", "fractions"]),
    "fraction that is whole": (steps([1.0]), ["'steps'", "fractions"]),
    "unknown output": ({"inputs": TWO, "outputs": [{"name": "none"}]}, ["'none'", "scores"]),
    "output without name": ({"inputs": TWO, "outputs": [{}]}, ["outputs.0.name"]),
    "output not an object": ({"inputs": TWO, "outputs": ["scores"]}, ["outputs.0"]),
    "no inputs": ({}, ["inputs"]),
    "inputs not a list": ({"inputs": {"x": TWO[0]}}, ["inputs"]),
    "a tensor not an object": ({"inputs": [1]}, ["inputs.0"]),
    "id not text": ({"inputs": TWO, "id": {}}, ["id"]),
    "a list": ([], ["body"]),
    "a number": (1, ["body"]),
    "null body": (None, ["body"]),
    "a lone surrogate for a name": (changed(name="\ud800"), ["not JSON", "surrogate"]),
    "a lone surrogate for a field": (changed(**{"\ud800": 1}), []),
    "a lone surrogate for an id": ({"inputs": TWO, "id": "\ud800"}, ["surrogate"]),
    "a lone surrogate for a datatype": (changed(datatype="\udfff"), ["not JSON"]),
    "long names": (changed(name="n" * 100_000), ["'nnnn"]),
    "long fields": (changed(**{"f" * 100_000: 1}), ["inputs.0.ffff"]),
    "long datatypes": (changed(datatype="d" * 100_000), ["'dddd"]),
    "long outputs": ({"inputs": TWO, "outputs": [{"name": "o" * 100_000}]}, ["'oooo"]),
    "an output twice": ({"inputs": TWO, "outputs": [{"name": "best"}] * 2}, ["'best'", "twice"]),
    "a timeout of text": ({"inputs": TWO, "parameters": {"timeout": "1"}}, ["parameters.timeout"]),
    "data and a binary size": (changed(parameters={"binary_data_size": 4}), ["both data and"]),
    "a binary answer": (
        {"inputs": TWO, "outputs": [{"name": "best", "parameters": {"binary_data": 1}}]},
        ["outputs.0.parameters.binary_data", "not a boolean"],
    ),
}


@over("what", BAD_REQUESTS)
async def test_a_wrong_request_is_named(shared: ServiceUnderTest, what: str) -> None:
    body, words = BAD_REQUESTS[what]
    error(await shared.client.post(INFER, content=json.dumps(body)), 400, *words)
    await still_serves(shared)


async def test_wrong_requests_are_counted(shared: ServiceUnderTest) -> None:
    before = await outcomes(shared, "pair")
    for body, _ in BAD_REQUESTS.values():
        await shared.client.post(INFER, content=json.dumps(body))
    invalid = before["invalid"] + len(BAD_REQUESTS)
    assert await outcomes(shared, "pair") == {**before, "invalid": invalid}


GOOD = json.dumps(request(inputs_for("pair")))


@over(
    "body, words",
    [
        (b"", ["empty"]),
        (b"{", ["not JSON"]),
        (b"not json", ["not JSON"]),
        (b"\xff\xfe\xfd", ["not JSON"]),
        (b"\0" * 100, ["not JSON"]),
        (GOOD.encode() + b"}", ["not JSON"]),
        (GOOD.replace(str(NUMBERS[0]), "NaN", 1).encode(), ["NaN"]),
        (GOOD.replace(str(NUMBERS[0]), "Infinity", 1).encode(), ["Infinity"]),
        (GOOD.replace(str(NUMBERS[0]), "-Infinity", 1).encode(), ["-Infinity"]),
        (GOOD.replace(str(NUMBERS[0]), "1e400", 1).encode(), ["'x'"]),
        (GOOD.replace(str(NUMBERS[0]), "9" * 5000, 1).encode(), ["'x'", "not JSON"]),
        (GOOD.encode("utf-16"), ["UTF-16"]),
        (b"[" * 100_000, ["an object", "'['"]),
        (b'{"a":' * 100_000, ["nested over"]),
        (b'{"inputs":[' + b"[]," * 100_000 + b"1]}", ["more values"]),
        (b'{"inputs":[' + b"1," * 50_000 + b"1]}", ["more values"]),
        (GOOD.replace(str(NUMBERS[0]), "[" * 900 + "1" + "]" * 900, 1).encode(), ["'x'"]),
        (GOOD.replace(str(NUMBERS[0]), "[" * 70 + "1" + "]" * 70, 1).encode(), ["'x'"]),
        (GOOD.replace(str(NUMBERS), "[" * 65 + "[1],2" + "]" * 65, 1).encode(), ["'x'"]),
    ],
)
async def test_what_is_not_json(shared: ServiceUnderTest, body: bytes, words: list[str]) -> None:
    error(await shared.client.post(INFER, content=body), 400, *words)
    await still_serves(shared)


async def test_an_unknown_output_costs_no_sweep(shared: ServiceUnderTest) -> None:
    before = shared.worker("pair").engine.statistics()
    await shared.infer("pair", inputs_for("pair"), outputs=[{"name": "none"}])
    assert shared.worker("pair").engine.statistics() == before


@pytest.mark.parametrize("path", [INFER, CLASSIFY])
@pytest.mark.parametrize("declared", [True, False])
async def test_a_body_over_the_limit(settings: SettingsFactory, path: str, declared: bool) -> None:
    async def chunks() -> AsyncIterator[bytes]:
        for _ in range(4):
            yield b" " * 5000

    async with serving(settings(max_body=20_000 - 1)) as service:
        content = bytes(20_000) if declared else chunks()
        response = await service.client.post(path, content=content)
        error(response, 413, "19999 bytes (setting max_body)")
        counted = await outcomes(service, "pair" if path == INFER else "tiny")
        assert counted["invalid"] == sum(counted.values()) == 1
        await still_serves(service)


async def test_a_body_of_just_the_limit(settings: SettingsFactory) -> None:
    async with serving(settings(max_body=len(GOOD))) as service:
        arrays(await service.client.post(INFER, content=GOOD))
        error(await service.client.post(INFER, content=GOOD + " "), 413)


@over(
    "path, encoding",
    [(":classify", "gzip"), (":classify", "BR"), ("/infer", "BR"), ("/infer", "x" * 5000)],
)
async def test_a_compressed_body_is_refused_by_its_encoding(
    shared: ServiceUnderTest, path: str, encoding: str
) -> None:
    """Before it is read: compressed JSON would be said to be no JSON."""
    headers = {"content-encoding": encoding}
    url = f"/v2/models/tiny{path}"
    answer = await shared.client.post(url, content=gzip.compress(b"{}"), headers=headers)
    message = error(answer, 415, encoding[:60], "taken is")
    assert len(message) < 200
    taken = "identity" if path == ":classify" else "identity, gzip, deflate"
    assert answer.headers["accept-encoding"] == taken
    plain: dict[str, Any] = {
        "headers": {"content-encoding": "identity"},
        "json": request(inputs_for("tiny")),
    }
    assert (await shared.client.post("/v2/models/tiny/infer", **plain)).status_code == 200


@over("length", ["-1", "x", "", "9" * 5000, "1e3", "²"])
async def test_a_length_that_is_none(shared: ServiceUnderTest, length: str) -> None:
    headers = [(b"Content-Length", length.encode("latin-1"))]
    response = await shared.client.request("GET", "/v2", headers=headers)
    assert response.status_code in {200, 413}


def png(width: int, height: int) -> bytes:
    """A PNG of a few bytes that claims to have any number of pixels."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return (
            struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        )

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    pixels = zlib.compress(bytes(1000))
    parts = (
        b"\x89PNG\r\n\x1a\n",
        chunk(b"IHDR", header),
        chunk(b"IDAT", pixels),
        chunk(b"IEND", b""),
    )
    return b"".join(parts)


@over(
    "body, words",
    [
        (b"", ["empty"]),
        (b"not an image", ["not an image"]),
        (GOOD.encode(), ["not an image"]),
        (picture()[:-1000], ["damaged"]),
        (picture(kind="JPEG")[:600], ["damaged"]),
        (picture()[:100], ["damaged"]),
        (picture()[:20], []),
        (picture(kind="EPS"), ["not an image"]),
        (png(60_000, 60_000), ["pixels"]),
        (png(10_000, 6_401), ["10000x6401", "64000000"]),
        (png(2**31 - 1, 2**31 - 1), ["pixels"]),
        (png(0, 0), []),
    ],
)
@over("how", ["raw", "multipart"])
async def test_what_is_not_an_image(
    shared: ServiceUnderTest, body: bytes, words: list[str], how: str
) -> None:
    sent: dict[str, Any] = {"content": body} if how == "raw" else {"files": {"image": body}}
    error(await shared.client.post(CLASSIFY, **sent), 400, *words)
    assert (await shared.client.post(CLASSIFY, content=picture())).status_code == 200
    await still_serves(shared)


def form(body: bytes, content_type: str = "multipart/form-data; boundary=b") -> dict[str, Any]:
    return {"content": body, "headers": {"Content-Type": content_type}}


FILE = b'--b\r\nContent-Disposition: form-data; name="f"; filename="f"\r\n\r\n'


# Starlette leaves the file of a form that ends too early to the garbage collector.
unfinished_forms = pytest.mark.filterwarnings("ignore:Unclosed file <tempfile:ResourceWarning")


@pytest.fixture
def collected() -> Iterator[None]:
    """Collects garbage where that warning is expected."""
    yield
    gc.collect()


@pytest.mark.usefixtures("collected")
@unfinished_forms
@over(
    "sent",
    [
        {"data": {"image": "text"}, "files": {}, "headers": {}},
        {"files": {"image": (None, b"a field, not a file")}},
        {"files": [("a", picture()), ("b", picture())]},
        form(b""),
        form(b"nonsense"),
        form(b"--b--\r\n"),
        form(FILE + b"\r\n--b--\r\n"),
        form(FILE + picture()[:300]),
        form(b"--b\r\nContent-Disposition: attachment\r\n\r\nx\r\n--b--\r\n"),
        form(b"--b\r\n\r\nx\r\n--b--\r\n"),
        form(b"--b\r\n: x\r\n\r\nx\r\n--b--\r\n"),
        form(FILE, "multipart/form-data"),
        form(FILE, "multipart/form-data; boundary="),
        form(FILE, "multipart/form-data; boundary=" + "b" * 1000),
        form(FILE, "multipart/form-data; boundary=b; charset=nonsense"),
    ],
)
async def test_what_is_not_a_form_with_an_image(
    shared: ServiceUnderTest, sent: dict[str, Any]
) -> None:
    before = await outcomes(shared, "tiny")
    error(await shared.client.post(CLASSIFY, **sent), 400)
    assert await outcomes(shared, "tiny") == {**before, "invalid": before["invalid"] + 1}
    assert (await shared.client.post(CLASSIFY, content=picture())).status_code == 200


@over("top_k", ["0", "-1", "x", "1.5", ""])
async def test_top_k_is_named(shared: ServiceUnderTest, top_k: str) -> None:
    response = await shared.client.post(f"{CLASSIFY}?top_k={top_k}", content=picture())
    error(response, 400, "top_k")


async def test_a_model_that_does_not_classify(shared: ServiceUnderTest) -> None:
    response = await shared.client.post("/v2/models/pair:classify", content=picture())
    error(response, 400, "'pair'", "--preprocess")
    await still_serves(shared)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=10),
    lambda inner: (
        st.lists(inner, max_size=5) | st.dictionaries(st.text(max_size=10), inner, max_size=5)
    ),
    max_leaves=10,
)
FIELDS = {
    "name": st.sampled_from(["x", "steps"]) | JSON,
    "shape": st.just([1, 64]) | JSON,
    "datatype": st.sampled_from(["FP32", "INT8"]) | JSON,
    "data": st.lists(st.floats(width=16) | JSON, max_size=5) | st.just([0] * 64) | JSON,
}
ALMOST = st.fixed_dictionaries(
    {
        "inputs": st.just(TWO)
        | st.lists(st.fixed_dictionaries(FIELDS, optional={"parameters": JSON}), max_size=3)
        | JSON
    },
    optional={"id": JSON, "outputs": JSON, "parameters": JSON, "more": JSON},
)


@SHARED
@given(document=ALMOST | JSON)
@example(document={"inputs": TWO, "id": "\ud800"})
async def test_no_json_makes_the_server_fail(shared: ServiceUnderTest, document: Any) -> None:
    response = await shared.client.post(INFER, content=json.dumps(document))
    assert response.status_code < 500, response.text
    if response.status_code != 200:
        error(response, 400)


@SHARED
@given(body=st.binary(max_size=200) | st.binary(max_size=20).map(lambda part: GOOD.encode() + part))
async def test_no_bytes_make_the_server_fail(shared: ServiceUnderTest, body: bytes) -> None:
    response = await shared.client.post(INFER, content=body)
    assert response.status_code in {200, 400}, response.text


@SHARED
@given(
    kind=st.sampled_from(["PNG", "JPEG", "BMP", "GIF", "TIFF", "WEBP", "PPM", "TGA"]),
    cuts=st.lists(st.tuples(st.integers(0, 2000), st.binary(max_size=4)), min_size=1, max_size=4),
    length=st.integers(1, 5000),
)
async def test_no_picture_makes_the_server_fail(
    shared: ServiceUnderTest, kind: str, cuts: list[tuple[int, bytes]], length: int
) -> None:
    data = bytearray(picture(20, 20, kind))
    for position, replacement in cuts:
        start = position % len(data)
        data[start : start + len(replacement)] = replacement
    response = await shared.client.post(CLASSIFY, content=bytes(data[:length]))
    # 413: a header that was cut may say that the picture is larger than the memory for requests.
    assert response.status_code in {200, 400, 413}, response.text


@pytest.mark.usefixtures("collected")
@unfinished_forms
@SHARED
@given(
    body=st.binary(max_size=100), parts=st.lists(st.sampled_from([b"--b", b"\r\n", b"--", b":"]))
)
async def test_no_form_makes_the_server_fail(
    shared: ServiceUnderTest, body: bytes, parts: list[bytes]
) -> None:
    response = await shared.client.post(CLASSIFY, **form(b"".join(parts) + FILE + body))
    assert response.status_code in {200, 400}, response.text


async def test_an_answer_that_json_cannot_carry(shared: ServiceUnderTest) -> None:
    inputs = {**inputs_for("pair"), "x": np.full((1, 64), 3e38, np.float32)}
    response = await shared.infer("pair", inputs)
    error(response, 400, "'scores'", "NaN or infinite", "binary_data")
    await still_serves(shared)
