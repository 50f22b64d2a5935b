"""What cannot be streamed runs as resident pieces: as small as possible, named, and with equal answers."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, numpy_helper

from models.compiler import CompileOptions
from models.errors import CompileError, OnnxError
from models.network.fields import STRINGS, UNKNOWN
from pipeline.devices.base import DeviceError
from pipeline.planning.make import make_plan
from pipeline.program.program import Program
from pipeline.schedule.architectures import ARCHITECTURES
from tests.models.nets import answers, inputs_for, parsed, written
from tests.models.refusal import refuses
from tests.models.streamed import compiled, same, streamed
from tests.oracle.device import ReferenceDevice

Inputs = dict[str, NDArray[Any]]


def branches() -> tuple[onnx.ModelProto, Inputs]:
    """Convolutions around an If that captures a value and a weight; weights on both sides stream."""
    model = parsed(
        """branches (float[1,64,6,6] x, bool c) => (float[1,64,6,6] y) {
            a = Conv<pads=[1,1,1,1]>(x, w1)
            b = If(c) <
                then_branch = t () => (float[1,64,6,6] p) { p = Conv<pads=[1,1,1,1]>(a, w2) },
                else_branch = e () => (float[1,64,6,6] q) { q = Neg(a) }
            >
            y = Conv<pads=[1,1,1,1]>(b, w3)
        }""",
        dict.fromkeys(("w1", "w2", "w3"), (64, 64, 3, 3)),
    )
    return model, {**inputs_for({"x": (1, 64, 6, 6)}), "c": np.array(True)}


def loop() -> tuple[onnx.ModelProto, Inputs]:
    """A loop whose body reads a weight of the graph."""
    model = parsed(
        """loop (float[1,32] x, int64 n) => (float[1,32] y) {
            yes = Constant<value = bool {1}>()
            y = Loop(n, yes, x) <
                body = b (int64 i, bool go, float[1,32] s) => (bool again, float[1,32] t) {
                    again = Identity(go)
                    m = MatMul(s, w)
                    t = Tanh(m)
                }
            >
        }""",
        {"w": (32, 32)},
    )
    return model, {**inputs_for({"x": (1, 32)}), "n": np.array(3, np.int64)}


def selection() -> tuple[onnx.ModelProto, Inputs]:
    """Inner shapes that only a run gives, between static ones; a dynamic output beside."""
    model = parsed(
        """selection (float[1,64] x) => (float[1,128] y, int64[2,n] places) {
            h = Gemm<transB=1>(x, w1)
            places = NonZero(h)
            count = Shape(places)
            last = Gather<axis=0>(count, one)
            wide = Cast<to=1>(last)
            z = Add(h, wide)
            y = Gemm<transB=1>(z, w2)
        }""",
        {"w1": (96, 64), "w2": (128, 96)},
    )
    model.graph.initializer.append(numpy_helper.from_array(np.array([1], np.int64), "one"))
    return model, inputs_for({"x": (1, 64)})


def strings() -> tuple[onnx.ModelProto, Inputs]:
    """Strings in, strings out, strings as constants; numbers beside them."""
    model = parsed(
        """strings (string[3] s, float[1,64] x) => (string[3] t, bool[3] known, float[1,32] y) {
            t = StringConcat(s, suffix)
            u = Identity(s)
            known = Equal(u, words)
            y = Gemm<transB=1>(x, w)
        }""",
        {"w": (32, 64)},
    )
    model.opset_import[0].version = 20
    for name, words in (("suffix", ["!"]), ("words", ["ä", "b", "c"])):
        tensor = numpy_helper.from_array(np.array(words, object), name)
        model.graph.initializer.append(tensor)
    text = np.array(["ä", "", "x\0y"], object)
    return model, {**inputs_for({"x": (1, 64)}), "s": text}


def bfloat16() -> tuple[onnx.ModelProto, Inputs]:
    """A constant and inner values of an element type that NumPy does not have."""
    model = parsed(
        """b (int64[1,4] x) => (float[1,4,64] y) {
            z = Gather(w, x)
            y = Cast<to=1>(z)
        }"""
    )
    data = np.arange(8 * 64, dtype=np.float32).view(np.uint16)[1::2].tobytes()
    weight = TensorProto(name="w", data_type=TensorProto.BFLOAT16, dims=[8, 64], raw_data=data)
    model.graph.initializer.append(weight)
    return model, {"x": np.array([[7, 0, 1, 3]])}


def constants() -> tuple[onnx.ModelProto, Inputs]:
    """Outputs that are a constant, an input, and a constant that is also a weight."""
    model = parsed(
        """constants (float[1,32] x) => (float[32,32] w, float[1,32] x, float[1,32] y, float[32] k) {
            y = MatMul(x, w)
            k = Neg(v)
        }""",
        {"w": (32, 32), "v": (32,)},
    )
    return model, inputs_for({"x": (1, 32)})


def unknown_rank() -> tuple[onnx.ModelProto, Inputs]:
    """A value of unknown rank, which ONNX Runtime describes as it does a scalar."""
    model = parsed(
        """rank (float[4,4] x, int64[2] s) => (float[n,m] y, float total) {
            many = NonZero(s)
            places = Cast<to=7>(many)
            row = Squeeze(places)
            picked = Gather(s, row)
            r = Reshape(x, picked)
            y = Identity(r)
            total = ReduceSum<keepdims=0>(x)
        }"""
    )
    return model, {**inputs_for({"x": (4, 4)}), "s": np.array([2, 8])}


def only_opaque() -> tuple[onnx.ModelProto, Inputs]:
    model = parsed("only (float[3,4] x) => (int64[2,n] y) { y = NonZero(x) }")
    return model, {"x": np.eye(3, 4, dtype=np.float32)}


def nothing_found() -> tuple[onnx.ModelProto, Inputs]:
    """An output that is empty this time."""
    model, _ = only_opaque()
    return model, {"x": np.zeros((3, 4), np.float32)}


Make = Callable[[], tuple[onnx.ModelProto, Inputs]]
NETS: list[Make] = [
    branches,
    loop,
    selection,
    strings,
    bfloat16,
    constants,
    unknown_rank,
    only_opaque,
    nothing_found,
]


@pytest.mark.parametrize(
    ("make", "architectures"),
    [
        pytest.param(
            *(make, sorted(ARCHITECTURES)[first::3]),
            id=f"{make.__name__}-{first}",
            marks=() if number % 3 == first else pytest.mark.slow,
        )
        for number, make in enumerate(NETS)
        for first in range(3)
    ],
)
def test_resident_pieces_answer_as_onnx_runtime(
    make: Make, architectures: list[str], tmp_path: Path
) -> None:
    model, inputs = make()
    source = written(model, tmp_path / "m.onnx")
    pack = compiled(source, tmp_path, CompileOptions(chunk_bytes=40_000))
    expected = answers(source, inputs)
    for architecture in architectures:
        same(streamed(pack, inputs, architecture, times=2), expected, 1e-5, 1e-5)
    # The standard file beside the pieces gives the same.
    same(answers(pack.model_path, inputs), expected, 1e-5, 1e-5)


@pytest.mark.parametrize("condition", [True, False])
def test_both_branches_run(condition: bool, tmp_path: Path) -> None:
    model, inputs = branches()
    source = written(model, tmp_path / "m.onnx")
    inputs["c"] = np.array(condition)
    same(streamed(compiled(source, tmp_path), inputs), answers(source, inputs), 1e-5, 1e-5)


def test_only_what_must_is_resident(tmp_path: Path) -> None:
    """The convolutions around the branches are cut and streamed; the one inside is not."""
    pack = compiled(
        written(branches()[0], tmp_path / "m.onnx"), tmp_path, CompileOptions(chunk_bytes=40_000)
    )
    (piece,) = pack.manifest.resident_pieces
    assert piece.operators == ("If",)
    assert piece.weight_bytes == 64 * 64 * 9 * 4
    assert len(piece.reasons) == 1
    assert "(If): control flow" in piece.reasons[0]
    streamed_bytes = sum(span.length for span in pack.manifest.spans)
    assert 2 * piece.weight_bytes <= streamed_bytes < 2.2 * piece.weight_bytes
    assert pack.manifest.largest_chunk_bytes <= 40_960
    assert pack.manifest.weight_bytes == 3 * piece.weight_bytes


def test_weights_of_resident_pieces_are_counted_twice(tmp_path: Path) -> None:
    pack = compiled(written(branches()[0], tmp_path / "m.onnx"), tmp_path)
    (piece,) = pack.manifest.resident_pieces
    plan = make_plan(Program.as_compiled(pack), ARCHITECTURES["2s"])
    assert plan.session_bytes > 2 * piece.weight_bytes


def test_reasons_name_where_it_starts(tmp_path: Path) -> None:
    """What follows from an unknown shape is in the piece, but is no reason of its own."""
    pack = compiled(written(selection()[0], tmp_path / "m.onnx"), tmp_path)
    (piece,) = pack.manifest.resident_pieces
    assert set(piece.operators[:2]) == {"NonZero", "Shape"}
    assert "Gemm" not in piece.operators
    assert [reason.partition(": ")[2] for reason in piece.reasons] == [
        "value 'places' has a shape that is known only at run time: [2, ?]"
    ]
    ports = {port.name: (port.dtype, port.shape) for port in pack.manifest.outputs}
    assert ports["places"] == ("int64", (2, UNKNOWN))


def test_two_regions_stay_apart(tmp_path: Path) -> None:
    """Neither needs the other, and the layer between them streams."""
    model = parsed(
        """two (float[1,64] x, bool c) => (float[1,64] y) {
            a = If(c) <then_branch = t1 () => (float[1,64] p) { p = Relu(x) },
                       else_branch = e1 () => (float[1,64] q) { q = Neg(x) }>
            b = Gemm<transB=1>(a, w)
            y = If(c) <then_branch = t2 () => (float[1,64] r) { r = Relu(b) },
                       else_branch = e2 () => (float[1,64] s) { s = Neg(b) }>
        }""",
        {"w": (64, 64)},
    )
    pack = compiled(written(model, tmp_path / "m.onnx"), tmp_path)
    assert [piece.operators for piece in pack.manifest.resident_pieces] == [("If",), ("If",)]
    assert all(piece.weight_bytes == 0 for piece in pack.manifest.resident_pieces)
    assert len(pack.manifest.spans) == 1


def test_what_lies_between_in_the_file_but_not_in_the_graph_streams(tmp_path: Path) -> None:
    """Execution order changes, so that a layer written between two opaque nodes stays out."""
    model = parsed(
        """between (float[1,64] x) => (int64[n] y, float[1,64] z) {
            places = NonZero(x)
            h = Gemm<transB=1>(x, w)
            flat = Reshape(places, minus)
            z = Relu(h)
            y = Abs(flat)
        }""",
        {"w": (64, 64)},
    )
    model.graph.initializer.append(numpy_helper.from_array(np.array([-1], np.int64), "minus"))
    source = written(model, tmp_path / "m.onnx")
    pack = compiled(source, tmp_path)
    (piece,) = pack.manifest.resident_pieces
    assert not {"Gemm", "Relu", "FusedGemm"} & set(piece.operators)
    inputs = inputs_for({"x": (1, 64)})
    same(streamed(pack, inputs), answers(source, inputs), 1e-5, 1e-5)


def test_regions_that_need_each_other_become_one(tmp_path: Path) -> None:
    """A static value on the way from an opaque node to another one of the same region."""
    model = parsed(
        """ring (float[4,4] x) => (float[n] y) {
            places = NonZero(x)
            size = Shape(places)
            scale = Cast<to=1>(size)
            total = ReduceSum<keepdims=0>(scale)
            wide = Cast<to=1>(places)
            flat = Reshape(wide, minus)
            y = Mul(flat, total)
        }"""
    )
    model.graph.initializer.append(numpy_helper.from_array(np.array([-1], np.int64), "minus"))
    source = written(model, tmp_path / "m.onnx")
    pack = compiled(source, tmp_path)
    assert len(pack.manifest.pieces) == len(pack.manifest.resident_pieces) == 1
    inputs = inputs_for({"x": (4, 4)})
    same(streamed(pack, inputs), answers(source, inputs), 1e-5, 1e-5)


def test_compiling_resident_pieces_twice_gives_the_same_bytes(tmp_path: Path) -> None:
    source = written(selection()[0], tmp_path / "m.onnx")
    one, two = (compiled(source, tmp_path / name) for name in "ab")
    for name in ("pieces.bin", "weights.bin", "model.onnx", "manifest.json"):
        assert (one.folder / name).read_bytes() == (two.folder / name).read_bytes(), name


def test_string_ports_are_bytes(tmp_path: Path) -> None:
    pack = compiled(written(strings()[0], tmp_path / "m.onnx"), tmp_path)
    assert [port.dtype for port in pack.manifest.inputs] == [STRINGS, "float32"]
    assert [port.n_bytes for port in pack.manifest.inputs] == [0, 256]
    reasons = [reason for piece in pack.manifest.resident_pieces for reason in piece.reasons]
    assert any("input" in reason or "'s'" in reason for reason in reasons)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("b (float[1,4] x) => (bfloat16[1,4] y) { y = Cast<to=16>(x) }", "output: value 'y'"),
        ("b (bfloat16[1,4] x) => (float[1,4] y) { y = Cast<to=1>(x) }", "input: value 'x'"),
    ],
)
def test_ports_that_no_request_can_carry_are_refused(text: str, words: str, tmp_path: Path) -> None:
    source = written(parsed(text), tmp_path / "m.onnx")
    with refuses(CompileError, source, words, "bfloat16", "no request can carry"):
        compiled(source, tmp_path)


@pytest.mark.parametrize(
    "text",
    [
        "pair (float[1,4] x) => (float[1,4] y, bfloat16[1,4] z) { y = Neg(x)\n z = Cast<to=16>(y) }",
        "listed (float[1,4] x) => (float[1,4] y, seq(float[1,4]) z) "
        "{ y = Neg(x)\n z = SequenceConstruct(y, x) }",
    ],
)
def test_an_output_that_no_request_can_carry_can_be_excluded(text: str, tmp_path: Path) -> None:
    """The refusal proposes it, and what only that output needs is not in the pack."""
    source, inputs = written(parsed(text), tmp_path / "m.onnx"), inputs_for({"x": (1, 4)})
    with refuses(CompileError, source, "value 'z'", "--without-output z leaves it out"):
        compiled(source, tmp_path)
    options = CompileOptions(without_outputs=("z",))
    pack = compiled(source, tmp_path, options)
    assert [port.name for port in pack.manifest.outputs] == ["y"]
    assert not pack.manifest.resident_pieces
    same(streamed(pack, inputs), {"y": -inputs["x"]}, 0, 0)


@pytest.mark.parametrize(
    ("names", "words"),
    [(("a",), "no output called 'a' to leave out; there is 'y', 'z'"), (("y", "z"), "no output")],
)
def test_outputs_that_cannot_be_excluded(
    names: tuple[str, ...], words: str, tmp_path: Path
) -> None:
    text = "pair (float[1,4] x) => (float[1,4] y, float[1,4] z) { y = Neg(x)\n z = Relu(y) }"
    source = written(parsed(text), tmp_path / "m.onnx")
    with refuses(OnnxError, source, words):
        compiled(source, tmp_path, CompileOptions(without_outputs=names))


def test_local_functions_run(tmp_path: Path) -> None:
    model = onnx.parser.parse_model(
        """<ir_version: 9, opset_import: ["" : 17, "local" : 1]>
        uses (float[1,32] x) => (float[1,32] y) { h = local.twice(x)\n y = MatMul(h, w) }
        <domain: "local", opset_import: ["" : 17]>
        twice (a) => (b) { b = Add(a, a) }"""
    )
    weight = inputs_for({"w": (32, 32)})["w"]
    model.graph.initializer.append(numpy_helper.from_array(weight, "w"))
    source = written(model, tmp_path / "m.onnx")
    inputs = inputs_for({"x": (1, 32)})
    pack = compiled(source, tmp_path)
    same(streamed(pack, inputs), answers(source, inputs), 1e-5, 1e-5)


def test_empty_and_scalar_inputs_run(tmp_path: Path) -> None:
    model = parsed(
        """empty (float[n,4] x, float k) => (float y, float[m,4] z) {
            s = ReduceSum<keepdims=0>(x)
            y = Add(s, k)
            z = Concat<axis=0>(x, x)
        }"""
    )
    source = written(model, tmp_path / "m.onnx")
    pack = compiled(source, tmp_path, CompileOptions(shapes={"x": (0, 4)}))
    inputs = {"x": np.zeros((0, 4), np.float32), "k": np.array(2, np.float32)}
    same(streamed(pack, inputs), answers(source, inputs))


def test_reference_device_says_that_it_cannot(tmp_path: Path) -> None:
    pack = compiled(written(only_opaque()[0], tmp_path / "m.onnx"), tmp_path)
    with pytest.raises(DeviceError, match="NonZero"):
        ReferenceDevice().load(pack.graphs[0])
    pack = compiled(written(loop()[0], tmp_path / "l.onnx"), tmp_path)
    with pytest.raises(DeviceError, match="Loop: the reference device has no control flow"):
        ReferenceDevice().load(pack.graphs[0])
