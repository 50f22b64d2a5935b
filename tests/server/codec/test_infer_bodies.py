"""Bodies to named arrays and back: decoding of chunks, and the classification extension."""

import json
from typing import Any

import numpy as np
import pytest

from models.packs.records.ports import Port
from server.codec.framing import Framing
from server.codec.infer_bodies import BodyDecoder, best_classes, decode_at_once
from server.codec.messages import ModelRequest, Signature
from server.errors import InvalidRequestError, ServiceError, TooLargeError
from tests.examples import over
from tests.fuzz.infer import check_message
from tests.server.clients import messages
from tests.server.codec.infer_cases import OUTPUTS
from tests.server.codec.mixed_cases import packed

X = Port(name="x", dtype="float32", shape=(2, 2), value=0)
H = Port(name="h", dtype="float16", shape=(3,), value=1)
B = Port(name="b", dtype="bool", shape=(2,), value=2)
S = Port(name="s", dtype="bytes", shape=(2,), value=3)
ONE = Port(name="one", dtype="bytes", shape=(1, 1), value=4)
EMPTY = Port(name="e", dtype="float32", shape=(0, 3), value=5)
GIVEN = Port(name="g", dtype="int8", shape=(1,), value=6, default="AA==")
_KINDS = {"float32": "FP32", "float16": "FP16", "bool": "BOOL", "bytes": "BYTES", "int8": "INT8"}

NUMBERS = np.array([[1, -0.0], [np.nan, -np.inf]], np.float32)


def entry(port: Port, **fields: Any) -> dict[str, Any]:
    shape = list(port.shape)
    return {"name": port.name, "shape": shape, "datatype": _KINDS[port.dtype], **fields}


def raw(port: Port, n_bytes: Any) -> dict[str, Any]:
    return entry(port, parameters={"binary_data_size": n_bytes})


def mixed(entries: list[dict[str, Any]], *data: bytes) -> tuple[bytes, Framing]:
    text = json.dumps({"inputs": entries}).encode()
    return text + b"".join(data), Framing(len(text))


def read(body: bytes, framing: Framing, *ports: Port, step: int = 0) -> ModelRequest:
    decoder = BodyDecoder(framing, Signature(ports, OUTPUTS))
    for start in range(0, len(body), step or len(body) or 1):
        decoder.feed(body[start : start + (step or len(body))])
    return decoder.finish()


@over("step", [0, 1, 7])
def test_raw_and_json_tensors_in_one_body(step: int) -> None:
    texts = ["ä€😀", ""]
    halves = np.array([65504, np.inf, 6e-8], np.float16)
    body, framing = mixed(
        [
            raw(S, len(packed("bytes", texts))),
            entry(B, data=[True, False]),
            raw(X, 16),
            raw(EMPTY, 0),
            raw(H, 6),
        ],
        *(packed("bytes", texts), NUMBERS.tobytes(), halves.tobytes()),
    )
    found = read(body, framing, X, H, B, S, EMPTY, GIVEN, step=step).inputs
    assert found["s"].tolist() == texts
    assert found["b"].tolist() == [True, False]
    assert found["x"].tobytes() == NUMBERS.tobytes()
    assert found["h"].tobytes() == halves.tobytes()
    assert found["e"].shape == (0, 3)
    assert "g" not in found  # the model has a default


