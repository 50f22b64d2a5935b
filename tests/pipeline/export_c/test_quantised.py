"""Layers on bytes in C: the same bits as ONNX Runtime's of the graph that it is made of."""

import math
from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from models.packs.target import host_target
from pipeline.export_c.export import ExportOptions, export_c
from pipeline.export_c.network.network import ExportError
from tests.examples import examples
from tests.models.nets import answers, parsed
from tests.pipeline.export_c.byte_graphs import MICROSOFT, Graph, same_bits
from tests.pipeline.export_c.compiled import Compiled, for_c, needs_compiler

pytestmark = needs_compiler


@pytest.mark.parametrize("dtype", [pytest.param("uint8", marks=pytest.mark.slow), "int8"])
def test_every_layer(dtype: str, tmp_path: Path) -> None:
    g, shape = Graph(dtype, 3), (1, 6, 9, 7)
    first = g.convolution(g.quantized(), "c", (10, 6, 3, 3), pads=[1, 1, 1, 1])
    deep = g.convolution(first, "d", (10, 1, 3, 3), pads=[1, 1, 1, 1], group=10)
    one, other = g.scales[first], g.scales[deep]
    g.add("QLinearAdd", "e", first, *one, deep, *other, *g.scaled("e"), domain=MICROSOFT)
    g.add("MaxPool", "m", "e", kernel_shape=[3, 2], strides=[2, 2], pads=[1, 0, 1, 1])
    g.scales["m"] = g.scales["e"]
    g.add("QLinearSigmoid", "s", "e", *g.scales["e"], *g.scaled("s", 1 / 256), domain=MICROSOFT)
    held = g.constant(g.generator.integers(0, 99, (1, 2, 9, 7)).astype(dtype))
    parts = ("e", *g.scales["e"], "s", *g.scales["s"], held, *g.scaled(held))
    g.add("QLinearConcat", "k", *g.scaled("k"), *parts, domain=MICROSOFT, axis=1)
    pooled = (*g.scales["k"], *g.scaled("p"))
    g.add("QLinearGlobalAveragePool", "p", "k", *pooled, domain=MICROSOFT, channels_last=0)
    g.add("Flatten", "f", "p")
    weight = (*g.scales["p"], *g.weights((5, 22), 5), g.bias(5), *g.scaled("y", 0.01))
    g.add("QGemm", "y", "f", *weight, domain=MICROSOFT, transB=1)
    windows = {"kernel_shape": [3, 2], "strides": [2, 1], "pads": [1, 0, 1, 1]}
    for name, counted in (("v", 0), ("w", 1)):
        given_ = ("k", *g.scales["k"], *g.scaled(name))
        attributes = {**windows, "count_include_pad": counted}
        g.add("QLinearAveragePool", name, *given_, domain=MICROSOFT, **attributes)
    gated = ("k", *g.scales["k"], "p", *g.scales["p"], *g.scaled("z"))
    g.add("QLinearMul", "z", *gated, domain=MICROSOFT)
    graph = for_c(g.model(shape, ["m", "k", "y", "v", "w", "z"]), tmp_path)
    compiled = same_bits(graph, tmp_path, shape)
    again = same_bits(
        graph, tmp_path / "b", shape, weights="callback", ports="arena", buffer_bytes=600
    )
    assert again.exported.buffer_bytes <= 600
    assert compiled.exported.weight_bytes == again.exported.weight_bytes


@pytest.mark.parametrize("dtype", ["uint8", "int8"])
def test_layers_along_one_axis(dtype: str, tmp_path: Path) -> None:
    """Windows of a row, which is a plane to C."""
    g, shape = Graph(dtype, 9), (2, 6, 19)
    source = g.quantized()
    first = g.convolution(source, "c", (10, 6, 3), strides=[2], pads=[1, 2], dilations=[2])
    deep = g.convolution(first, "d", (10, 1, 3), pads=[1, 1], group=10)
    g.add("MaxPool", "m", deep, kernel_shape=[3], strides=[2], pads=[1, 1])
    g.scales["m"] = g.scales[deep]
    windows = {"kernel_shape": [3], "strides": [2], "pads": [1, 0]}
    scales = (*g.scales[deep], *g.scaled("v"))
    g.add("QLinearAveragePool", "v", deep, *scales, domain=MICROSOFT, **windows)
    same_bits(for_c(g.model(shape, ["c", "m", "v"]), tmp_path), tmp_path, shape)


