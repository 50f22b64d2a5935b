"""From messages to graphs of records and back, in memory, in files, as text: nothing that counts is lost.

What graphs leave out says nothing to the compiler: names of graphs and of unknown dimensions, texts about
things, types of inner values, and in which field of a message numbers are.
"""

import functools
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from google.protobuf.descriptor import FieldDescriptor
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from onnx import AttributeProto, TensorProto, helper, numpy_helper

from models.graphs.file import refer
from models.graphs.graph import DynamicValue, EmptyList, Graph, TypeName
from models.graphs.ranges import FileRange, mapped, range_of
from models.graphs.reader import UnreadableError, graph_at, graph_of
from models.graphs.text import from_text, to_text
from models.graphs.writer import model_of
from models.network.fields import STRINGS, UNKNOWN, Array
from tests.examples import examples, over
from tests.models.graphs.records import facts
from tests.models.nets import written
from tests.models.node_cases import node_cases

_EXCLUDED = {
    "ModelProto": {"producer_name", "producer_version", "domain", "model_version", "doc_string"},
    "GraphProto": {"name", "doc_string", "value_info"},
    "NodeProto": {"doc_string"},
    "AttributeProto": {"doc_string"},
    "ValueInfoProto": {"doc_string"},
    "Dimension": {"dim_param", "denotation"},
}


def plain(message: Any) -> Any:
    """Return a copy of ``message`` without what graphs leave out."""
    copy = type(message)()
    copy.CopyFrom(message)
    _exclude(copy)
    return copy


def _exclude(message: Any) -> None:
    if isinstance(message, TensorProto) and message.data_type != TensorProto.STRING:
        message.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(message), message.name))
    for field, value in message.ListFields():
        if value == "" or field.name in _EXCLUDED.get(message.DESCRIPTOR.name, ()):
            message.ClearField(field.name)
        elif field.type == FieldDescriptor.TYPE_MESSAGE:
            for item in value if isinstance(value, Iterable) else [value]:
                _exclude(item)
    if isinstance(message, AttributeProto):
        for tensor in (*([message.t] if message.HasField("t") else []), *message.tensors):
            tensor.ClearField("name")


def check(model: onnx.ModelProto) -> Graph:
    """Check that ``model`` is the same when it was read and written; return what was read."""
    graph = graph_of(model)
    back = model_of(graph)
    assert back.graph.name
    assert plain(back) == plain(model)
    assert facts(graph_of(back)) == facts(graph)
    return graph


# The cases of the onnx package.

# Bodies, sequences, optional values, texts, lists, types of few bits, outputs that are left out.
_OPERATORS = """Cast Constant ConstantOfShape DequantizeLinear Dropout Identity If Loop LSTM Momentum
    OptionalGetElement OptionalHasElement QuantizeLinear ReduceSum Scan SequenceInsert SequenceMap Split
    SplitToSequence StringNormalizer StringSplit TfIdfVectorizer""".split()  # noqa: SIM905


def test_some_cases_of_onnx() -> None:
    cases = node_cases(_OPERATORS)
    assert len(cases) > 100
    for case in cases:
        assert case.model is not None
        check(case.model)


@pytest.mark.slow
def test_all_cases_of_onnx() -> None:
    for case in node_cases():
        assert case.model is not None
        check(case.model)


# One by one.

_MODEL = '<ir_version: 11, opset_import: ["" : 23]> '


def with_attribute(**fields: Any) -> onnx.ModelProto:
    """Return a model of one node, with an attribute ``a`` that has these fields."""
    model = onnx.parser.parse_model(_MODEL + "g (float[4] x) => (float[4] y) { y = Relu(x) }")
    model.graph.node[0].attribute.add(name="a", **fields)
    return model


def read_attribute(**fields: Any) -> Any:
    return check(with_attribute(**fields)).nodes[0].attributes["a"]


@over(
    "fields, value",
    [
        ({"type": "FLOAT", "f": 0.5}, 0.5),
        ({"type": "FLOAT", "f": np.float32(0.1)}, float(np.float32(0.1))),
        ({"type": "INT", "i": -(1 << 63)}, -(1 << 63)),
        ({"type": "STRING", "s": "\u00e9".encode()}, "\u00e9"),
        ({"type": "STRING", "s": b"\xff"}, b"\xff"),
        ({"type": "STRING", "s": b""}, ""),
        ({"type": "STRINGS", "strings": [b"a", b"\xff", b""]}, ["a", b"\xff", ""]),
        ({"type": "FLOATS", "floats": [1.0, float("-inf")]}, [1.0, float("-inf")]),
        ({"type": "INTS", "ints": [1, 2]}, [1, 2]),
    ],
)
def test_values_of_attributes(fields: dict[str, Any], value: Any) -> None:
    assert read_attribute(**fields) == value


