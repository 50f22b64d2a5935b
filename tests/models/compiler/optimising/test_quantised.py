"""Quantised networks: packs give exactly what plain ONNX Runtime gives, in every architecture."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from onnx.parser import parse_model

from models.compiler import CompileOptions
from models.compiler.cutting.cut import MERGED_WEIGHT_BYTES
from models.errors import OnnxError
from models.packs.pack import Pack
from models.packs.records.spans import SPAN_ALIGNMENT
from models.runtime.sessions import open_reference, open_resident
from pipeline.schedule.architectures import ARCHITECTURES
from tests.examples import over
from tests.models.nets import answers, exact_answers, written
from tests.models.streamed import compiled, same, streamed

CHANNELS = 64


def _model(text: str, **constants: np.ndarray) -> onnx.ModelProto:
    model = parse_model(f'<ir_version: 9, opset_import: ["" : 17, "com.microsoft" : 1]> {text}')
    model.graph.initializer.extend(
        numpy_helper.from_array(array, name) for name, array in constants.items()
    )
    return model


def _weights(*shape: int) -> np.ndarray:
    return np.random.default_rng(4).integers(-128, 128, shape).astype(np.int8)


def _scales(count: int) -> np.ndarray:
    return np.linspace(0.002, 0.004, count).astype(np.float32)


def qdq() -> onnx.ModelProto:
    """Convolutions between quantise and dequantise nodes, weights quantised for each channel."""
    return _model(
        """qdq (float[1,64,8,8] x) => (float[1,10] y) {
            a8 = QuantizeLinear(x, s, z)
            a = DequantizeLinear(a8, s, z)
            w = DequantizeLinear<axis=0>(w8, ws, wz)
            b = DequantizeLinear<axis=0>(b32, bs, bz)
            c = Conv<pads=[1,1,1,1]>(a, w, b)
            r = Relu(c)
            d8 = QuantizeLinear(r, t, z)
            d = DequantizeLinear(d8, t, z)
            v = DequantizeLinear<axis=0>(v8, ws, wz)
            e = Conv(d, v)
            f8 = QuantizeLinear(e, t, z)
            f = DequantizeLinear(f8, t, z)
            p = GlobalAveragePool(f)
            g = Flatten(p)
            y = Gemm<transB=1>(g, m)
        }""",
        s=np.array(0.02, np.float32),
        z=np.array(128, np.uint8),
        t=np.array(0.05, np.float32),
        w8=_weights(CHANNELS, CHANNELS, 3, 3),
        v8=_weights(CHANNELS, CHANNELS, 1, 1),
        ws=_scales(CHANNELS),
        wz=np.zeros(CHANNELS, np.int8),
        b32=np.arange(CHANNELS, dtype=np.int32),
        bs=_scales(CHANNELS) * np.float32(0.02),
        bz=np.zeros(CHANNELS, np.int32),
        m=np.linspace(-1, 1, 10 * CHANNELS, dtype=np.float32).reshape(10, CHANNELS),
    )


def qlinear() -> onnx.ModelProto:
    """The quantised operators themselves, uint8 in and out."""
    return _model(
        """qlinear (uint8[1,64,8,8] x) => (uint8[1,64,8,8] y, uint8[1,64,8,8] sum) {
            y = QLinearConv<pads=[1,1,1,1]>(x, s, z, w, ws, wz, t, z, b)
            sum = com.microsoft.QLinearAdd(x, s, z, y, t, z, t, z)
        }""",
        s=np.array(0.02, np.float32),
        z=np.array(128, np.uint8),
        t=np.array(0.1, np.float32),
        w=_weights(CHANNELS, CHANNELS, 3, 3),
        ws=_scales(CHANNELS),
        wz=np.zeros(CHANNELS, np.int8),
        b=np.arange(CHANNELS, dtype=np.int32),
    )


def dynamic() -> onnx.ModelProto:
    """Quantised while it runs, as onnxruntime.quantization.quantize_dynamic writes it."""
    return _model(
        """dynamic (float[1,256] x) => (float[1,128] y) {
            q, s, z = DynamicQuantizeLinear(x)
            m = MatMulInteger(q, w, z)
            f = Cast<to=1>(m)
            k = Mul(s, ws)
            y = Mul(f, k)
        }""",
        w=_weights(256, 128),
        ws=np.array(0.01, np.float32),
    )


def sums() -> onnx.ModelProto:
    """Operators on bytes of one kind, each with scales of its own, behind layers."""
    blocks = "".join(
        f"""
            c{n} = QLinearConv<pads=[1,1,1,1]>(a{n}, s{n}, z, w, ws, wz, t, z)
            m{n} = com.microsoft.QLinearAdd(a{n}, s{n}, z, c{n}, t, z, s{n + 1}, z)
            a{n + 1} = com.microsoft.QLinearSigmoid(m{n}, s{n + 1}, z, s{n + 1}, z)"""
        for n in range(3)
    )
    return _model(
        f"sums (uint8[1,64,80,80] a0) => (uint8[1,64,80,80] y) {{{blocks} y = Identity(a3) }}",
        z=np.array(128, np.uint8),
        t=np.array(0.1, np.float32),
        w=np.clip(_weights(CHANNELS, CHANNELS, 3, 3), -2, 2),
        ws=_scales(CHANNELS),
        wz=np.zeros(CHANNELS, np.int8),
        **{f"s{n}": np.array(0.02 + 0.01 * n, np.float32) for n in range(4)},
    )


@pytest.mark.parametrize(
    ("architecture", "make"),
    [
        pytest.param(name, make, marks=pytest.mark.slow if (one + other) % 3 else ())
        for one, name in enumerate(sorted(ARCHITECTURES))
        for other, make in enumerate((qdq, qlinear, dynamic))
    ],
)
def test_quantised_networks_equal_plain_onnx_runtime(
    make: Callable[[], onnx.ModelProto], architecture: str, tmp_path: Path
) -> None:
    model = make()
    source = written(model, tmp_path / "m.onnx")
    pack = compiled(source, tmp_path)
    generator = np.random.default_rng(6)
    (port,) = pack.manifest.inputs
    values = generator.standard_normal(port.shape) * 40 + 128 * (port.dtype == "uint8")
    inputs = {port.name: np.clip(values, -255, 255).astype(port.dtype)}
    expected = answers(source, inputs, optimise=True)
    same(streamed(pack, inputs, architecture), expected, 1e-5, 1e-5)
    # Their weights stream: int8 ones a quarter of the size.
    assert pack.manifest.resident_pieces == []
    weights = sum(span.length for span in pack.manifest.spans)
    floats = sum(4 * np.prod(tensor.dims) for tensor in model.graph.initializer)
    assert 0 < weights < 0.5 * floats


def test_a_body_may_read_a_reshaped_tensor_of_a_quantised_network(tmp_path: Path) -> None:
    """ONNX Runtime's optimiser aborts the process where it moves scales past that Reshape."""
    text = """
        q (float[1,4,6] x) => (float[4,6] y)
        <float s = {0.05}, uint8 z = {3}, int64[2] to = {4, 6}, float limit = {0}> {
            a = QuantizeLinear(x, s, z)
            b = DequantizeLinear(a, s, z)
            c = Reshape(b, to)
            total = ReduceSum<keepdims=0>(c)
            more = Greater(total, limit)
            y = If(more) <
                then_branch = t () => (float[4,6] u) { u = Neg(c) },
                else_branch = e () => (float[4,6] v) { v = Abs(c) }
            >
        }
    """
    pack = compiled(written(_model(text), tmp_path / "m.onnx"), tmp_path)
    x = np.linspace(0, 1, 24, dtype=np.float32).reshape(1, 4, 6)
    (y,) = streamed(pack, {"x": x}).values()
    np.testing.assert_allclose(y, -x[0], atol=0.03)