BAD_MIXED: dict[str, tuple[tuple[bytes, Framing], tuple[Port, ...], str]] = {
    "too few": (mixed([raw(X, 16)], bytes(15)), (X,), "'x': the body ends 1 bytes before"),
    "none": (mixed([raw(X, 16)]), (X,), "ends 16 bytes before"),
    "too many": (mixed([raw(X, 16)], bytes(17)), (X,), "goes on behind the data"),
    "behind JSON": (mixed([entry(B, data=[True, True])], b" "), (B,), "goes on behind"),
    "another size": (mixed([raw(X, 12)], bytes(12)), (X,), "binary_data_size 12, shape [2, 2]"),
    "a huge size": (mixed([raw(X, 2**63)], bytes(12)), (X,), "size 9223372036854775808, shape"),
    "an endless size": (mixed([raw(X, 10**4000)]), (X,), "not JSON"),
    "a negative size": (mixed([raw(X, -16)], bytes(16)), (X,), "not a number of bytes"),
    "a fraction": (mixed([raw(X, 16.0)], bytes(16)), (X,), "not a number of bytes"),
    "a flag": (mixed([raw(X, True)], bytes(16)), (X,), "not a number of bytes"),
    "no size": (mixed([raw(X, None)], bytes(16)), (X,), "data: Field required"),
    "twice": (mixed([raw(X, 16)] * 2, bytes(32)), (X,), "'x' is given twice"),
    "both": (mixed([{**raw(X, 16), "data": [0] * 4}], bytes(16)), (X,), "both data and"),
    "booleans": (mixed([raw(B, 2)], b"\1\2"), (B,), "'b': data holds other bytes than 0 and 1"),
    "no UTF-8": (mixed([raw(S, 10)], packed("bytes", "aa")[:-1] + b"\xff"), (S,), "1 is not UTF-8"),
    "a length that lies": (mixed([raw(S, 10)], b"\xff\xff\xff\xff" + bytes(6)), (S,), "2 strings"),
    "too few strings": (mixed([raw(S, 5)], packed("bytes", ["a"])), (S,), "2 strings of shape [2]"),
    "too many strings": (mixed([raw(S, 12)], bytes(12)), (S,), "2 strings of shape [2]"),
    "half a length": (mixed([raw(S, 8)], packed("bytes", ["a", ""])[:8]), (S,), "2 strings"),
    "strings cut off": (mixed([raw(S, 10)], packed("bytes", ["a"])), (S,), "ends 5 bytes before"),
}


@over("what", BAD_MIXED)
def test_what_is_wrong_with_raw_tensors_is_named(what: str) -> None:
    (body, framing), ports, words = BAD_MIXED[what]
    for step in (0, 1):
        with pytest.raises(InvalidRequestError) as info:
            read(body, framing, *ports, step=step)
        check_message(str(info.value))
        assert words in str(info.value)


def test_strings_have_a_limit_said_before_they_come() -> None:
    body, framing = mixed([raw(S, 1 << 40)])
    with pytest.raises(TooLargeError, match="'s': 1099511627776 bytes, over its limit"):
        BodyDecoder(framing, Signature([S], OUTPUTS)).feed(body)


@over("says", [1, 30, 10**18 - 1])
def test_a_header_that_lies(says: int) -> None:
    body, framing = mixed([raw(X, 16)], bytes(16))
    assert framing.json_bytes != says
    with pytest.raises(ServiceError) as info:
        read(body, Framing(says), X)
    check_message(str(info.value))


def test_a_body_shorter_than_its_json() -> None:
    with pytest.raises(InvalidRequestError, match="ends 95 bytes before its JSON does"):
        read(b'{"a":', Framing(100), X)


@pytest.mark.parametrize("step", [0, 3])
def test_a_body_without_json_is_the_one_input(step: int) -> None:
    found = read(NUMBERS.tobytes(), Framing(0), X, GIVEN, step=step)
    assert found.inputs["x"].tobytes() == NUMBERS.tobytes()
    assert all(wanted.is_binary for wanted in found.wanted)
    assert [wanted.name for wanted in found.wanted] == [port.name for port in OUTPUTS]
    assert read("ä\0".encode(), Framing(0), ONE, step=step).inputs["one"].tolist() == [["ä\0"]]
    assert read(b"", Framing(0), ONE).inputs["one"].tolist() == [[""]]


@over(
    "body, ports, words",
    [
        (bytes(16), (X, H), "the model takes 2"),
        (bytes(15), (X,), "ends 1 bytes before"),
        (bytes(17), (X,), "goes on behind"),
        (bytes(16), (S,), "one string alone"),
        (b"\xff", (ONE,), "element 0 is not UTF-8"),
    ],
)
def test_a_body_without_json_that_is_none(body: bytes, ports: tuple[Port, ...], words: str) -> None:
    with pytest.raises(InvalidRequestError, match=words):
        read(body, Framing(0), *ports)


def test_a_string_without_json_has_a_limit() -> None:
    with pytest.raises(TooLargeError, match="over the limit"):
        read(bytes(2_000_000), Framing(0), ONE, step=100_000)


