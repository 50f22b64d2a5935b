"""The short way of reading a request: what it takes is what RequestReader takes, to the bit."""

import json
import random
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from models.packs.records.ports import Port
from server.codec.framing import Framing
from server.codec.infer_bodies import PLAIN_BYTES, decode_at_once
from server.codec.messages import ModelRequest, Signature
from server.codec.text.reader import RequestReader
from server.errors import ServiceError
from tests.examples import examples, over
from tests.server.codec.infer_cases import OUTPUTS, draw_body, draw_ports

X = Port(name="x", dtype="float32", shape=(1, 2), value=0)
N = Port(name="n", dtype="int8", shape=(2,), value=1)
S = Port(name="s", dtype="bytes", shape=(1,), value=2)
B = Port(name="b", dtype="bool", shape=(1,), value=3)
C = Port(name="c", dtype="float64", shape=(), value=4)
Ports = tuple[Port, ...]


def slowly(body: bytes, ports: Ports) -> ModelRequest | None:
    """What RequestReader makes of ``body``; None: it refuses."""
    reader = RequestReader(Signature(ports, OUTPUTS))
    try:
        reader.feed(body)
        return reader.finish()
    except ServiceError:
        return None


def meaning(request: ModelRequest | None) -> Any:
    """``request`` as something that is equal exactly where its bits are."""
    if request is None:
        return None
    arrays = {
        name: (
            array.dtype,
            array.shape,
            array.tolist() if array.dtype == object else array.tobytes(),
        )
        for name, array in request.inputs.items()
    }
    return arrays, request.wanted, request.id, request.timeout_seconds, request.priority


def taken(body: bytes, ports: Ports) -> bool:
    """Check that ``body`` is read as RequestReader reads it, or left to it; return whether it was read."""
    found = decode_at_once(body, Framing(), Signature(ports, OUTPUTS))
    if found is not None:
        assert meaning(found) == meaning(slowly(body, ports))
        assert all(array.flags.c_contiguous for array in found.inputs.values())
    return found is not None


def tensor(**changes: Any) -> dict[str, Any]:
    return {"name": "x", "shape": [1, 2], "datatype": "FP32", "data": [1.5, 2], **changes}


def whole(**changes: Any) -> dict[str, Any]:
    return {"inputs": [tensor()], **changes}


@given(seed=st.integers(0, 2**64))
@examples(few=40, many=20_000)
def test_any_request_is_left_alone_or_read_as_the_reader_does(seed: int) -> None:
    rng = random.Random(seed)
    ports = draw_ports(rng)
    taken(draw_body(rng, ports), ports)


@over(
    "document, ports",
    [
        (whole(), (X,)),
        (whole(id="a b", outputs=[{"name": "z"}, {"name": "y"}]), (X,)),
        (whole(outputs=[]), (X,)),
        (whole(parameters={"timeout": 150000, "priority": 1}), (X,)),
        (whole(parameters={"binary_data_output": True, "timeout": 0}), (X,)),
        (whole(id="ä"), (X,)),
        ({"inputs": [tensor(name="n", shape=[2], datatype="INT8", data=[-128, 127])]}, (N,)),
        ({"inputs": [tensor(name="b", shape=[1], datatype="BOOL", data=[True])]}, (B,)),
        ({"inputs": [tensor(name="c", shape=[], datatype="FP64", data=[-0.0])]}, (C,)),
        (
            {"inputs": [tensor(name="n", shape=[2], datatype="INT8", data=[0, 1]), tensor()]},
            (X, N),
        ),
    ],
)
@over("style", [{}, {"separators": (",", ":")}, {"indent": 1}])
def test_ordinary_requests_are_taken(
    document: dict[str, Any], ports: Ports, style: dict[str, Any]
) -> None:
    assert taken(json.dumps(document, ensure_ascii=False, **style).encode(), ports)


_NAMES: list[Any] = [1, None, [], {}, "y", True]
_SHAPES: list[Any] = [[True, 2], [1.0, 2], [1, "2"], "12", 2, [2], [1, 2, 1], None, {}, [[1, 2]]]
_KINDS: list[Any] = ["FP64", "fp32", 1, None, ["FP32"]]
_DATA: list[Any] = [
    *([], [1], [1, 2, 3], "12", None, 1, {}, [True, 1], ["1", 2], [None, 1], [1, [2]], [[1, 2]]),
    *([[1], [2]], [[[1, 2]]], [{}, 1], [1e39, 0], [10**30, 0], [2**64, -(2**63)]),
]


