"""Requests read chunk by chunk: the same as by the plain rules, however they are cut, in bounded memory."""

import json
import random
import time
import tracemalloc
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from models.packs.records.ports import Port
from server.codec.datatypes import body_limit
from server.codec.framing import Framing
from server.codec.infer_bodies import BodyDecoder
from server.codec.messages import ModelRequest, Signature, WantedOutput
from server.codec.text.reader import RequestReader
from server.codec.text.values import layout
from server.errors import InvalidRequestError, ServiceError, TooLargeError, shown
from tests.examples import examples, over
from tests.fuzz.infer import check_message, check_same, compare
from tests.server.codec.infer_cases import OUTPUTS, nested
from tests.server.codec.infer_oracle import meaning

X = Port(name="x", dtype="float32", shape=(2, 2), value=0)
N = Port(name="n", dtype="int64", shape=(3,), value=1)
S = Port(name="s", dtype="bytes", shape=(2,), value=2)
SCALAR = Port(name="c", dtype="float64", shape=(), value=3)


def read(body: bytes, *ports: Port, step: int = 0) -> ModelRequest:
    """Read ``body`` in chunks of ``step`` bytes, or in one."""
    decoder = BodyDecoder(Framing(), Signature(ports or (X,), OUTPUTS))
    feed_bytes(decoder, body, step or len(body) or 1)
    return decoder.finish()


def feed_bytes(reader: RequestReader | BodyDecoder, body: bytes, step: int = 1) -> None:
    for start in range(0, len(body), step):
        reader.feed(body[start : start + step])


def refused(body: bytes, *ports: Port) -> str:
    """Check that ``body`` is refused in one chunk and in single bytes; return the error."""
    with pytest.raises(ServiceError):
        read(body, *ports, step=1)
    with pytest.raises(InvalidRequestError) as info:
        read(body, *ports)
    check_message(str(info.value))
    return str(info.value)


def tensor(data: str, **fields: Any) -> bytes:
    """A request for X with ``data`` as text."""
    rest = {"name": "x", "shape": [2, 2], "datatype": "FP32", **fields}
    text = json.dumps({key: value for key, value in rest.items() if value is not None})
    return b'{"inputs":[%b,"data":%b}]}' % (text[:-1].encode(), data.encode())


GOOD = tensor("[1,2,3,4]")


@given(seed=st.integers(0, 2**64))
@examples(50, many=2500)
def test_any_request_in_any_chunks_is_what_the_plain_rules_say(seed: int) -> None:
    compare(random.Random(seed))


@over(
    "data, values",
    [
        ("[1,2,3,4]", [1, 2, 3, 4]),
        ("[[1,2],[3,4]]", [1, 2, 3, 4]),
        (" [ [ 1 , 2 ] ,\n[ 3 ,\t4 ] \r] ", [1, 2, 3, 4]),
        ("[-0.0,1e2,1E+2,0.5]", [-0.0, 100, 100, 0.5]),
        ("[-0,16777217,1e-400,123456789012345678901234567890]", [0, 16777216, 0, 1.2345679e29]),
    ],
)
def test_numbers(data: str, values: list[float]) -> None:
    for step in (0, 1, 2, 5):
        array = read(tensor(data), step=step).inputs["x"]
        assert array.tobytes() == np.array(values, np.float32).tobytes()
        assert array.dtype == np.dtype(np.float32)
        assert array.shape == (2, 2)