def test_operators_with_other_scales_share_a_session(tmp_path: Path) -> None:
    """And lie over what they read: a session is 35 KB, a scale four bytes."""
    source = written(sums(), tmp_path / "m.onnx")
    pack = compiled(source, tmp_path)
    inputs = {"a0": np.random.default_rng(3).integers(0, 256, (1, 64, 80, 80)).astype(np.uint8)}
    (expected,) = open_resident(str(source)).run(None, inputs)
    np.testing.assert_array_equal(streamed(pack, inputs)["y"], expected)
    manifest = pack.manifest
    graphs = {onnx.load_from_string(data).graph.node[0].op_type for data in pack.graphs}
    assert {"QLinearAdd", "QLinearSigmoid"} <= graphs
    assert len(pack.graphs) < 2 * len(graphs)
    (resident,) = (span for span in manifest.spans if span.resident)
    assert resident.length == SPAN_ALIGNMENT
    operands = (item for piece in manifest.pieces for item in (*piece.inputs, *piece.outputs))
    passed = {item.index for item in operands if item.kind == "value"}
    held = [value for index, value in enumerate(manifest.values) if index in passed]
    whole = [each for each in held if each.parent is None]
    assert sum(each.n_bytes == CHANNELS * 80 * 80 for each in whole) < len(manifest.pieces)


