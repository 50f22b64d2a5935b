"""Weights that are integers in the source and computed as floats: int8 in the file, blocked kernels."""

from collections import Counter
from pathlib import Path

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import helper, numpy_helper
from onnx.parser import parse_model

from models.compiler import CompileOptions, compile_onnx
from models.compiler.optimising.integer_activations import LimitIntegers, MoveBytes
from models.graphs.text import from_text
from models.graphs.writer import model_of
from models.packs.manifest import Manifest
from models.packs.names import Store
from models.packs.pack import Pack, open_pack
from models.packs.storing import read_span
from models.packs.target import host_target, named_target
from models.runtime.sessions import open_piece, open_reference, open_resident
from tests.examples import over
from tests.models.nets import answers, inputs_for, parsed, written
from tests.models.streamed import compiled, same, streamed

CHANNELS = 64
KERNEL = (CHANNELS, CHANNELS, 3, 3)
RNG = np.random.default_rng(4)
INT8 = RNG.integers(-127, 128, KERNEL).astype(np.int8)
SCALES = np.linspace(0.0002, 0.0004, CHANNELS).astype(np.float32)
FACTORS = np.linspace(0.5, 1.5, CHANNELS, dtype=np.float32)
BEHIND = """r = Relu(c)
            p = GlobalAveragePool(r)
            g = Flatten(p)
            y = Gemm<transB=1>(g, m, n)"""


def _model(
    text: str, opset: int = 21, **constants: np.ndarray | onnx.TensorProto
) -> onnx.ModelProto:
    model = parse_model(
        f"""<ir_version: 10, opset_import: ["" : 21]>
        g (float[1,{CHANNELS},9,9] x) => (float[1,40] y) {{ {text} {BEHIND} }}"""
    )
    dense = np.linspace(-1, 1, 40 * CHANNELS, dtype=np.float32).reshape(40, CHANNELS)
    constants |= {"m": dense, "n": np.linspace(-1, 1, 40, dtype=np.float32)}
    model.graph.initializer.extend(
        array if isinstance(array, onnx.TensorProto) else numpy_helper.from_array(array, name)
        for name, array in constants.items()
    )
    return model


def _int4(name: str, array: np.ndarray) -> onnx.TensorProto:
    return helper.make_tensor(name, onnx.TensorProto.INT4, array.shape, array.ravel())


def per_channel() -> onnx.ModelProto:
    return _model(
        "w = DequantizeLinear<axis=0>(q, s, z) c = Conv<pads=[1,1,1,1]>(x, w)",
        q=INT8,
        s=SCALES,
        z=np.zeros(CHANNELS, np.int8),
    )


def unsigned_and_turned() -> onnx.ModelProto:
    """One scale and a zero point for all, channels last, as TFLite has them."""
    return _model(
        """t = DequantizeLinear(q, s, z)
            w = Transpose<perm=[0,3,1,2]>(t)
            c = Conv<pads=[1,1,1,1]>(x, w)""",
        q=(INT8.transpose(0, 2, 3, 1).astype(np.int16) + 128).astype(np.uint8),
        s=np.array(0.0003, np.float32),
        z=np.array(128, np.uint8),
    )