NOT_JSON = "not JSON"
BAD_DATA: dict[str, tuple[str, str]] = {
    "no value between commas": ("[1,,2,3]", NOT_JSON),
    "no comma": ("[1 2,3,4]", NOT_JSON),
    "no first value": ("[,1,2,3]", NOT_JSON),
    "no last value": ("[1,2,3,4,]", NOT_JSON),
    "only a comma": ("[,]", NOT_JSON),
    "zero in front": ("[01,2,3,4]", NOT_JSON),
    "plus": ("[+1,2,3,4]", NOT_JSON),
    "nothing behind the point": ("[1.,2,3,4]", NOT_JSON),
    "nothing before the point": ("[.5,2,3,4]", NOT_JSON),
    "nothing behind the exponent": ("[1e,2,3,4]", NOT_JSON),
    "hexadecimal": ("[0x1,2,3,4]", NOT_JSON),
    "underscore": ("[1_0,2,3,4]", NOT_JSON),
    "vertical tab": ("[1,\v2,3,4]", NOT_JSON),
    "NaN": ("[NaN,2,3,4]", "NaN, which is not JSON"),
    "infinity": ("[1,2,3,Infinity]", "Infinity, which is not JSON"),
    "minus infinity": ("[1,-Infinity,3,4]", "-Infinity, which is not JSON"),
    "nan in small letters": ("[nan,2,3,4]", NOT_JSON),
    "over a double": ("[1e400,2,3,4]", NOT_JSON),
    "over float32": ("[1e39,2,3,4]", "FP32 cannot hold"),
    "comment": ("[1,/**/2,3,4]", NOT_JSON),
    "boolean": ("[1,true,3,4]", "booleans, not float32"),
    "null": ("[null,2,3,4]", "null, not float32"),
    "string": ('["1",2,3,4]', "strings, not float32"),
    "a later string": ('[1,"2,]",3,4]', "strings, not float32"),
    "object": ('[1,{"a":2},3,4]', "objects, not float32"),
    "no number": ("[]", "0 elements, shape [2, 2] has 4"),
    "too few": ("[1,2,3]", "3 elements, shape [2, 2] has 4"),
    "too many": ("[1,2,3,4,5]", "5 elements, shape [2, 2] has 4"),
    "ragged": ("[[1,2,3],[4]]", "neither flat nor in rows"),
    "rows and numbers": ("[[1,2],3,4]", "neither flat nor in rows"),
    "numbers and rows": ("[1,2,[3,4]]", "neither flat nor in rows"),
    "too deep": ("[[[1,2],[3,4]]]", "neither flat nor in rows"),
    "other rows": ("[[1,2,3,4]]", "neither flat nor in rows"),
    "number before a row": ("[[1[,2],[3,4]]", NOT_JSON),
    "number behind a row": ("[[1,]2,[3,4]]", NOT_JSON),
    "no comma between rows": ("[[1,2][3,4]]", NOT_JSON),
    "empty rows": ("[[],[]]", NOT_JSON),
    "a bomb of brackets": ("[" * 100_000, "neither flat nor in rows"),
    "an endless number": ("[" + "1" * 5000 + ",2,3,4]", "over 4096 characters"),
    "not closed": ("[1,2,3,4", NOT_JSON),
    "closed twice": ("[1,2,3,4]]", NOT_JSON),
    "closed by a brace": ("[1,2,3,4}", NOT_JSON),
    "text": ('"AAAA"', "inputs.0.data"),
    "an object": ("{}", "inputs.0.data"),
    "nothing": ("null", "inputs.0.data"),
}


@over("what", BAD_DATA)
def test_bad_data(what: str) -> None:
    data, words = BAD_DATA[what]
    assert words in refused(tensor(data))


@over("data", ["3.0", "3", "true", '"3"', "null", "{}"])
def test_a_value_that_is_in_no_list_is_refused_by_the_name_of_its_input(data: str) -> None:
    """Tensors without dimensions are lists of one value, too."""
    body = tensor(data, name="c", shape=[], datatype="FP64")
    assert refused(body, SCALAR).startswith("input 'c': inputs.0.data: ")


@over(
    "fields",
    [
        {"shape": "2,2"},
        {"dtype": "FP32"},
        {"parameters": []},
        {"parameters": {"binary_data_size": 16}},
        {"parameters": {"shared_memory_region": "a"}},
    ],
)
def test_what_is_wrong_with_an_input_has_its_name(fields: dict[str, Any]) -> None:
    assert refused(entry(**fields)).startswith("input 'x': inputs.0")


def request(**fields: Any) -> bytes:
    """A request for X with other fields; None leaves one out."""
    document = {"inputs": json.loads(GOOD)["inputs"], **fields}
    return json.dumps({k: v for k, v in document.items() if v is not None}).encode()


def entry(**fields: Any) -> bytes:
    return request(inputs=[{**json.loads(GOOD)["inputs"][0], **fields}])