@pytest.mark.skipif("avx" not in host_target().isa, reason="ONNX Runtime rounds otherwise here")
@pytest.mark.parametrize(("operator", "scale"), [("QLinearAdd", None), ("QLinearMul", 2.0)])
def test_pairs_of_all_bytes(operator: str, scale: float | None, tmp_path: Path) -> None:
    """With scales that do not divide: where products and sums are rounded shows."""
    g, shape = Graph("uint8", 0), (1, 256, 256)
    g.add("QuantizeLinear", "q", "x", *g.scaled("q", 1.0))
    names = []
    for number in range(12):
        g.add("Transpose", f"t{number}", "q", perm=[0, 2, 1])
        parts = ("q", *g.scaled("a"), f"t{number}", *g.scaled("b", scale), *g.scaled(f"s{number}"))
        names.append(g.add(operator, f"s{number}", *parts, domain=MICROSOFT))
    graph = for_c(g.model(shape, names), tmp_path)
    compiled = Compiled.of(graph, tmp_path / "c")
    zero = int(numpy_helper.to_array(g.tensors[1]))
    inputs = {"x": np.tile(np.arange(256, dtype=np.float32) - zero, (1, 256, 1))}
    _, outputs = compiled.run(inputs)
    for name, expected in answers(graph.written(), inputs, optimise=True).items():
        np.testing.assert_array_equal(outputs[name], expected, err_msg=name)


@pytest.mark.parametrize(("axis", "opset"), [(2, 13), (1, 12), (3, 13)])
def test_a_softmax_of_bytes(axis: int, opset: int, tmp_path: Path) -> None:
    """Along many, a few, and one."""
    g, shape = Graph("uint8", 4), (2, 30, 7, 1)
    source = g.quantized()
    scales = (*g.scales[source], *g.scaled("s", 1 / 255))
    zero = g.constant(np.array(0, np.uint8))
    g.scales["s"] = scales[2], zero
    given_ = (source, *scales[:3], zero)
    g.add("QLinearSoftmax", "s", *given_, domain=MICROSOFT, axis=axis, opset=opset)
    same_bits(for_c(g.model(shape, ["s"]), tmp_path), tmp_path, shape)


@pytest.mark.parametrize("dtype", ["uint8", "int8"])
def test_what_is_made_of_one_byte_is_looked_up(dtype: str, tmp_path: Path) -> None:
    """Hard and smooth swish, floats inside: a table each, and no memory for factors."""
    g, shape = Graph(dtype, 6), (1, 3, 5, 7)
    source = g.quantized()
    g.add("DequantizeLinear", "f", source, *g.scales[source])
    g.add("HardSigmoid", "h", "f", alpha=1 / 6)
    g.add("QuantizeLinear", "b", "h", *g.scaled("b", 1 / 128))
    parts = (source, *g.scales[source], "b", *g.scales["b"])
    g.add("QLinearMul", "s", *parts, *g.scaled("s"), domain=MICROSOFT)
    g.add("QLinearSigmoid", "t", "s", *g.scales["s"], *g.scaled("t", 1 / 256), domain=MICROSOFT)
    both = ("s", *g.scales["s"], "t", *g.scales["t"])
    g.add("QLinearMul", "y", *both, *g.scaled("y"), domain=MICROSOFT)
    compiled = same_bits(for_c(g.model(shape, ["y"]), tmp_path), tmp_path, shape)
    kernels = [step.kernel for step in compiled.exported.memory.steps]
    assert kernels == ["quantize", "look_up", "dequantize"]
    assert compiled.exported.memory.arena_bytes <= int(np.prod(shape)) + 64