def four_bits() -> onnx.ModelProto:
    return _model(
        "w = DequantizeLinear<axis=0>(q, s, z) c = Conv<pads=[1,1,1,1]>(x, w)",
        q=_int4("q", INT8 // 16),
        s=SCALES * 16,
        z=_int4("z", np.zeros(CHANNELS, np.int8)),
    )


def before_a_batch_norm() -> onnx.ModelProto:
    return _model(
        """w = DequantizeLinear<axis=0>(q, s, z)
            b = Conv<pads=[1,1,1,1]>(x, w)
            c = BatchNormalization(b, f, f, f, f)""",
        q=INT8,
        s=SCALES,
        z=np.zeros(CHANNELS, np.int8),
        f=FACTORS,
    )


def sixteen_bits() -> onnx.ModelProto:
    """Activations of 16 bits, for which no kernel of integers is."""
    return _model(
        """x16 = QuantizeLinear(x, a, o)
            xd = DequantizeLinear(x16, a, o)
            w = DequantizeLinear<axis=0>(q, s, z)
            b = Conv<pads=[1,1,1,1]>(xd, w)
            c16 = QuantizeLinear(b, a, o)
            c = DequantizeLinear(c16, a, o)""",
        a=np.array(0.0005, np.float32),
        o=np.array(32768, np.uint16),
        q=INT8,
        s=SCALES,
        z=np.zeros(CHANNELS, np.int8),
    )


def in_blocks() -> onnx.ModelProto:
    return _model(
        "w = DequantizeLinear<axis=1, block_size=16>(q, s) c = Conv<pads=[1,1,1,1]>(x, w)",
        q=INT8,
        s=RNG.uniform(0.0002, 0.0004, (CHANNELS, 4, 3, 3)).astype(np.float32),
    )


def _input() -> NDArray[np.float32]:
    return np.random.default_rng(6).standard_normal((1, CHANNELS, 9, 9)).astype(np.float32)


def _compared(model: onnx.ModelProto, folder: Path, options: CompileOptions | None = None) -> Pack:
    """Compile ``model``, compare what streams with ONNX Runtime, and return the pack."""
    source = written(model, folder / "m.onnx")
    pack = compiled(source, folder, options)
    (expected,) = open_resident(str(source)).run(None, {"x": _input()})
    # What is rounded to 16 bits may be rounded otherwise.
    far = 5e-4 if "QuantizeLinear" in operators(pack.manifest) else 1e-5
    same(streamed(pack, {"x": _input()}), {"y": expected}, 0, far * np.abs(expected).max())
    return pack


def operators(manifest: Manifest) -> Counter[str]:
    return Counter(layer.operator for layer in manifest.layers)


def _nodes(pack: Pack) -> Counter[str]:
    """Return the operators of all pieces: layers on an image or in a bottleneck are one piece."""
    models = (onnx.load_from_string(pack.graphs[piece.graph]) for piece in pack.manifest.pieces)
    return Counter(node.op_type for model in models for node in model.graph.node)


def _bytes_a_number(pack: Pack) -> float:
    """Return what the numbers of the convolution take in the file, scales and pages, too."""
    (layer,) = (layer for layer in pack.manifest.layers if "Conv" in layer.operator)
    pieces = pack.manifest.pieces[layer.first_piece : layer.end_piece]
    spans = [pack.manifest.spans[piece.span] for piece in pieces if piece.span is not None]
    return sum(span.file_length for span in spans) / INT8.size


@pytest.mark.parametrize(
    "make",
    [per_channel, unsigned_and_turned, four_bits, before_a_batch_norm, sixteen_bits],
    ids=lambda make: make.__name__,
)
def test_integers_of_the_source_are_integers_in_the_file(make: object, tmp_path: Path) -> None:
    pack = _compared(make(), tmp_path)  # type: ignore[operator]
    assert _bytes_a_number(pack) < 1.4
    assert pack.manifest.store == "fp32"
    # No sweep makes floats of weights, and the convolution is the one for constant weights, where that is.
    assert pack.manifest.resident_pieces == []
    assert operators(pack.manifest)["DequantizeLinear"] == 2 * (make is sixteen_bits)
    assert "FusedConv" not in operators(pack.manifest) or host_target().block == 1


def test_scales_of_blocks_make_floats_and_a_warning(tmp_path: Path) -> None:
    warned: list[str] = []
    pack = _compared(in_blocks(), tmp_path, CompileOptions(warn=warned.append))
    assert _bytes_a_number(pack) >= 4
    assert not pack.manifest.expands
    assert warned == [
        "weights 'q' become float32, in the file, too: they have a scale for each block"
    ]


@pytest.mark.parametrize("store", ["int8", "lossless"])
def test_integers_stay_the_same_whatever_is_asked_for(store: Store, tmp_path: Path) -> None:
    pack = compiled(
        written(per_channel(), tmp_path / "m.onnx"), tmp_path, CompileOptions(store=store)
    )
    assert _bytes_a_number(pack) < 1.4
    numbers = [read_span(pack.weights_path, span).view("f4") for span in pack.manifest.spans]
    given = INT8.astype(np.float32) * SCALES[:, None, None, None]
    assert np.isin(given, np.concatenate(numbers)).all()


def _signed(inputs: str, outputs: str, before: str, behind: str, limit: str) -> onnx.ModelProto:
    """Signed activations, of which two operators read the same; a limit with a symmetric scale."""
    model = parse_model(
        f"""<ir_version: 10, opset_import: ["" : 21]> g ({inputs} x) => ({outputs} y) {{
            {before}
            w = DequantizeLinear<axis=0>(q, s, z)
            b = Conv<pads=[1,1,1,1]>(a, w)
            b8 = QuantizeLinear(b, t, o)
            bd = DequantizeLinear(b8, t, o)
            e = Conv<pads=[1,1,1,1]>(bd, w)
            {limit}
            e8 = QuantizeLinear(r, t, m)
            ed = DequantizeLinear(e8, t, m)
            d = Add(bd, ed)
            {behind}
        }}"""
    )
    constants: dict[str, np.ndarray] = {
        "t": np.array(0.03, np.float32),
        "o": np.array(-3, np.int8),
        "m": np.array(0, np.int8),
        "v": np.array(0.05, np.float32),
        "low": np.array(-0.1, np.float32),
        "high": np.array(2, np.float32),
        "q": INT8,
        "s": SCALES,
        "z": np.zeros(CHANNELS, np.int8),
    }
    model.graph.initializer.extend(
        numpy_helper.from_array(array, name) for name, array in constants.items()
    )
    return model


SHAPE = f"[1,{CHANNELS},9,9]"
FLOATS = (
    f"float{SHAPE}",
    f"float{SHAPE}",
    "x8 = QuantizeLinear(x, t, o) a = DequantizeLinear(x8, t, o)",
    "d8 = QuantizeLinear(d, t, o) y = DequantizeLinear(d8, t, o)",
)
INTEGERS = (
    f"int8{SHAPE}",
    f"int8{SHAPE}",
    "a = DequantizeLinear(x, t, o)",
    "y = QuantizeLinear(d, t, o)",
)

LIMITS = {
    "before the rounding": "r = Relu(e)",
    "rounded before, too": "e7 = QuantizeLinear(e, t, m) f = DequantizeLinear(e7, t, m)"
    " r = Clip(f, low, high)",
    "rounded otherwise before": "e7 = QuantizeLinear(e, v, o) f = DequantizeLinear(e7, v, o)"
    " r = Clip(f, low, high)",
}


@pytest.mark.parametrize("limit", LIMITS)
@pytest.mark.parametrize("ports", [FLOATS, INTEGERS], ids=["floats", "integers"])
def test_signed_activations_are_computed_as_integers(
    ports: tuple[str, str, str, str], limit: str, tmp_path: Path
) -> None:
    source = written(_signed(*ports, LIMITS[limit]), tmp_path / "m.onnx")
    pack = compiled(source, tmp_path)
    (port,) = pack.manifest.inputs
    given = (_input() * (1 if port.dtype == "float32" else 40)).astype(port.dtype)
    (expected,) = open_reference(source).run(None, {"x": given})
    got = streamed(pack, {"x": given})["y"]
    assert np.ptp(expected.astype(float)) > 100 * (0.03 if port.dtype == "float32" else 1)
    # Sums of integers and of floats may lie on two sides of a half; here none does.
    np.testing.assert_array_equal(got, expected)
    found = _nodes(pack)
    assert found["QLinearConv"] + found["QGemm"] >= 2
    assert found["QLinearAdd"] == 1
    assert found["Clip"] == 1
    assert found["QLinearConcat"] == (limit == "rounded otherwise before")
    assert not {"Conv", "FusedConv", "Add", "Relu"} & found.keys()


def test_gates_of_softmaxes_are_those_of_floats(tmp_path: Path) -> None:
    """Between unsigned integers ONNX Runtime would compute a softmax that is a step off here and there."""
    gates, value = "", "d"
    for gate in range(3):
        gates += f"""
            c{gate} = Conv({value}, v)
            p{gate} = QuantizeLinear(c{gate}, s, z)
            e{gate} = DequantizeLinear(p{gate}, s, z)
            f{gate} = Softmax(e{gate})
            g{gate} = QuantizeLinear(f{gate}, t, z)
            h{gate} = DequantizeLinear(g{gate}, t, z)
            m{gate} = Mul(e{gate}, h{gate})
            n{gate} = QuantizeLinear(m{gate}, s, z)
            o{gate} = DequantizeLinear(n{gate}, s, z)"""
        value = f"o{gate}"
    model = parsed(
        f"""gates (float[1,16,12,12] x) => (float[1,16,12,12] y) {{
            b = QuantizeLinear(x, s, z)
            d = DequantizeLinear(b, s, z)
            v = DequantizeLinear(w, u, z)
            {gates}
            y = Identity({value})
        }}"""
    )
    weights = np.random.default_rng(0).integers(-30, 30, (16, 16, 1, 1)).astype(np.int8)
    scales = {"s": 0.0513, "t": 1 / 255, "u": 0.0437}
    constants = {name: np.float32(scale) for name, scale in scales.items()}
    for name, array in {**constants, "w": weights, "z": np.int8(0)}.items():
        model.graph.initializer.append(numpy_helper.from_array(np.asarray(array), name))
    source = written(model, tmp_path / "gates.onnx")
    pack, inputs = compiled(source, tmp_path), inputs_for({"x": (1, 16, 12, 12)})
    (expected,) = open_reference(source).run(None, inputs)
    assert np.ptp(expected) > 20 * scales["s"]
    np.testing.assert_array_equal(streamed(pack, inputs)["y"], expected)
    assert _nodes(pack)["QLinearMul"] == 3


@over("operator", ["Add(a, a)", "Mul(a, a)", "Sigmoid(a)"])
def test_limits_follow_the_rounding_of_what_bytes_may_compute(operator: str) -> None:
    graph = from_text(
        f"""<ir_version: 9, opset_import: ["" : 17]> g (float[64] a) => (int8[64] y)
        <float t = {{0.04}}, int8 z = {{3}}, float low = {{0.1}}, float high = {{0.8}}> {{
            b = {operator}
            c = Clip(b, low, high)
            y = QuantizeLinear(c, t, z)
        }}"""
    )
    a = np.linspace(-2, 2, 64, dtype=np.float32)
    limited = LimitIntegers(graph).run()
    assert [node.operator for node in limited.nodes][1:] == ["QuantizeLinear", "Clip"]
    expected, got = (
        open_piece(model_of(network).SerializeToString()).run(None, {"a": a})[0]
        for network in (graph, limited)
    )
    np.testing.assert_array_equal(got, expected)


@over(
    "mover, scale, is_moved",
    [
        ("Transpose<perm=[1,0]>(b)", "s", True),
        ("Reshape(b, shape)", "s", True),
        ("Transpose<perm=[1,0]>(b)", "t", False),
        ("Softmax(b)", "s", False),
    ],
)
def test_bytes_are_moved_where_they_become_the_same_again(
    mover: str, scale: str, is_moved: bool
) -> None:
    graph = from_text(
        f"""<ir_version: 9, opset_import: ["" : 17]> g (uint8[16,16] a) => (uint8[16,16] y)
        <float s = {{0.0313}}, float t = {{0.04}}, uint8 z = {{3}}, int64[2] shape = {{16, 16}}> {{
            b = DequantizeLinear(a, s, z)
            c = {mover}
            y = QuantizeLinear(c, {scale}, z)
        }}"""
    )
    a = np.arange(256, dtype=np.uint8).reshape(16, 16)
    moved = MoveBytes(graph).run()
    assert len(moved.nodes) == (1 if is_moved else 3)
    expected, got = (
        open_piece(model_of(network).SerializeToString()).run(None, {"a": a})[0]
        for network in (graph, moved)
    )
    np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize("signed", [False, True])
def test_zero_points_that_are_left_out_are_zeros(signed: bool, tmp_path: Path) -> None:
    """The same operators of integers and the same bits as if they were written."""
    whole = _signed(*FLOATS, LIMITS["before the rounding"])
    kind = onnx.TensorProto.INT8 if signed else onnx.TensorProto.UINT8
    for tensor in whole.graph.initializer:
        if tensor.name in "om":
            tensor.CopyFrom(helper.make_tensor(tensor.name, kind, [], [0]))
    bare = onnx.ModelProto.FromString(whole.SerializeToString())
    for node in bare.graph.node:
        if node.op_type == "QuantizeLinear":
            node.attribute.append(helper.make_attribute("output_dtype", kind))
        if node.op_type in {"QuantizeLinear", "DequantizeLinear"}:
            del node.input[2:]
    packs = []
    for name, model in (("whole", whole), ("bare", bare)):
        (tmp_path / name).mkdir()
        packs.append(compiled(written(model, tmp_path / name / "m.onnx"), tmp_path / name))
    one, other = packs
    assert _nodes(one) == _nodes(other)
    same(streamed(one, {"x": _input()}), streamed(other, {"x": _input()}))


# Zero points that are left out, or written: packs compute with those of the standard.


@pytest.mark.parametrize("target", ["cpu", "cuda-sm72"])
@pytest.mark.parametrize("opset", [17, 21])
@pytest.mark.parametrize("zero", ["", ", zero"], ids=["left out", "written"])
def test_bytes_with_a_sign_keep_it_where_they_move(
    opset: int, target: str, zero: str, tmp_path: Path
) -> None:
    """ONNX Runtime would quantise to bytes without one behind Transpose, or to no type."""
    model = parsed(
        f"""g (float[1,3,6,4] x) => (float y) {{
            q = QuantizeLinear(x, scale, zero)
            m = MaxPool<kernel_shape=[2,2]>(q)
            f = DequantizeLinear(m, scale{zero})
            y = Transpose<perm=[0,2,3,1]>(f)
        }}"""
    )
    model.opset_import[0].version = opset
    constants = {"scale": np.float32(0.02), "zero": np.int8(0)}
    for name, number in constants.items():
        model.graph.initializer.append(numpy_helper.from_array(np.array(number), name))
    source = written(model, tmp_path / "source.onnx")
    wanted = host_target() if target == "cpu" else named_target(target)
    made = compile_onnx(source, tmp_path / "pack", CompileOptions(target=wanted))
    pack, inputs = open_pack(made, wanted), inputs_for({"x": (1, 3, 6, 4)})
    expected = answers(source, inputs)["y"]
    np.testing.assert_array_equal(answers(pack.model_path, inputs)["y"], expected)
    assert (expected < 0).any()