CONVOLUTIONS = {
    "product": ("pads=[1,1,1,1]", (160, 128, 3, 3), 7),
    "product with strides": ("strides=[2,2], pads=[0,1,2,1]", (160, 128, 3, 3), 9),
    "product of one pixel": ("", (384, 512, 1, 1), 8),
    "product, padding chosen": ('strides=[2,1], auto_pad="SAME_LOWER"', (192, 128, 3, 2), 9),
    "as it is": ("pads=[1,1,1,1]", (1200, 16, 3, 3), 20),
}
PART_BYTES = 40_000  # too large for two in one piece


def _convolution(attributes: str, kernel: tuple[int, ...], side: int) -> onnx.ModelProto:
    """A convolution whose channels come last, as ONNX Runtime's optimiser makes it."""
    features, channels = kernel[:2]
    return _model(
        f"""g (uint8[1,{side},{side},{channels}] x) => (uint8[1,a,b,{features}] y) {{
            y = com.microsoft.QLinearConv<channels_last=1{", " * bool(attributes)}{attributes}>
                (x, s, z, w, ws, wz, t, z, b)
        }}""",
        s=np.array(0.02, np.float32),
        z=np.array(120, np.uint8),
        t=np.array(0.05 * np.sqrt(np.prod(kernel[1:])), np.float32),
        w=_weights(*kernel),
        ws=_scales(features),
        wz=np.zeros(features, np.int8),
        b=np.arange(features, dtype=np.int32) * 50,
    )


def _matrices() -> onnx.ModelProto:
    """Every product with a matrix of integers, and a convolution that gives its sums."""
    return _model(
        """g (uint8[12,300] x, float[5,300] f, uint8[1,16,9,9] v) => (uint8[12,400] a, int32[12,400] c,
            float[5,400] d, uint8[12,400] e, int32[1,640,7,7] i) {
            a = QLinearMatMul(x, s, z, w, ws, wz, t, z)
            c = MatMulInteger(x, w, z)
            d = com.microsoft.DynamicQuantizeMatMul(f, w, ws, wz, fb)
            e = com.microsoft.QGemm<transB=1>(x, s, z, wt, ws, wz, b, t, z)
            i = ConvInteger(v, k, z)
        }""",
        s=np.array(0.02, np.float32),
        z=np.array(120, np.uint8),
        t=np.array(0.5, np.float32),
        w=_weights(300, 400),
        wt=_weights(400, 300),
        k=_weights(640, 16, 3, 3),
        ws=_scales(400),
        wz=np.zeros(400, np.int8),
        b=np.arange(400, dtype=np.int32),
        fb=np.linspace(-1, 1, 400, dtype=np.float32),
    )


def _same_bits_in_parts(model: onnx.ModelProto, folder: Path) -> Pack:
    """Compile with small parts; check every bit of what that streams, and return the pack."""
    source = written(model, folder / "m.onnx")
    pack = compiled(source, folder, CompileOptions(chunk_bytes=PART_BYTES))
    generator = np.random.default_rng(6)
    inputs = {
        port.name: np.clip(generator.standard_normal(port.shape) * 60 + 120, 0, 255).astype(
            port.dtype
        )
        for port in pack.manifest.inputs
    }
    expected = exact_answers(source, inputs)
    same(streamed(pack, inputs), expected)
    assert all(np.ptp(array) > 10 for array in expected.values())  # not all at a limit
    assert pack.manifest.resident_pieces == []
    return pack


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_parts_of_a_quantised_convolution_have_the_bits_of_the_whole(
    name: str, tmp_path: Path
) -> None:
    attributes, kernel, side = CONVOLUTIONS[name]
    pack = _same_bits_in_parts(_convolution(attributes, kernel, side), tmp_path)
    operators = [layer.operator for layer in pack.manifest.layers]
    turned = "QGemm" if name.startswith("product") else "QLinearConv"
    assert operators.count(turned) > 1
    assert "Concat" in operators
    # With scales, biases and the rest of a page.
    assert pack.manifest.largest_chunk_bytes <= PART_BYTES + 2 * SPAN_ALIGNMENT
    # All parts are one graph, but for the last where it is smaller.
    parts = [layer for layer in pack.manifest.layers if layer.operator == turned]
    graphs = {pack.manifest.pieces[layer.first_piece].graph for layer in parts}
    assert len(graphs) <= 2