def test_numbers_that_are_not_equal_to_themselves() -> None:
    assert np.isnan(read_attribute(type="FLOAT", f=float("nan")))
    assert np.isnan(read_attribute(type="FLOATS", floats=[float("nan")])[0])


@over("kind", ["floats", "ints", "strings"])
def test_empty_lists_keep_their_kind(kind: str) -> None:
    value = read_attribute(type=kind.upper())
    assert isinstance(value, EmptyList)
    assert (value, value.kind) == ([], kind)


def test_empty_lists_of_tensors() -> None:
    assert read_attribute(type="TENSORS") == ()
    value = read_attribute(type="TENSORS", tensors=[numpy_helper.from_array(np.arange(3))] * 2)
    assert [array.tolist() for array in value] == [[0, 1, 2]] * 2


def test_types_are_attributes() -> None:
    inner = helper.make_tensor_type_proto(TensorProto.FLOAT, [1, None])
    for kind, name in (
        (inner, "tensor(float)[1,?]"),
        (helper.make_sequence_type_proto(inner), "seq(tensor(float)[1,?])"),
        (helper.make_optional_type_proto(helper.make_sequence_type_proto(inner)), "optional(seq("),
        (helper.make_sparse_tensor_type_proto(TensorProto.INT8, []), "sparse_tensor(int8)[]"),
        (helper.make_map_type_proto(TensorProto.STRING, inner), "map(string,tensor(float)[1,?])"),
    ):
        value = read_attribute(type="TYPE_PROTO", tp=kind)
        assert isinstance(value, TypeName)
        assert value.startswith(name)


@over(
    "fields",
    [
        {"type": "UNDEFINED"},
        {"f": 1.0},
        {"type": "FLOAT", "i": 1},
        {"type": "INT", "i": 1, "f": 1.0},
        {"type": "INTS", "floats": [1.0]},
        {"type": "TENSOR"},
        {"type": "GRAPH"},
        {"type": "TYPE_PROTO"},
        {"type": "GRAPHS", "graphs": [onnx.GraphProto(name="g")]},
        {"type": "SPARSE_TENSOR", "sparse_tensor": onnx.SparseTensorProto(dims=[1])},
        {"type": "TYPE_PROTOS", "type_protos": [onnx.TypeProto()]},
        {"type": "INT", "ref_attr_name": "b"},
    ],
)
def test_attributes_that_no_record_can_hold(fields: dict[str, Any]) -> None:
    with pytest.raises(UnreadableError, match="attribute 'a' of type"):
        graph_of(with_attribute(**fields))


def test_what_a_record_would_take_for_something_else() -> None:
    model = with_attribute(type="INT", i=1)
    model.graph.node[0].attribute.append(model.graph.node[0].attribute[0])
    with pytest.raises(UnreadableError, match="two attributes have one name"):
        graph_of(model)
    model = with_attribute(type="INT", i=1)
    model.graph.node[0].op_type = "com.microsoft.Gelu"
    with pytest.raises(UnreadableError, match=r"no operator is called 'com\.microsoft\.Gelu'"):
        graph_of(model)
    model = with_attribute(type="INT", i=1)
    model.graph.input[0].type.tensor_type.elem_type = 4711
    with pytest.raises(UnreadableError, match="no element type has the number 4711"):
        graph_of(model)


# Element types that NumPy does not have; several elements of the smallest share a byte.
_KINDS = ("BFLOAT16", "FLOAT8E4M3FN", "FLOAT8E5M2", "FLOAT4E2M1", "INT4", "UINT4", "INT2", "BOOL")


@over("kind", _KINDS)
def test_constants_of_any_type(kind: str) -> None:
    number = TensorProto.DataType.Value(kind)
    dtype = helper.tensor_dtype_to_np_dtype(number)
    array = np.array([[1, 0, 1], [1, 1, 0], [0, 0, 1]]).astype(dtype)
    model = with_attribute(type="TENSOR", t=numpy_helper.from_array(array, "t"))
    model.graph.initializer.append(numpy_helper.from_array(array, "w"))
    graph = check(model)
    assert graph.constants["w"].dtype == dtype
    assert facts(graph.constants["w"]) == facts(array)
    assert facts(graph.nodes[0].attributes["a"]) == facts(array)


@over("shape", [(), (0,), (2, 0, 3)])
def test_constants_without_axes_or_numbers(shape: tuple[int, ...]) -> None:
    model = with_attribute(type="INT", i=1)
    model.graph.initializer.append(numpy_helper.from_array(np.ones(shape, np.float16), "w"))
    assert check(model).constants["w"].shape == shape


