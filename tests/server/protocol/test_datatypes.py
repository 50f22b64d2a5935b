"""Every datatype of the Open Inference Protocol, in and out, for models that cannot be streamed whole."""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import onnx
import pytest
import pytest_asyncio
from hypothesis import HealthCheck, given
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from models.compiler import CompileOptions, compile_onnx
from models.packs.pack import open_pack
from pipeline.program.program import Program
from pipeline.program.sessions import session_bytes
from server.codec.datatypes import DATATYPES
from server.settings.settings import Settings
from tests.examples import examples, over
from tests.server.clients import messages
from tests.server.support import ServiceUnderTest, error, serving

pytestmark = pytest.mark.asyncio(loop_scope="module")

SHARED = examples(10, many=500, suppress_health_check=[HealthCheck.function_scoped_fixture])

EXTREMES: dict[str, list[Any]] = {
    "BOOL": [True, False],
    "UINT8": [0, 255],
    "UINT16": [0, 65535],
    "UINT32": [0, 2**32 - 1],
    "UINT64": [0, 2**64 - 1],
    "INT8": [-128, 127],
    "INT16": [-(2**15), 2**15 - 1],
    "INT32": [-(2**31), 2**31 - 1],
    "INT64": [-(2**63), 2**63 - 1],
    "FP16": [-65504.0, 6e-8],
    "FP32": [-3.4028234663852886e38, 1.401298464324817e-45],
    "FP64": [-1.7976931348623157e308, 5e-324],
    "BYTES": ["", 'ä€😀 \0 [1, {"x": 2}], "\\'],
}
_ELEMENTS = {
    "BOOL": TensorProto.BOOL,
    "FP16": TensorProto.FLOAT16,
    "FP32": TensorProto.FLOAT,
    "FP64": TensorProto.DOUBLE,
    "BYTES": TensorProto.STRING,
}


def _element(datatype: str) -> int:
    return _ELEMENTS.get(datatype) or int(TensorProto.DataType.Value(datatype))


def _model(nodes: Any, inputs: Any, outputs: Any, *constants: onnx.TensorProto) -> onnx.ModelProto:
    graph = helper.make_graph(nodes, "g", inputs, outputs, list(constants))
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)


def _copy(datatype: str) -> onnx.ModelProto:
    kind = _element(datatype)
    return _model(
        [helper.make_node("Identity", ["x"], ["y"]), helper.make_node("Tile", ["x", "two"], ["z"])],
        [helper.make_tensor_value_info("x", kind, (2,))],
        [helper.make_tensor_value_info(name, kind, (n,)) for name, n in (("y", 2), ("z", 4))],
        numpy_helper.from_array(np.array([2]), "two"),
    )