BAD_BODIES: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "the body is empty"),
    "white space": (b"  \n", NOT_JSON),
    "text": (b"hello", "begins with 'h'"),
    "a list": (b"[1]", "begins with '['"),
    "cut": (GOOD[:-1], NOT_JSON),
    "cut in a string": (GOOD[:5], NOT_JSON),
    "something behind": (GOOD + b"x", NOT_JSON),
    "another request behind": (GOOD + GOOD, NOT_JSON),
    "a brace too many": (GOOD + b"}", "brackets do not match"),
    "brackets crossed": (b'{"inputs":[}]', "brackets do not match"),
    "UTF-16": (GOOD.decode().encode("utf-16"), "begins like UTF-16"),
    "UTF-16 without a mark": (GOOD.decode().encode("utf-16-le"), "begins like UTF-16"),
    "UTF-16, the other way round": (GOOD.decode().encode("utf-16-be"), "begins like UTF-16"),
    "UTF-32": (GOOD.decode().encode("utf-32"), "begins like UTF-32"),
    "UTF-32 without a mark": (GOOD.decode().encode("utf-32-be"), "begins like UTF-32"),
    "a byte order mark": (b"\xef\xbb\xbf" + GOOD, "byte order mark"),
    "zeros": (bytes(100), NOT_JSON),
    "not UTF-8": (b'{"id":"\xff",' + GOOD[1:], NOT_JSON),
    "half a character": (b'{"id":"\\ud800",' + GOOD[1:], NOT_JSON),
    "a control character": (b'{"id":"\n",' + GOOD[1:], NOT_JSON),
    "a colon too many": (b'{"id"::1,' + GOOD[1:], NOT_JSON),
    "a colon in a list": (b'{"id":["a":1],' + GOOD[1:], NOT_JSON),
    "NaN outside of data": (b'{"id":NaN,' + GOOD[1:], NOT_JSON),
    "inputs twice": (GOOD[:-1] + b"," + GOOD[1:], "'inputs' is given twice"),
    "data twice": (GOOD[:-3] + b',"data":[1]}]}', "'data' is given twice"),
    "data twice, once escaped": (GOOD[:-3] + b',"d\\u0061ta":[1]}]}', "'data' is given twice"),
    "name twice": (GOOD[:-3] + b',"name":"y"}]}', "'name' is given twice"),
    "a parameter twice": (GOOD[:-1] + b',"parameters":{"a":1,"a":1}}', "'a' is given twice"),
    "a bomb of objects": (b'{"a":' * 100_000, "nested over 32 deep"),
    "a bomb of lists": (b'{"a":' + b"[" * 100_000, "nested over 32 deep"),
    "many lists": (b'{"a":[' + b"[]," * 90_000, "more values"),
    "many numbers": (b'{"a":[' + b"1," * 9000 + b"1]}", "more values"),
    "many keys": (b"{" + b"".join(b'"%d":1,' % i for i in range(9000)), "more values"),
    "no name": (entry(name=None).replace(b'"name": null, ', b""), "inputs.0.name"),
    "a number for a name": (entry(name=1), "inputs.0.name"),
    "another name": (entry(name="y"), "unknown input 'y'; the model takes 'x'"),
    "a shape of strings": (entry(shape=["2", "2"]), "inputs.0.shape.0"),
    "a shape of booleans": (entry(shape=[True, 2]), "inputs.0.shape.0"),
    "a shape of fractions": (entry(shape=[2.0, 2]), "inputs.0.shape.0"),
    "a negative shape": (entry(shape=[-2, -2]), "shape [-2, -2], the model takes [2, 2]"),
    "a text for a shape": (entry(shape="2,2"), "inputs.0.shape"),
    "another shape": (entry(shape=[4]), "shape [4], the model takes [2, 2]"),
    "another datatype": (entry(datatype="FP64"), "datatype 'FP64', the model takes FP32"),
    "a field that is none": (entry(dtype="FP32"), "inputs.0.dtype"),
    "a list for parameters": (entry(parameters=[]), "inputs.0.parameters"),
    "data beside a binary size": (entry(parameters={"binary_data_size": 16}), "both data and"),
    "an output that is none": (request(outputs=[{"name": "a"}]), "unknown output 'a'"),
    "an output twice": (request(outputs=[{"name": "y"}] * 2), "'y' is asked for twice"),
    "outputs without names": (request(outputs=[{}]), "outputs.0.name"),
    "outputs of text": (request(outputs="y"), "outputs"),
    "an id that is no text": (request(id=1), "id"),
    "no inputs": (request(inputs=[]), "input 'x' is missing"),
    "inputs of numbers": (request(inputs=[1]), "inputs.0"),
    "inputs left out": (request(inputs=None), "inputs"),
    "twice": (request(inputs=json.loads(GOOD)["inputs"] * 2), "'x' is given twice"),
}