def test_what_strings_hold_is_counted() -> None:
    body, framing = mixed([raw(S, 8 + 300_000)], packed("bytes", ["a" * 300_000, ""]))
    decoder = BodyDecoder(framing, Signature([S], OUTPUTS))
    decoder.feed(body[:200_000])
    assert decoder.loose_bytes > 190_000
    decoder.feed(body[200_000:])
    assert decoder.loose_bytes > 300_000


def test_arrays_are_filled_where_they_stay() -> None:
    """No copy is made on the way: the array that the text announced is the one of the request."""
    body, framing = mixed([raw(X, 16)], NUMBERS.tobytes())
    decoder = BodyDecoder(framing, Signature([X], OUTPUTS))
    decoder.feed(body)
    array = decoder.finish().inputs["x"]
    assert array.flags.c_contiguous
    assert array.flags.aligned
    assert array.base is None


def test_only_what_is_short_and_whole_is_decoded_at_once() -> None:
    body = json.dumps({"inputs": [entry(B, data=[True, False])]}).encode()
    for framing, taken in (
        (Framing(), True),
        (Framing(len(body)), True),
        (Framing(len(body) - 1), False),
        (Framing(len(body) + 1), False),
        (Framing(0), False),
        (Framing(None, "gzip"), False),
    ):
        assert (decode_at_once(body, framing, Signature([B], OUTPUTS)) is not None) == taken


def test_what_tritonclient_usually_sends_is_decoded_at_once() -> None:
    array, texts = np.array([True, False]), messages.strings("ä", "")
    inputs = [messages.tensor("b", array), messages.tensor("s", texts)]
    for outputs in (None, [messages.output("z", False), messages.output("y")]):
        for tensors in (inputs, [messages.tensor("b", array, False), inputs[1]]):
            text, json_bytes = messages.body(tensors, outputs, request_id="7")
            framing = Framing(json_bytes)
            found = decode_at_once(text, framing, Signature([S, B], OUTPUTS))
            assert found is not None
            slow = read(text, framing, S, B)
            assert (found.wanted, found.id) == (slow.wanted, slow.id)
            for name, array_ in slow.inputs.items():
                assert messages.plain(found.inputs[name]) == messages.plain(array_)
            assert decode_at_once(text[:-1], framing, Signature([S, B], OUTPUTS)) is None
            assert decode_at_once(text + b"x", framing, Signature([S, B], OUTPUTS)) is None


# The classification extension: the best classes as text.


@over(
    "scores, count, expected",
    [
        (np.array([0.5, 2, 1], np.float32), 2, ["2.0:1", "1.0:2"]),
        (np.array([[0.1, 0.9]], np.float32), 1, [["0.9:1"]]),
        (np.array([[1, 2], [4, 3]]), 9, [["2:1", "1:0"], ["4:0", "3:1"]]),
        (np.array([3, 3, 3], np.uint8), 2, ["3:0", "3:1"]),
        (np.array([0, 255, -0], np.uint8), 3, ["255:1", "0:0", "0:2"]),
        (np.array([-128, 127], np.int8), 2, ["127:1", "-128:0"]),
        (np.array([np.nan, -np.inf, 1, np.inf]), 4, ["inf:3", "1.0:2", "nan:0", "-inf:1"]),
        (np.array(7.0), 1, ["7.0:0"]),
        (np.arange(8.0).reshape(1, 2, 2, 2), 1, [["7.0:7"]]),
        (np.empty((2, 0)), 3, [[], []]),
        (np.empty((0, 2)), 3, []),
        (np.array([2**53 + 1, 2**53]), 2, ["9007199254740993:0", "9007199254740992:1"]),
    ],
)
def test_best_first(scores: Any, count: int, expected: list[Any]) -> None:
    assert best_classes(scores, count).tolist() == expected


def test_labels_as_far_as_they_go() -> None:
    found = best_classes(np.array([[1.0, 3, 2]]), 3, ["cat", "a:b"])
    assert found.tolist() == [["3.0:1:a:b", "2.0:2", "1.0:0:cat"]]


def test_the_score_is_the_output_to_the_bit() -> None:
    scores = np.random.default_rng(0).standard_normal(100).astype(np.float32)
    for line in best_classes(scores, 100).tolist():
        value, index = line.split(":")
        assert np.float32(value) == scores[int(index)]