def _words() -> onnx.ModelProto:
    """Strings and numbers in, strings, a scalar and a shape that depends on them out."""
    return _model(
        [
            helper.make_node("StringConcat", ["left", "right"], ["joined"]),
            helper.make_node("Equal", ["left", "right"], ["same"]),
            helper.make_node("Cast", ["same"], ["flags"], to=TensorProto.INT64),
            helper.make_node("NonZero", ["flags"], ["places"]),
            helper.make_node("ReduceSum", ["numbers"], ["total"], keepdims=0),
        ],
        [
            helper.make_tensor_value_info("left", TensorProto.STRING, (2, 2)),
            helper.make_tensor_value_info("right", TensorProto.STRING, ()),
            helper.make_tensor_value_info("numbers", TensorProto.DOUBLE, (3,)),
        ],
        [
            helper.make_tensor_value_info("joined", TensorProto.STRING, (2, 2)),
            helper.make_tensor_value_info("places", TensorProto.INT64, (2, None)),
            helper.make_tensor_value_info("total", TensorProto.DOUBLE, ()),
        ],
    )


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def service(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[ServiceUnderTest]:
    folder = tmp_path_factory.mktemp("datatypes")
    # Casting to strings has no 16-bit integers, tiling neither in all types: those are only copied.
    made: dict[str, onnx.ModelProto] = {f"copy-{name}": _copy(name) for name in EXTREMES}
    for name in ("UINT16", "INT16", "FP16"):
        del made[f"copy-{name}"].graph.node[1]
        del made[f"copy-{name}"].graph.output[1]
    made["words"] = _words()
    for name, model in made.items():
        source = folder / f"{name}.onnx"
        source.write_bytes(model.SerializeToString())
        compile_onnx(source, folder / "repository" / name, CompileOptions())
    settings = Settings.model_validate(
        {"repository": folder / "repository", "budget": 64 << 20, "threads": 1}
    )
    async with serving(settings) as started:
        yield started


def tensor(name: str, datatype: str, shape: list[int], data: Any) -> dict[str, Any]:
    return {"name": name, "datatype": datatype, "shape": shape, "data": data}


async def infer(service: ServiceUnderTest, model: str, *tensors: dict[str, Any]) -> httpx.Response:
    body = json.dumps({"inputs": list(tensors)})  # httpx has no escapes for half characters
    return await service.client.post(f"/v2/models/{model}/infer", content=body)


def outputs(response: httpx.Response) -> dict[str, dict[str, Any]]:
    assert response.status_code == 200, response.text
    return {output.pop("name"): output for output in response.json()["outputs"]}


async def test_every_datatype_of_the_protocol_is_tried() -> None:
    assert set(EXTREMES) == set(DATATYPES)


@over("datatype", EXTREMES)
async def test_extremes_come_back(service: ServiceUnderTest, datatype: str) -> None:
    data = EXTREMES[datatype]
    found = outputs(await infer(service, f"copy-{datatype}", tensor("x", datatype, [2], data)))
    for name, copies in (("y", 1), ("z", 2)):
        if name in found:
            values = found[name].pop("data")
            assert found[name] == {"datatype": datatype, "shape": [2 * copies]}
            assert same_values(datatype, values, data * copies)


def same_values(datatype: str, values: list[Any], expected: list[Any]) -> bool:
    """JSON has as many digits of a float as its type needs: the values are the same in that type."""
    if not datatype.startswith("FP"):
        return values == expected
    kind = DATATYPES[datatype]
    return np.array(values, kind).tobytes() == np.array(expected, kind).tobytes()


@over("as_json", [(), ("in",), ("out",)])
@over("datatype", EXTREMES)
async def test_extremes_come_back_raw(
    service: ServiceUnderTest, datatype: str, as_json: tuple[str, ...]
) -> None:
    """As raw bytes one way, the other or both; raw both ways, what JSON has no word for comes back, too."""
    kind = DATATYPES[datatype]
    array = np.array(EXTREMES[datatype], object if kind == "bytes" else kind)
    if datatype.startswith("FP") and not as_json:
        array = np.array([np.nan, -np.inf], kind)
    sent = messages.sent(
        [messages.tensor("x", array, "in" not in as_json)],
        [messages.output("y", "out" not in as_json)],
    )
    answer = await service.client.post(f"/v2/models/copy-{datatype}/infer", **sent)
    assert messages.plain(messages.received(answer).as_numpy("y")) == messages.plain(array)


async def test_bf16_is_no_datatype_of_a_model(service: ServiceUnderTest) -> None:
    """A model with BF16 does not compile; a tensor of it is refused by its name."""
    body = tensor("x", "BF16", [2], [0, 0])
    error(await infer(service, "copy-FP32", body), 400, "'BF16'", "FP32")


@over("datatype", EXTREMES)
async def test_metadata_names_the_datatype(service: ServiceUnderTest, datatype: str) -> None:
    document = (await service.client.get(f"/v2/models/copy-{datatype}")).json()
    assert document["inputs"] == [{"name": "x", "datatype": datatype, "shape": [2]}]
    assert {output["datatype"] for output in document["outputs"]} == {datatype}


BEYOND: dict[str, tuple[list[Any], str]] = {
    "UINT8": ([0, 256], "cannot hold"),
    "UINT16": ([-1, 0], "cannot hold"),
    "UINT32": ([0, 2**32], "cannot hold"),
    "UINT64": ([0, 2**64], "cannot hold"),
    "INT8": ([-129, 0], "cannot hold"),
    "INT16": ([0, 2**15], "cannot hold"),
    "INT32": ([0, 2**31], "cannot hold"),
    "INT64": ([0, 2**63], "cannot hold"),
    "FP16": ([0.0, 65520.0], "cannot hold"),
    "FP32": ([0.0, 1e39], "cannot hold"),
    "BOOL": ([0, 1], "data holds integers, not bool"),
    "BYTES": (["a", 1], "data holds other values than strings"),
    "FP64": (["a", "b"], "data holds strings"),
}


@over("datatype", BEYOND)
async def test_what_a_datatype_cannot_hold_is_named(
    service: ServiceUnderTest, datatype: str
) -> None:
    data, words = BEYOND[datatype]
    response = await infer(service, f"copy-{datatype}", tensor("x", datatype, [2], data))
    error(response, 400, "'x'", words)


@over("datatype", EXTREMES)
async def test_another_datatype_is_named(service: ServiceUnderTest, datatype: str) -> None:
    other = "FP32" if datatype != "FP32" else "BYTES"
    response = await infer(service, f"copy-{datatype}", tensor("x", other, [2], EXTREMES[datatype]))
    error(response, 400, "'x'", other, datatype)


LEFT = tensor("left", "BYTES", [2, 2], ["a", "b", "ä", "a"])
RIGHT = tensor("right", "BYTES", [], ["a"])
NUMBERS = tensor("numbers", "FP64", [3], [0.5, 1, 2])


@pytest.mark.parametrize("nested", [False, True])
async def test_strings_scalars_and_unknown_shapes(service: ServiceUnderTest, nested: bool) -> None:
    left = {**LEFT, "data": [["a", "b"], ["ä", "a"]]} if nested else LEFT
    found = outputs(await infer(service, "words", left, RIGHT, NUMBERS))
    assert found == {
        "joined": {"datatype": "BYTES", "shape": [2, 2], "data": ["aa", "ba", "äa", "aa"]},
        "places": {"datatype": "INT64", "shape": [2, 2], "data": [0, 1, 0, 1]},
        "total": {"datatype": "FP64", "shape": [], "data": [3.5]},
    }


async def test_an_empty_output_has_its_shape(service: ServiceUnderTest) -> None:
    found = outputs(await infer(service, "words", LEFT, {**RIGHT, "data": ["z"]}, NUMBERS))
    assert found["places"] == {"datatype": "INT64", "shape": [2, 0], "data": []}


async def test_metadata_of_unknown_shapes(service: ServiceUnderTest) -> None:
    document = (await service.client.get("/v2/models/words")).json()
    shapes = {output["name"]: output["shape"] for output in document["outputs"]}
    assert shapes == {"joined": [2, 2], "places": [2, -1], "total": []}


BAD: dict[str, tuple[dict[str, Any], list[str]]] = {
    "shape": ({**LEFT, "shape": [4]}, ["'left'", "[4]", "[2, 2]"]),
    "too few": ({**LEFT, "data": ["a"]}, ["'left'", "1 elements"]),
    "too many": ({**LEFT, "data": ["a"] * 5}, ["'left'", "5 elements"]),
    "ragged": ({**LEFT, "data": [["a", "b"], "c", "d"]}, ["'left'", "neither flat nor in rows"]),
    "null": ({**LEFT, "data": ["a", None, "b", "c"]}, ["'left'", "other values than strings"]),
    "half a character": ({**LEFT, "data": ["a", "b", "c", "\ud800"]}, ["'left'", "surrogate"]),
    "deep": ({**LEFT, "data": [[[]]]}, ["'left'", "neither flat nor in rows"]),
}


@over("what", BAD)
async def test_bad_strings_are_named(service: ServiceUnderTest, what: str) -> None:
    bad, words = BAD[what]
    error(await infer(service, "words", bad, RIGHT, NUMBERS), 400, *words)


@SHARED
@given(words=st.lists(st.text(st.characters(codec="utf-8")), min_size=2, max_size=2))
async def test_any_text_comes_back(service: ServiceUnderTest, words: list[str]) -> None:
    found = outputs(await infer(service, "copy-BYTES", tensor("x", "BYTES", [2], words)))
    assert found["y"]["data"] == words


async def test_strings_may_be_long_but_not_endless(service: ServiceUnderTest) -> None:
    words = ["," * 50_000, "[" * 50_000]
    found = outputs(await infer(service, "copy-BYTES", tensor("x", "BYTES", [2], words)))
    assert found["y"]["data"] == words
    response = await infer(service, "copy-BYTES", tensor("x", "BYTES", [2], ["a" * (2 << 20), ""]))
    error(response, 413, "limit")


async def test_the_budget_counts_what_is_resident(service: ServiceUnderTest) -> None:
    held = service.inside.budget.held()["words"]
    folder: Path = service.inside.settings.repository
    program = Program.as_compiled(open_pack(folder / "words"))
    assert held["sessions"] == session_bytes(program, program.pieces) > 0
