"""Answers written in pieces: what comes out is what went in, and no piece is large."""

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from server.codec.datatypes import DATATYPES, datatype
from server.codec.infer_bodies import Body
from server.codec.messages import ModelAnswer, Output
from server.codec.text.writer import PIECE_BYTES
from server.errors import InvalidRequestError
from tests.examples import examples, over


def body(outputs: dict[str, NDArray[Any]], identity: str | None = None) -> Body:
    named = [Output(name, array) for name, array in outputs.items()]
    return Body(ModelAnswer("m", "1", identity, named))


def written(outputs: dict[str, NDArray[Any]], *wanted: str, identity: str | None = None) -> Any:
    """The answer, put together of its pieces."""
    asked = {name: outputs[name] for name in wanted or outputs}
    pieces = list(body(asked, identity).text())
    assert all(0 < len(piece) <= PIECE_BYTES for piece in pieces)
    return json.loads(b"".join(pieces))


def same(output: dict[str, Any], array: NDArray[Any]) -> None:
    assert output["datatype"] == datatype(array.dtype.name)
    assert output["shape"] == list(array.shape)
    back = np.array(output["data"], array.dtype).reshape(array.shape)
    assert back.tolist() == array.tolist() if array.dtype == object else True
    assert array.dtype == object or back.tobytes() == array.tobytes()


EDGES: dict[str, list[Any]] = {
    "bool": [True, False],
    "float16": [0.0, -0.0, 65504.0, -65504.0, 6e-8, 6.1e-5, 0.1, 1 / 3],
    "float32": [0.0, -0.0, 3.4028235e38, 1e-45, 1.1754944e-38, 0.1, 16777216, 1 / 3],
    "float64": [0.0, -0.0, 1.7976931348623157e308, 5e-324, 0.1, 1e22, 1e23, 1 / 3],
    "bytes": ["", 'ä€😀 \0 [1, {"x": 2}], "\\', "\x7f\u2028"],
}


@over("dtype", DATATYPES.values())
def test_every_datatype_comes_back(dtype: str) -> None:
    values = EDGES.get(dtype)
    if values is None:
        limits = np.iinfo(dtype)
        values = [0, 1, int(limits.min), int(limits.max)]
    array = np.array(values, object if dtype == "bytes" else dtype)
    same(written({"y": array})["outputs"][0], array)


@pytest.mark.parametrize(("dtype", "bits"), [("float16", "uint16"), ("float32", "uint32")])
def test_any_float_comes_back_with_the_same_bits(dtype: str, bits: str) -> None:
    generator = np.random.default_rng(0)
    numbers = np.arange(1 << 16, dtype=np.uint16)
    if bits == "uint32":
        numbers = generator.integers(0, 1 << 32, 200_000, np.uint32)
    floats = numbers.view(dtype)
    array = floats[np.isfinite(floats)]
    same(written({"y": array})["outputs"][0], array)


@given(
    shapes=st.lists(
        st.lists(st.sampled_from([0, 1, 2, 3, 70]), max_size=3), min_size=1, max_size=3
    ),
    wanted=st.lists(st.sampled_from(["a", "b", "c"]), unique=True),
    identity=st.none() | st.text(st.characters(codec="utf-8"), max_size=20),
)
@examples(15, many=500)
def test_outputs_in_their_order(
    shapes: list[list[int]], wanted: list[str], identity: str | None
) -> None:
    arrays = {
        name: np.arange(np.prod(shape, dtype=int), dtype=np.float32).reshape(shape)
        for name, shape in zip("abc", shapes, strict=False)
    }
    wanted = [name for name in wanted if name in arrays]
    document = written(arrays, *wanted, identity=identity)
    assert (document["model_name"], document["model_version"]) == ("m", "1")
    assert document.get("id") == identity
    assert [output["name"] for output in document["outputs"]] == (wanted or list(arrays))
    for output in document["outputs"]:
        same(output, arrays[output["name"]])


def test_a_small_answer_is_one_piece() -> None:
    array = np.random.default_rng(0).standard_normal((1, 1000)).astype(np.float32)
    assert len(list(body({"y": array, "z": array}, "i").text())) == 1


def test_no_outputs() -> None:
    assert written({})["outputs"] == []


@pytest.mark.parametrize("dtype", ["float32", "float64", "uint64", "bool"])
def test_a_large_answer_is_never_text_as_a_whole(dtype: str) -> None:
    array = np.random.default_rng(0).integers(0, 1 << 60, 100_000).astype(dtype).reshape(100, -1)
    same(written({"y": array})["outputs"][0], array)


def test_strings_of_any_length() -> None:
    array = np.array(["a" * 300_000, "", "\x01" * 50_000, *["b"] * 50_000], object)
    same(written({"y": array})["outputs"][0], array)


def test_an_array_that_is_not_contiguous() -> None:
    array = np.arange(12, dtype=np.float32).reshape(3, 4).T
    same(written({"y": array})["outputs"][0], array)


@over("value", [np.nan, np.inf, -np.inf])
@over("dtype", ["float16", "float32", "float64"])
def test_what_is_not_finite_is_refused_before_the_first_piece(dtype: str, value: float) -> None:
    array = np.zeros(300_000, dtype)
    array[-1] = value
    with pytest.raises(
        InvalidRequestError, match="output 'bad' has NaN or infinite values, which JSON"
    ):
        body({"good": np.zeros(1), "bad": array})