def test_parts_of_quantised_matrices_have_the_bits_of_the_whole(tmp_path: Path) -> None:
    pack = _same_bits_in_parts(_matrices(), tmp_path)
    # Small parts are merged; whole matrices have 120,000 bytes.
    assert pack.manifest.largest_chunk_bytes <= MERGED_WEIGHT_BYTES + SPAN_ALIGNMENT
    operators = [layer.operator for layer in pack.manifest.layers]
    for operator in ("QGemm", "QLinearMatMul", "DynamicQuantizeMatMul", "ConvInteger"):
        assert operators.count(operator) > 1, operator


def test_the_model_beside_a_pack_has_the_layers_as_they_stream(tmp_path: Path) -> None:
    attributes, kernel, side = CONVOLUTIONS["product"]
    model = _convolution(attributes, kernel, side)
    pack = _same_bits_in_parts(model, tmp_path)
    image = np.random.default_rng(2).integers(0, 256, (1, side, side, kernel[1])).astype(np.uint8)
    whole = exact_answers(tmp_path / "m.onnx", {"x": image})
    same(answers(pack.folder / "model.onnx", {"x": image}), whole)


@over("value", [0.0, -0.5, np.nan, np.inf])
def test_scales_that_make_no_integers_are_named(value: float, tmp_path: Path) -> None:
    model = qdq()
    scale = next(tensor for tensor in model.graph.initializer if tensor.name == "t")
    scale.CopyFrom(numpy_helper.from_array(np.array(value, np.float32), "t"))
    source = written(model, tmp_path / "m.onnx")
    with pytest.raises(OnnxError, match=r"\(QuantizeLinear\): scale 't' is .*above zero"):
        compiled(source, tmp_path)


def test_channels_without_weights_may_have_scales_of_zero(tmp_path: Path) -> None:
    attributes, kernel, side = CONVOLUTIONS["product"]
    model = _convolution(attributes, kernel, side)
    for tensor in model.graph.initializer:
        if tensor.name in ("w", "ws"):
            array = numpy_helper.to_array(tensor).copy()
            array[:3] = 0
            tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))
    _same_bits_in_parts(model, tmp_path)


@over(
    "before, after, kind",
    [
        ("Identity(a)", "Identity(p)", np.uint8),
        ("Transpose<perm=[0,1,3,2]>(a)", "Transpose<perm=[0,1,3,2]>(p)", np.int8),
        ("MaxPool<kernel_shape=[3,3],pads=[1,1,1,1]>(a)", "Relu(p)", np.uint8),
    ],
)
def test_pools_take_scales_that_are_vectors_of_one(
    before: str, after: str, kind: type, tmp_path: Path
) -> None:
    """ONNX Runtime makes a pool of integers of them, which takes scalars only."""
    model = _model(
        f"""pool (float[1,8,8,8] x) => (float[1,8,7,7] y) {{
            a8 = QuantizeLinear(x, s, z)
            a = DequantizeLinear(a8, s, z)
            b = {before}
            p = AveragePool<kernel_shape=[2,2]>(b)
            c = {after}
            c8 = QuantizeLinear(c, s, z)
            y = DequantizeLinear(c8, s, z)
        }}""",
        s=np.array([0.03], np.float32),
        z=np.array([3], kind),
    )
    folder = tmp_path / f"{len(list(tmp_path.iterdir()))}"
    folder.mkdir()
    pack = compiled(written(model, folder / "m.onnx"), folder)
    inputs = {"x": np.random.default_rng(7).uniform(0, 3, (1, 8, 8, 8)).astype(np.float32)}
    expected = open_reference(folder / "m.onnx").run(None, inputs)[0]
    assert np.abs(streamed(pack, inputs)["y"] - expected).max() < 0.03 * 1.01