def test_texts_are_constants() -> None:
    tensor = TensorProto(
        name="w", dims=[2, 2], data_type=TensorProto.STRING, string_data=[b"a", b"", b"\xff", b"d"]
    )
    model = with_attribute(type="TENSOR", t=tensor)
    model.graph.initializer.append(tensor)
    graph = check(model)
    for array in (graph.constants["w"], graph.nodes[0].attributes["a"]):
        assert array.tolist() == [[b"a", b""], [b"\xff", b"d"]]


@over(
    "port, what",
    [
        ("float[2,3] x", Array(dtype="float32", shape=(2, 3))),
        ("float x", Array(dtype="float32", shape=())),
        ("bool[0] x", Array(dtype="bool", shape=(0,))),
        ("float[2,n] x", Array(dtype="float32", shape=(2, UNKNOWN))),
        ("string[4] x", Array(dtype=STRINGS, shape=(4,))),
        ("float[] x", None),
        ("bfloat16[2,n] x", None),
        ("seq(float[1,n]) x", None),
        ("optional(seq(int64)) x", None),
        ("map(string, float[2]) x", None),
    ],
)
def test_what_ports_say(port: str, what: Array | None) -> None:
    model = onnx.parser.parse_model(f"{_MODEL} g ({port}) => (float[4] y) {{ y = Relu(x) }}")
    graph = check(model)
    port_type = graph.values.get("x") or graph.dynamic["x"]
    assert (port_type.array if isinstance(port_type, DynamicValue) else port_type) == what


def test_a_negative_length_is_dynamic() -> None:
    model = with_attribute(type="INT", i=1)
    model.graph.output[0].type.tensor_type.shape.dim[0].dim_value = -5
    array = graph_of(model).dynamic["y"].array
    assert array is not None
    assert array.shape == (UNKNOWN,)


def test_optional_outputs() -> None:
    model = onnx.parser.parse_model(_MODEL + "g (float[4] x) => (float[4] z) { y, z = Dropout(x) }")
    node = model.graph.node[0]
    for outputs, expected in ((["", "z"], ("", "z")), (["z", ""], ("z",)), (["", ""], ())):
        node.output[:] = outputs
        assert graph_of(model).nodes[0].outputs == expected


TEXT = """<ir_version: 9, opset_import: ["" : 17, "com.microsoft" : 1]>
graph (float[1,4] x, bool c, seq(float[2]) s) => (float[1,4] y, float[?,2] z)
<float[4] w = {1, -2, 0.5, 4}, int64[2] axes = {0, -1}> {
    a = com.microsoft.Gelu (x)
    "b/c" = Add (a, w)
    b = Neg ("b/c")
    y = If (c) <
        then_branch: graph = then () => (p) <float[1] k = {3}> { p = Mul (b, k) },
        else_branch: graph = else () => (q) { q = LeakyRelu <alpha: float = 0.25> (b) }
    >
    z = ConcatFromSequence <axis: int = 0> (s)
}"""


def test_as_text() -> None:
    graph = from_text(TEXT)
    node = graph.nodes[3]
    assert [body.captured for body in node.bodies] == [("b",), ("b",)]
    assert node.reads == ("c", "b", "b")
    assert graph.constants["w"].tolist() == [1, -2, 0.5, 4]
    again = from_text(to_text(graph))
    assert facts(again) == facts(graph)
    assert to_text(again) == to_text(graph)


# Constants in files.


def in_file(path: Path, array: NDArray[Any], start: int = 0) -> NDArray[Any]:
    """Return ``array`` mapped from a new file, in which it begins at byte ``start``."""
    path.write_bytes(bytes(start) + np.ascontiguousarray(array).tobytes())
    return mapped(FileRange(path, start, array.nbytes), array.dtype, array.shape)


def with_constants(constants: Mapping[str, NDArray[Any]]) -> Graph:
    text = "g (float[4] x) => (float[4] y) { y = Relu(x) }"
    graph = graph_of(onnx.parser.parse_model(_MODEL + text))
    return Graph(graph.nodes, graph.values, constants, graph.inputs, graph.outputs, graph.opsets)


def test_large_constants_stay_in_their_files(tmp_path: Path) -> None:
    local = in_file(tmp_path / "w.data", np.arange(999, dtype=np.float32), 6)
    (tmp_path / "other").mkdir()
    distant = in_file(tmp_path / "other" / "v.data", np.arange(777, dtype=np.int64).reshape(7, 111))
    small = in_file(tmp_path / "small.data", np.arange(4, dtype=np.int8))
    graph = with_constants({"w": local, "part": distant[2:5], "turned": distant.T, "small": small})
    model = model_of(graph, tmp_path)
    locations = {
        tensor.name: {item.key: item.value for item in tensor.external_data}
        for tensor in model.graph.initializer
    }
    assert locations == {
        "w": {"location": "w.data", "offset": "6", "length": "3996"},
        "part": {
            "location": str(tmp_path / "other" / "v.data"),
            "offset": "1776",
            "length": "2664",
        },
        "turned": {},
        "small": {},
    }
    back = graph_of(model, tmp_path)
    assert facts(back.constants) == facts(graph.constants)
    assert range_of(back.constants["w"]) == range_of(local)
    assert range_of(back.constants["turned"]) is None