@over(
    "document",
    [
        *(1, 0, None, True, "inputs", "x", [], {}, [{}], 1.5, ["inputs"], {"inputs": None}),
        *({"inputs": 1}, {"inputs": {}}, {"inputs": "x"}, {"inputs": [1]}, {"inputs": ["x"]}),
        *({"inputs": [None]}, {"inputs": [[]]}, {"inputs": []}, {"inputs": [tensor(), tensor()]}),
        *(whole(id=1), whole(id=None), whole(id=[]), whole(other=1), whole(parameters={})),
        *(whole(outputs=1), whole(outputs="x"), whole(outputs=["x"]), whole(outputs={"a": 1})),
        *(whole(outputs=None), whole(outputs=[1]), whole(outputs=[None]), whole(outputs=[[]])),
        *(whole(outputs=[["name"]]), whole(outputs=[{"name": 1}]), whole(outputs=[{"name": None}])),
        *(whole(outputs=[{"name": []}]), whole(outputs=[{"other": "y"}]), whole(outputs=[{}])),
        *(whole(outputs=[{"name": "y"}] * 2), whole(outputs=[{"name": "no"}])),
        whole(outputs=[{"name": "y", "parameters": {"binary_data": True}}]),
        *({"inputs": [tensor(name=name)]} for name in _NAMES),
        *({"inputs": [tensor(shape=shape)]} for shape in _SHAPES),
        *({"inputs": [tensor(datatype=kind)]} for kind in _KINDS),
        *({"inputs": [tensor(data=data)]} for data in _DATA),
        *({"inputs": [tensor(parameters={})]}, {"inputs": [tensor(other=1)]}),
        whole(parameters={"timeout": 1}),
    ],
)
def test_whatever_else_is_left_to_the_reader(document: Any) -> None:
    """Not every one of these is wrong; each must be left alone without an error, or read the same."""
    taken(json.dumps(document).encode(), (X,))


@over(
    "text",
    [
        '{"inputs":[T],"inputs":[T]}',
        '{"id":"a","inputs":[T],"id":"b"}',
        '{"inputs":[{"name":"x","name":"x","shape":[1,2],"datatype":"FP32","data":[1,2]}]}',
        '{"inputs":[{"name":"x","shape":[1,2],"datatype":"FP32","data":[9],"data":[1,2]}]}',
        '{"inputs":[{"name":"x","shape":[9],"shape":[1,2],"datatype":"FP32","data":[1,2]}]}',
        '{"inputs":[T],"outputs":[{"name":"y","name":"z"}]}',
        '{"inputs":[T],"outputs":[],"outputs":[]}',
        '{"inputs":[T],"id":null,"id":"a"}',
        '{"inp\\u0075ts":[T]}',
        '{"inputs":[T]}x',
        '{"inputs":[T],}',
        '{"inputs":[{"name":"x","shape":[1,2],"datatype":"FP32","data":[NaN,1]}]}',
        '{"inputs":[{"name":"x","shape":[1,2],"datatype":"FP32","data":[1e400,1]}]}',
        '{"inputs":[{"name":"x","shape":[1,2],"datatype":"FP32","data":[01,1]}]}',
        '{"inputs":[{"name":"x","shape":[1e0,2],"datatype":"FP32","data":[1,1]}]}',
        "\ufeff" + '{"inputs":[T]}',
        "",
        " ",
        "\0",
    ],
)
def test_what_parsers_differ_about(text: str) -> None:
    body = text.replace("T", json.dumps(tensor())).encode()
    assert not taken(body, (X,))
    assert slowly(body, (X,)) is None or "\\u" in text


@pytest.mark.parametrize("body", [b'{"inputs":[\xff]}', b'{"inputs":[]}'.decode().encode("utf-16")])
def test_bytes_that_are_no_text(body: bytes) -> None:
    assert not taken(body, (X,))


@over("depth", [30, 500, 950, 1020, 2000])
@over("nested", [("[", "]"), ('{"a":', "}"), ('[{"":', "}]")])
def test_nesting_is_left_to_the_reader(depth: int, nested: tuple[str, str]) -> None:
    """Also such as a parser takes, and a function that calls itself does not."""
    inner = nested[0] * depth + "1" + nested[1] * depth
    for key in ("inputs", "id", "data", "more"):
        assert not taken(f'{{"{key}":{inner}}}'.encode()[:PLAIN_BYTES], (X,))


def test_a_string_where_the_model_takes_strings() -> None:
    document = {"inputs": [tensor(name="s", shape=[1], datatype="BYTES", data=["a"])]}
    taken(json.dumps(document).encode(), (S,))


def test_a_value_is_not_taken_out_of_the_row_that_it_comes_in() -> None:
    """One value in a list of lists has as many items as the shape asks for, and NumPy would take it."""
    port = Port(name="x", dtype="float32", shape=(1,), value=0)
    body = json.dumps({"inputs": [tensor(shape=[1], data=[[5]])]}).encode()
    assert slowly(body, (port,)) is None
    assert not taken(body, (port,))


def test_a_longer_body_is_the_readers() -> None:
    body = json.dumps(whole()).encode()
    assert taken(body.ljust(PLAIN_BYTES), (X,))
    assert not taken(body.ljust(PLAIN_BYTES + 1), (X,))


@given(st.lists(st.floats(width=32, allow_nan=False), min_size=2, max_size=2))
@examples(few=12, many=500)
def test_values_to_the_bit(values: list[float]) -> None:
    body = json.dumps({"inputs": [tensor(data=values)]}).encode()
    request = decode_at_once(body, Framing(), Signature((X,), OUTPUTS))
    expected = np.array([values], np.float32)
    if request is None:
        assert not np.isfinite(expected).all()
    else:
        assert request.inputs["x"].tobytes() == expected.tobytes()