@over("what", BAD_BODIES)
def test_bad_bodies(what: str) -> None:
    body, words = BAD_BODIES[what]
    assert words in refused(body)


def wants(**parameters: Any) -> bytes:
    return request(outputs=[{"name": "y", "parameters": parameters}])


@over(
    "body, words",
    [
        (wants(binary_data="yes"), "outputs.0.parameters.binary_data: not a boolean"),
        (wants(binary_data=0), "outputs.0.parameters.binary_data: not a boolean"),
        (request(parameters={"binary_data_output": "no"}), "binary_data_output: not a boolean"),
        (wants(classification=0), "classification: not a number of classes above 0"),
        (wants(classification=-1), "outputs.0.parameters.classification: not a number of classes"),
        (wants(classification=True), "classification: not a number of classes"),
        (wants(shared_memory_region="a"), "outputs.0: shared memory is not served"),
        (entry(data=None, parameters={"shared_memory_region": "a"}), "inputs.0: shared memory"),
        (entry(data=None, parameters={"binary_data_size": 16}), "no header Inference-Header"),
        (entry(data=None, parameters={"binary_data_size": True}), "not a number of bytes"),
        (entry(data=None, parameters={"binary_data_size": 12}), "of FP32 has 16 bytes"),
    ],
)
def test_parameters_that_contradict(body: bytes, words: str) -> None:
    assert words in refused(body)


@over(
    "body, wanted",
    [
        (GOOD, (WantedOutput("y"), WantedOutput("z"))),
        (wants(binary_data=False), (WantedOutput("y"),)),
        (wants(binary_data=True, more=[{}]), (WantedOutput("y", is_binary=True),)),
        (wants(classification=3), (WantedOutput("y", n_classes=3),)),
        (
            request(parameters={"binary_data_output": False, "more": [{}]}),
            (WantedOutput("y"), WantedOutput("z")),
        ),
        (
            request(parameters={"binary_data_output": True}),
            (WantedOutput("y", is_binary=True), WantedOutput("z", is_binary=True)),
        ),
        (
            request(
                parameters={"binary_data_output": True},
                outputs=[{"name": "z"}, {"name": "y", "parameters": {"binary_data": False}}],
            ),
            (WantedOutput("z", is_binary=True), WantedOutput("y")),
        ),
    ],
)
def test_what_is_asked_for(body: bytes, wanted: tuple[WantedOutput, ...]) -> None:
    assert read(body).wanted == wanted


@over("microseconds, seconds", [(0, None), (1, 1e-6), (1_500_000, 1.5), (2**63, 2**63 / 1e6)])
def test_a_timeout_is_in_microseconds(microseconds: int, seconds: float | None) -> None:
    assert read(request(parameters={"timeout": microseconds})).timeout_seconds == seconds


@over("timeout", [-1, 1.0, 1e30, True, "1", None, [], {}])
def test_a_timeout_that_is_none(timeout: Any) -> None:
    assert "parameters.timeout" in refused(request(parameters={"timeout": timeout}))


def named(name: str, kind: str, shape: list[int], data: Any) -> dict[str, Any]:
    return {"data": data, "datatype": kind, "name": name, "shape": shape}