@st.composite
def convolutions(draw: st.DrawFn) -> tuple[onnx.ModelProto, tuple[int, ...]]:
    groups = draw(st.sampled_from([1, 2, 3]))
    shape = (1, groups * draw(st.integers(1, 5)), draw(st.integers(5, 9)), draw(st.integers(5, 9)))
    g = Graph(draw(st.sampled_from(["uint8", "int8"])), draw(st.integers(0, 99)))
    source = g.quantized()
    names = []
    for number in range(3):
        kernel = [draw(st.integers(1, 3)) for _ in range(2)]
        pads = [draw(st.integers(0, size - 1)) for size in (*kernel, *kernel)]
        strides = [draw(st.integers(1, 3)) for _ in range(2)]
        dilations = [draw(st.integers(1, 2)) for _ in range(2)]
        weight = (groups * draw(st.integers(1, 6)), shape[1] // groups, *kernel)
        bias, made = draw(st.booleans()), f"c{number}"
        given = {"pads": pads, "group": groups, "strides": strides, "dilations": dilations}
        names.append(g.convolution(source, made, weight, bias, **given))
    return g.model(shape, names), shape


@examples(3, many=60)
@given(convolutions())
def test_convolutions_of_any_geometry(
    tmp_path_factory: pytest.TempPathFactory, drawn: tuple[onnx.ModelProto, tuple[int, ...]]
) -> None:
    folder = tmp_path_factory.mktemp("c")
    same_bits(for_c(drawn[0], folder), folder, drawn[1])


@pytest.mark.parametrize(
    ("looked_up", "kernel", "strides", "pads", "dilations"),
    [
        (False, (3, 3), (1, 1), (1, 1), (1, 1)),
        (True, (3, 2), (2, 1), (1, 0), (1, 2)),
        (True, (1, 5), (1, 3), (0, 2), (1, 1)),
    ],
)
def test_large_convolutions_are_one_step(
    looked_up: bool,
    kernel: tuple[int, int],
    strides: tuple[int, int],
    pads: tuple[int, int],
    dilations: tuple[int, int],
    tmp_path: Path,
) -> None:
    """A pack streams them in parts, on windows; here neither windows nor parts take memory."""
    g, (channels, height, width), filters = Graph("uint8", 5), (32, 9, 8), 48
    made = g.convolution(
        g.quantized(),
        "c" if looked_up else "y",
        (filters, channels, *kernel),
        strides=strides,
        pads=[*pads, *pads],
        dilations=dilations,
    )
    if looked_up:
        given = (*g.scales[made], *g.scaled("y"))
        g.add("QLinearLeakyRelu", "y", made, *given, domain=MICROSOFT, alpha=0.1)
    shape = (1, channels, height, width)
    graph = for_c(g.model(shape, ["y"]), tmp_path)
    compiled = same_bits(graph, tmp_path, shape)
    kernels = [step.kernel for step in compiled.exported.memory.steps]
    assert kernels.count("convolve_bytes") == 1
    bytes_read = channels * height * width
    (output,) = compiled.exported.api.network.outputs
    assert compiled.exported.memory.arena_bytes <= bytes_read + 2 * math.prod(output.shape) + 128


@pytest.mark.parametrize("dtype", ["uint8", "int8"])
def test_sums_of_unequal_shapes(dtype: str, tmp_path: Path) -> None:
    """One number, the three of a hard swish among them, is the second operand wherever it stands."""
    g = Graph(dtype, 7)
    g.quantized()
    limits = np.iinfo(g.dtype)
    made: list[str] = []
    for shape in ((1, 1, 1, 1), (6, 1, 1), (6, 5, 7), (7,), (5, 1)):
        held = g.constant(g.generator.integers(limits.min, limits.max, shape).astype(dtype))
        pair = ("q", *g.scales["q"]), (held, *g.scaled(held))
        for one, other in (pair, pair[::-1]):
            name = f"y{len(made)}"
            g.add("QLinearAdd", name, *one, *other, *g.scaled(name), domain=MICROSOFT)
            made.append(name)
    same_bits(for_c(g.model((1, 6, 5, 7), made), tmp_path), tmp_path, (1, 6, 5, 7))


# What inputs of layers on bytes may be, left out or of fewer numbers: the same bits, or an error.


@pytest.mark.parametrize("dtype", ["uint8", "int8"])
def test_zero_points_that_are_left_out(dtype: str, tmp_path: Path) -> None:
    """They are 0, of the type of the bytes: before floats, in tables, and for a caller's bytes."""
    g, shape = Graph(dtype, 7), (1, 3, 5, 7)
    scale = g.constant(np.float32(0.02))
    kind = getattr(TensorProto, dtype.upper())
    g.add("QuantizeLinear", "q", "x", scale, output_dtype=kind)
    g.add("MaxPool", "m", "q", kernel_shape=[2, 2])
    for operator, made in (("QLinearLeakyRelu", "l"), ("QLinearSigmoid", "s")):
        g.add(operator, made, "q", scale, "", scale, "", domain=MICROSOFT)
    g.scales = dict.fromkeys("mls", (scale,))
    graph = for_c(g.model(shape, [*"mls"], opset=21), tmp_path)
    same_bits(graph, tmp_path, shape)
    network = export_c(graph, ExportOptions(byte_ports=True)).api.network
    found = {
        port.name: network.quantised[port.name] for port in (*network.inputs, *network.outputs)
    }
    assert {(how.dtype, how.plain_zero) for how in found.values()} == {(dtype, 0)}


def test_what_a_split_makes_of_an_output_stays_a_float(tmp_path: Path) -> None:
    """Others read the rest of it as floats."""
    g, shape = Graph("uint8", 1), (1, 4, 5, 7)
    source = g.quantized()
    g.add("MaxPool", "m", source, kernel_shape=[2, 2])
    g.scales["m"] = g.scales[source]
    model = g.model(shape, ["m"])
    model.graph.node[-1].output[0] = "floats"
    model.graph.node.append(helper.make_node("Split", ["floats"], ["m_out", "rest"], axis=1))
    model.graph.node.append(helper.make_node("Neg", ["rest"], ["y"]))
    model.graph.output.append(helper.make_tensor_value_info("y", TensorProto.FLOAT, None))
    exported = export_c(for_c(model, tmp_path), ExportOptions(byte_ports=True))
    assert set(exported.api.network.quantised) == {"x"}


_MOVES = {
    "nothing": "Identity({})",
    "crop": "Slice({}, zero, two, two)",
    "focus": "SpaceToDepth<blocksize=2>({})",
    "order": "Gather<axis=1>({}, turned)",
    "repeated": "Tile({}, twice)",
}


@pytest.mark.parametrize("moved", _MOVES)
def test_bytes_are_copied_where_floats_are(moved: str, tmp_path: Path) -> None:
    model = parsed(
        f"""copies (float[1,4,6,6] x) => (float y) <float s = {{0.1}}, uint8 z = {{100}},
            int64[1] zero = {{0}}, int64[1] two = {{2}}, int64[4] turned = {{3, 2, 1, 0}},
            int64[4] twice = {{1, 1, 2, 1}}> {{
            a = {_MOVES[moved].format("x")}
            b = QuantizeLinear(a, s, z)
            c = MaxPool<kernel_shape=[2,2]>(b)
            d = DequantizeLinear(c, s, z)
            y = {_MOVES[moved].format("d")}
        }}"""
    )
    graph = for_c(model, tmp_path)
    x = np.random.default_rng(3).standard_normal((1, 4, 6, 6)).astype(np.float32) * 5
    _, floats = Compiled.of(graph, tmp_path / "floats").run({"x": x})
    compiled = Compiled.of(graph, tmp_path / "bytes", byte_ports=True)
    assert set(compiled.exported.api.network.quantised) == {"x", "y"}
    quantised = np.clip(np.rint(x / np.float32(0.1)) + 100, 0, 255).astype(np.uint8)
    _, outputs = compiled.run({"x": quantised})
    scaled = (outputs["y"].astype(np.int32) - 100).astype(np.float32)
    np.testing.assert_array_equal(scaled * np.float32(0.1), floats["y"])


def test_biases_of_products(tmp_path: Path) -> None:
    """They are broadcast to rows."""
    g, shape = Graph("uint8", 8), (5, 4)
    source = g.quantized()
    names = []
    for number, bias in enumerate([(), (1,), (1, 1), (5,), (1, 5)]):
        scales = (*g.scales[source], *g.weights((4, 5), 5), g.bias(bias))
        given = (*scales, *g.scaled(f"y{number}", 0.01))
        names.append(g.add("QGemm", f"y{number}", source, *given, domain=MICROSOFT))
    compiled = same_bits(for_c(g.model(shape, names), tmp_path), tmp_path, shape)
    kernels = [step.kernel for step in compiled.exported.memory.steps]
    assert kernels.count("convolve_bytes") == len(names)


@pytest.mark.parametrize("bias", [(5, 1), (5, 5)])
def test_a_bias_for_each_row_is_refused(bias: tuple[int, ...], tmp_path: Path) -> None:
    g, shape = Graph("uint8", 8), (5, 4)
    source = g.quantized()
    given = (*g.scales[source], *g.weights((4, 5), 5), g.bias(bias), *g.scaled("y"))
    g.add("QGemm", "y", source, *given, domain=MICROSOFT)
    with pytest.raises(ExportError, match=r"a bias \[5, \d\] of 5 filters"):
        export_c(for_c(g.model(shape, ["y"]), tmp_path), ExportOptions())


def test_windows_that_onnx_runtime_shifts_are_refused(tmp_path: Path) -> None:
    g, shape = Graph("uint8", 1), (1, 2, 7, 7)
    g.add("MaxPool", "m", g.quantized(), kernel_shape=[1, 1], strides=[3, 3], auto_pad="SAME_UPPER")
    g.scales["m"] = g.scales["q"]
    with pytest.raises(ExportError, match=r"auto_pad with strides \[3, 3\] beyond a kernel"):
        export_c(for_c(g.model(shape, ["m"]), tmp_path), ExportOptions())