@pytest.mark.parametrize("kind", ["relative", "linked"])
def test_a_folder_has_several_names(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "real"
    folder.mkdir()
    graph = with_constants({"w": in_file(folder / "w.data", np.arange(999, dtype=np.float32))})
    monkeypatch.chdir(tmp_path)
    (tmp_path / "linked").symlink_to(folder)
    name = Path("real") if kind == "relative" else tmp_path / "linked"
    model = model_of(graph, name)
    assert model.graph.initializer[0].external_data[0].value == "w.data"
    back = graph_at(written(model, name / "m.onnx"))
    assert facts(back.constants) == facts(graph.constants)


def descriptors() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


def test_a_file_is_mapped_once(tmp_path: Path) -> None:
    """A map keeps a file descriptor, and there are networks with a thousand weights."""
    array = np.arange(64 * 300, dtype=np.float32).reshape(64, 300)
    (tmp_path / "w.data").write_bytes(array.tobytes())
    model = model_of(with_constants({}))
    for row in range(64):
        tensor = model.graph.initializer.add(name=f"w{row}", dims=[300], data_type=1)
        refer(tensor, FileRange(tmp_path / "w.data", row * 1200, 1200), "w.data")
    before = descriptors()
    graph = graph_of(model, tmp_path)
    assert descriptors() <= before + 1
    assert np.array_equal(np.stack(list(graph.constants.values())), array)
    del graph
    assert descriptors() <= before


@pytest.mark.parametrize("name", ["w.data", None])
def test_int4_in_files_is_read(name: str | None, tmp_path: Path) -> None:
    """Two of them share a byte, so that they are not mapped; None: the message has the file's path."""
    dtype = helper.tensor_dtype_to_np_dtype(TensorProto.INT4)
    array = (np.arange(5000) % 16 - 8).astype(dtype)
    tensor = numpy_helper.from_array(array, "w")
    (tmp_path / "w.data").write_bytes(tensor.raw_data)
    refer(tensor, FileRange(tmp_path / "w.data", 0, 2500), name)
    model = model_of(with_constants({}))
    model.graph.initializer.append(tensor)
    graph = graph_of(model, tmp_path)
    assert range_of(graph.constants["w"]) is None
    assert facts(graph.constants["w"]) == facts(array)
    assert len(model_of(graph).graph.initializer[0].raw_data) == 2500


def test_what_is_computed_of_a_map_is_in_no_file(tmp_path: Path) -> None:
    array = in_file(tmp_path / "w.data", np.arange(12, dtype=np.float32).reshape(3, 4))
    for other in (
        array.copy(),
        array.astype(np.float64),
        array.T.reshape(-1),
        array + 1,
        array[[1]],
    ):
        assert range_of(other) is None


#: What is done to an array: it is turned, flattened, or cut along an axis.
STEPS = st.sampled_from(["turn", "flatten"]) | st.tuples(
    st.integers(0, 3),
    st.builds(slice, st.integers(-3, 3), st.integers(-2, 6), st.sampled_from([1, 1, 2, -1])),
)


def changed(array: NDArray[Any], step: Any) -> NDArray[Any]:
    if step == "turn":
        return array.T
    if step == "flatten":
        return array.reshape(-1)
    axis, cut = step
    return array[(*[slice(None)] * (axis % array.ndim), cut)]


@examples(60, 2000)
@given(
    shape=st.lists(st.integers(1, 5), min_size=1, max_size=4),
    dtype=st.sampled_from(["int8", "float16", "float32", "int64"]),
    start=st.integers(0, 9),
    steps=st.lists(STEPS, max_size=4),
)
def test_ranges_are_where_numbers_lie(
    shape: list[int],
    dtype: str,
    start: int,
    steps: list[Any],
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    path = tmp_path_factory.getbasetemp() / "ranges.data"
    original = in_file(path, np.arange(math.prod(shape)).astype(dtype).reshape(shape), start)
    array = functools.reduce(changed, steps, original)
    location = range_of(array)
    if location is None:
        assert not (np.may_share_memory(array, original) and array.flags.c_contiguous)
    else:
        data = path.read_bytes()[location.offset : location.offset + array.nbytes]
        assert location.length == array.nbytes
        assert np.array_equal(np.frombuffer(data, dtype).reshape(array.shape), array)