@over("step", [0, 1, 7])
def test_data_may_come_before_the_name(step: int) -> None:
    tensors = [
        named("n", "INT64", [3], [2**53 + 1, -(2**63), 2**63 - 1]),
        named("x", "FP32", [2, 2], [[1, 2.5], [-0.0, 2**53 + 1]]),
        named("s", "BYTES", [2], ["a,]", 'ä"']),
        named("c", "FP64", [], [1]),
    ]
    found = read(json.dumps({"inputs": tensors}).encode(), X, N, S, SCALAR, step=step).inputs
    assert found["n"].tolist() == tensors[0]["data"]
    assert found["x"].tobytes() == np.array([1, 2.5, -0.0, 2**53], np.float32).tobytes()
    assert found["s"].tolist() == tensors[2]["data"]
    assert found["c"].shape == ()


@over(
    "data",
    [[1, 2], [1, 2, 3, 4, 5], [[1, 2, 3]], ["a"], [True, 1], [None], [1.5, 2, 3], ["a", "b"]],
)
def test_data_before_the_name_are_checked(data: list[Any]) -> None:
    refused(json.dumps({"inputs": [named("n", "INT64", [3], data)]}).encode(), N, X, S)


def test_more_inputs_than_there_are() -> None:
    inputs = [named("n", "INT64", [3], [1, 2, 3])] * 3
    assert "more inputs" in refused(json.dumps({"inputs": inputs}).encode(), N, X)


@over(
    "body, length",
    [
        (b"x" + bytes(99), 4),
        (tensor("[1,2,3,4,5,"), len(tensor("[1,2,3,4,5,")) - 3),
        (tensor("[[1,2,3,"), len(tensor("[[1,2,3,")) - 3),
        (tensor("[1,true,"), len(tensor("[1,true,")) - 3),
        (tensor("[", name="y"), len(tensor("[", name="y")) - 3),
        (tensor("[", shape=[4]), len(tensor("[", shape=[4])) - 3),
        (tensor("[", datatype="FP64"), len(tensor("[", datatype="FP64")) - 3),
        (b'{"inputs":[}', 12),
    ],
)
def test_what_is_wrong_is_refused_before_the_rest_comes(body: bytes, length: int) -> None:
    with pytest.raises(InvalidRequestError):
        feed_bytes(RequestReader(Signature((X,), OUTPUTS)), body[:length])


def test_a_body_over_the_limit() -> None:
    reader = RequestReader(Signature((X,), OUTPUTS))
    limit = body_limit((X,))
    reader.feed(tensor("[ ")[:-3])
    with pytest.raises(TooLargeError, match=str(limit)):
        feed_bytes(reader, b" " * limit, 1000)
    assert reader.held_bytes < 1 << 14


def test_what_is_not_data_has_a_limit() -> None:
    reader = RequestReader(Signature((X,), OUTPUTS))
    with pytest.raises(TooLargeError, match="without its data"):
        reader.feed(b'{"id":"' + b"a" * (200 << 10))


@pytest.mark.parametrize("length", [4000, 4096, 4097, 5000])
@pytest.mark.parametrize("step", [0, 1, 1000])
def test_long_numbers_are_judged_alike_in_all_chunks(length: int, step: int) -> None:
    body = tensor("[ 0." + "0" * (length - 3) + "1 " + " " * 9000 + ",2,3,4]")
    if length > 4096:
        with pytest.raises(InvalidRequestError, match="over 4096 characters"):
            read(body, step=step)
    else:
        assert read(body, step=step).inputs["x"][0, 0] == 0


@over("spaces", ["", " ", "  ", "\n    "])
def test_indented_brackets_around_dense_values(spaces: str) -> None:
    """Where orjson expects few values in many bytes: in data, in rows, and in everything else."""
    port = Port(name="x", dtype="int8", shape=(2, 3000), value=0)
    ones = ",".join(["1"] * 3000)
    parameters = f'{{{spaces}"a":[{",".join(["1"] * 900)}]}}'
    for data in (f"[{spaces}{ones},{ones}]", f"[{spaces}[{spaces}{ones}],[{ones}]]"):
        body = tensor(data, shape=[2, 3000], datatype="INT8")
        body = f'{{{spaces}"parameters":{parameters},'.encode() + body[1:]
        assert (read(body, port).inputs["x"] == 1).all()


@pytest.mark.parametrize("step", [1, 3, 1000, 0])
def test_long_strings_come_in_many_chunks(step: int) -> None:
    words = ["\\" * 3000 + '"]' * 3000, "ä€😀" * 2000]
    body = json.dumps({"inputs": [named("s", "BYTES", [2], words)]}).encode()
    assert read(body, S, step=step).inputs["s"].tolist() == words


def test_a_request_is_never_held() -> None:
    port = Port(name="x", dtype="float32", shape=(1, 3, 100, 100), value=0)
    array = np.random.default_rng(0).standard_normal(port.shape).astype(np.float32)
    for data in (array.tolist(), array.ravel().tolist()):
        body = json.dumps({"inputs": [named("x", "FP32", [1, 3, 100, 100], data)]}).encode()
        reader = RequestReader(Signature((port,), OUTPUTS))
        tracemalloc.start()
        try:
            for start in range(0, len(body), 16384):
                reader.feed(memoryview(body)[start : start + 16384])
                assert reader.held_bytes <= array.nbytes + 16384
            found = reader.finish()
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert (found.inputs["x"] == array).all()
        assert peak <= array.nbytes + (1 << 20)


def test_what_is_held_is_counted() -> None:
    """Each kind of thing that is kept: before names, strings, text that waits."""
    for port in (N, S):
        values = ["a" * 50_000] * 2 if port is S else [1, 2, 3]
        body = json.dumps({"inputs": [named(port.name, "", [], values)]}).encode()
        reader = RequestReader(Signature((port, X), OUTPUTS))
        start = body.index(b"[", 15)
        tracemalloc.start()
        try:
            reader.feed(body[: start + 1])
            before = tracemalloc.get_traced_memory()[0] - reader.held_bytes
            reader.feed(body[start + 1 : -5])
            grown = tracemalloc.get_traced_memory()[0] - before
        finally:
            tracemalloc.stop()
        assert grown <= reader.held_bytes + 4096


@pytest.mark.slow
def test_single_bytes_take_time_by_their_number() -> None:
    """Twice the bytes, twice the time: nothing is read again and again."""

    def seconds(length: int) -> float:
        body = json.dumps({"inputs": [named("s", "BYTES", [2], ["\\" * length, ""])]}).encode()
        started = time.process_time()
        read(body, S, step=1)
        return time.process_time() - started

    assert seconds(40_000) < 8 * seconds(10_000)


@given(
    shape=st.lists(st.integers(1, 4), min_size=1, max_size=4),
    values=st.sampled_from([1, 4, 1024]),
    length=st.sampled_from([1, 16, 4096]),
)
@examples(40, many=1000)
def test_layouts(shape: list[int], values: int, length: int) -> None:
    zeros = nested([0] * int(np.prod(shape)), shape)
    text = json.dumps(zeros, separators=(",", ":")).replace("0", "").encode()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("server.codec.text.values._ROW_VALUES", values)
        patch.setattr("server.codec.text.values._LAYOUT_BYTES", length)
        assert b"".join(layout(tuple(shape))) == text


def test_no_value_and_one_are_not_the_same() -> None:
    one = Port(name="x", dtype="float32", shape=(1, 1), value=0)
    for data in ("[]", "[[]]"):
        assert "neither" in (message := refused(tensor(data, shape=[1, 1]), one)) or "0" in message


def test_an_input_without_elements() -> None:
    empty = Port(name="x", dtype="float32", shape=(0, 2), value=0)
    assert read(tensor("[ ]", shape=[0, 2]), empty).inputs["x"].shape == (0, 2)
    refused(tensor("[1]", shape=[0, 2]), empty)


def test_the_oracle_takes_what_is_right() -> None:
    check_same(read(GOOD), meaning(GOOD, (X,), OUTPUTS))


@over("text", ["", "a", "ä" * 60, "a" * 61, "\n" * 10**6, "\ud800", "'" * 100])
def test_what_is_shown_is_short_and_one_line(text: str) -> None:
    assert len(shown(text)) < 400
    assert shown(text).isprintable()
    assert shown("x") == "'x'"
