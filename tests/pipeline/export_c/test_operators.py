"""Each family of operators in C, beside ONNX Runtime on the source."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import numpy_helper

from models.compiler.for_c import graph_for_c
from models.compiler.sources import SourceOptions
from models.packs.pack import Pack
from models.packs.target import host_target
from pipeline.export_c.export import ExportOptions, export_c
from pipeline.export_c.network.network import ExportError
from tests.examples import examples, thinned
from tests.models.nets import NETS, answers, inputs_for, parsed, shapes_of
from tests.pipeline.export_c.compiled import Compiled, agree, for_c, needs_compiler

pytestmark = needs_compiler


def with_constants(model: onnx.ModelProto, **arrays: object) -> onnx.ModelProto:
    for name, value in arrays.items():
        array = np.array(value, np.float32 if isinstance(value, float) else np.int64)
        model.graph.initializer.append(numpy_helper.from_array(array, name))
    return model


def check(model: onnx.ModelProto, folder: Path, **options: Any) -> Compiled:
    """Check that the exported ``model`` answers as ONNX Runtime."""
    compiled = Compiled.of(for_c(model, folder), folder / "c", **options)
    inputs = inputs_for(shapes_of(model))
    status, outputs = compiled.run(inputs)
    assert status == 0
    agree(outputs, answers(folder / "source.onnx", inputs))
    return compiled


@pytest.mark.parametrize("name", thinned(NETS, 3))
def test_every_tiny_network(name: str, tmp_path: Path) -> None:
    """A compiler reads weights that are text for longer than it compiles the rest."""
    check(NETS[name](), tmp_path, weights="callback")


FUNCTIONS = """functions (float[1,24,5,3] x) => (float a, float b, float c, float d, float e, float f,
    float g, float h, float i, float j, float k, float l, float m) {
    a = LeakyRelu<alpha=0.3>(x)
    b = Sigmoid(x)
    c = Tanh(x)
    d = HardSigmoid<alpha=0.3, beta=0.4>(x)
    e = HardSwish(x)
    f = Elu<alpha=0.7>(x)
    g0 = Sigmoid(x)
    g = Mul(g0, x)
    h = Exp(x)
    i = Neg(x)
    j = Abs(x)
    k0 = Add(j, one)
    k = Reciprocal(k0)
    l = Erf(x)
    m0 = Div(x, root)
    m1 = Erf(m0)
    m2 = Add(m1, unit)
    m3 = Mul(x, m2)
    m = Mul(m3, one)
}"""

PAIRS = """pairs (float[2,3,4,5] x, float[3,1,5] y) => (
    float a, float b, float c, float d, float e, float f, float g) {
    a = Add(x, y)
    b = Sub(y, x)
    c = Mul(x, scale)
    d0 = Div(x, scale)
    d = Clip(d0, low, high)
    e0 = Max(x, scale, y, low)
    e = Pow(e0, two)
    f = Min(x, y, high)
    g = Mod<fmod=1>(x, scale)
}"""

POOLS = """pools (float[2,4,9,7] x) => (
    float a, float b, float c, float d, float e, float f, float g, float h, float i) {
    a = MaxPool<kernel_shape=[3,2], strides=[2,1], pads=[1,0,1,1]>(x)
    b = AveragePool<kernel_shape=[3,3], strides=[2,2], pads=[1,1,1,1]>(x)
    c = AveragePool<kernel_shape=[3,3], strides=[2,2], pads=[1,1,1,1], count_include_pad=1>(x)
    d = MaxPool<kernel_shape=[2,2], strides=[2,2], ceil_mode=1>(x)
    e = GlobalAveragePool(x)
    f = GlobalMaxPool(x)
    g = ReduceMean<axes=[2,3], keepdims=0>(x)
    h = AveragePool<kernel_shape=[2,4], strides=[2,3], pads=[1,3,1,1], ceil_mode=1, count_include_pad=1>(x)
    i = AveragePool<kernel_shape=[10,8], strides=[2,2], count_include_pad=1>(x)
}"""

MOVEMENT = """movement (float[1,6,4,4] x, float[1,6,4,4] z) => (
    float a, float b, float c, float d, float e, float f, float g, float h) {
    p, q = Split<axis=1>(x, parts)
    r = Concat<axis=1>(q, p, z)
    a = Relu(r)
    b0 = Transpose<perm=[0,2,3,1]>(x)
    b = Softmax<axis=3>(b0)
    c = Pad(x, pads, value)
    d0 = Slice(z, starts, ends, axes, steps)
    d = Neg(d0)
    e0 = Resize<mode="nearest", coordinate_transformation_mode="asymmetric",
        nearest_mode="floor">(x, , factors)
    e = Add(e0, value)
    f0 = Unsqueeze(x, last)
    f1 = Squeeze(f0, last)
    f = Concat<axis=3>(f1, z)
    g0 = Reshape(z, flat)
    g = Softmax<axis=0>(g0)
    h0 = Sub(x, z)
    h1 = Pad(h0, more, value)
    h = Neg(h1)
}"""

DENSE = """dense (float[3,20] x, float[1,4,9] z) => (
    float a, float b, float c, float d, float e, float f) {
    a0 = Gemm<alpha=0.5, beta=2.0>(x, w, bias)
    a = Tanh(a0)
    b = MatMul(z, v)
    c0 = Gemm<transB=1>(x, u)
    c = Add(c0, x)
    d0 = LayerNormalization(c, s, t)
    d = Relu(d0)
    e0 = Transpose<perm=[0,2,1]>(z)
    e1 = MatMul(z, e0)
    e = Mul(e1, half)
    f0 = MatMul(e, z)
    f = Gather<axis=1>(f0, last)
}"""


def functions() -> onnx.ModelProto:
    return with_constants(parsed(FUNCTIONS), one=0.5, unit=1.0, root=2**0.5)


def pairs() -> onnx.ModelProto:
    limits = {"low": -1.5, "high": 1.0, "two": [[[[[2]]]]]}
    return with_constants(parsed(PAIRS, {"scale": (1, 3, 1, 1)}), **limits)


def pools() -> onnx.ModelProto:
    return parsed(POOLS)


def movement() -> onnx.ModelProto:
    model = parsed(MOVEMENT)
    whole = {"starts": [3, 5], "ends": [0, -9], "axes": [2, 1], "steps": [-1, -2], "flat": [12, -1]}
    pads = [0, 1, -1, 2, 0, 0, 1, 1]
    more = [0, 1, 0, 0, 0, 2, 0, 0]  # of channels: what is padded may lie inside already
    with_constants(model, parts=[2, 4], pads=pads, more=more, value=1.5, last=[4], **whole)
    factors = numpy_helper.from_array(np.array([1, 1, 2, 3], np.float32), "factors")
    model.graph.initializer.append(factors)
    return model


def dense() -> onnx.ModelProto:
    weights = {"w": (20, 7), "bias": (7,), "v": (9, 5), "u": (20, 20), "s": (20,), "t": (20,)}
    return with_constants(parsed(DENSE, weights), half=0.5, last=-1)


RESIZED = """resized (float[1,4,4,6] x, float[1,5,4,6] z) => (float a, float b, float c, float d, float e,
    float f, float g, float h, float i, float j) {
    a = ConvTranspose<strides=[2,3], pads=[0,1,1,0], output_padding=[1,0], group=2>(x, w, bias)
    b = PRelu(x, slope)
    c0 = ReduceMax<axes=[1], keepdims=1>(x)
    c1 = Expand(c0, shape)
    c = Neg(c1)
    d = Resize<mode="linear", coordinate_transformation_mode="pytorch_half_pixel">(x, , factors)
    e = Resize<mode="linear", coordinate_transformation_mode="align_corners">(x, , factors)
    f = Resize<mode="linear", coordinate_transformation_mode="asymmetric">(x, , , sizes)
    g = Resize<mode="nearest", coordinate_transformation_mode="half_pixel",
        nearest_mode="floor">(x, , , sizes)
    h = Gelu(x)
    i = Gelu<approximate="tanh">(x)
    j0 = SpaceToDepth<blocksize=2>(z)
    j1 = Concat<axis=1>(j0, j0)
    j = ReduceMean<axes=[1,3], keepdims=0>(j1)
}"""

FOCUS = """focus (float[1,3,8,6] x) => (float y) {
    a = Slice(x, s00, ends, axes, steps)
    b = Slice(x, s10, ends, axes, steps)
    c = Slice(x, s01, ends, axes, steps)
    d = Slice(x, s11, ends, axes, steps)
    e = Concat<axis=1>(a, b, c, d)
    y = Conv(e, w)
}"""


def resized() -> onnx.ModelProto:
    weights = {"w": (4, 3, 3, 4), "bias": (6,), "slope": (4, 1, 1)}
    model = with_constants(parsed(RESIZED, weights), shape=[1, 3, 1, 6], sizes=[1, 4, 6, 5])
    factors = numpy_helper.from_array(np.array([1, 1, 2, 1.5], np.float32), "factors")
    model.graph.initializer.append(factors)
    model.opset_import[0].version = 20
    for node in model.graph.node:  # lists are inputs since operator set 18
        if node.op_type.startswith("Reduce"):
            with_constants(
                model, **{f"{node.name}{node.output[0]}_axes": list(node.attribute[0].ints)}
            )
            node.input.append(f"{node.name}{node.output[0]}_axes")
            del node.attribute[0]
    return model


def focus() -> onnx.ModelProto:
    corners = {f"s{row}{column}": [row, column] for row in (0, 1) for column in (0, 1)}
    whole = {"ends": [99, 99], "axes": [2, 3], "steps": [2, 2]}
    return with_constants(parsed(FOCUS, {"w": (5, 12, 1, 1)}), **corners, **whole)


FAMILIES = {
    each.__name__: each for each in (functions, pairs, pools, movement, dense, resized, focus)
}


@pytest.mark.parametrize("family", FAMILIES)
def test_families(family: str, tmp_path: Path) -> None:
    check(FAMILIES[family](), tmp_path)


def test_numbers_of_functions_behind_products(tmp_path: Path) -> None:
    """ONNX Runtime makes them attributes of FusedGemm, and a list of a convolution's."""
    functions = ("LeakyRelu<alpha=0.3>", "Elu<alpha=2.5>", "Celu<alpha=2.5>", "Softsign")
    lines: list[str] = []
    outputs: list[str] = []
    weights: dict[str, tuple[int, ...]] = {"bias": (9,)}
    for n, function in enumerate((*functions, "HardSigmoid<alpha=0.4, beta=0.1>")):
        lines.append(f"p{n} = Gemm<transB=1>(x, w{n}, bias)\n a{n} = {function}(p{n})")
        lines.append(f"q{n} = Conv(z, v{n})\n b{n} = {function}(q{n})")
        outputs += [f"float a{n}", f"float b{n}"]
        weights |= {f"w{n}": (9, 6), f"v{n}": (4, 3, 1, 1)}  # of its own: equal ones would be one
    body = "\n".join(lines)
    text = f"g (float[2,6] x, float[1,3,4,5] z) => ({', '.join(outputs)}) {{ {body} }}"
    check(parsed(text, weights), tmp_path)


def test_pads_behind_a_pixel_are_part_of_the_result(tmp_path: Path) -> None:
    """Rows of such a convolution are no longer rows of its input; and three are no bottleneck."""
    text = """g (float[1,4,6,6] x) => (float y) {
        a = Conv<pads=[0,0,0,1]>(x, wide)
        b = Conv<pads=[1,1,1,1], group=32>(a, depth)
        y = Conv<pads=[0,0,1,0]>(b, narrow)
    }"""
    shapes = {"wide": (32, 4, 1, 1), "depth": (32, 1, 3, 3), "narrow": (4, 32, 1, 1)}
    check(parsed(text, shapes), tmp_path)


def test_what_is_no_number_stays_none(tmp_path: Path) -> None:
    text = (
        "extremes (float[9] x, float[9] y) => (float a, float b) { a = Max(x, y)\n b = Min(x, y) }"
    )
    compiled = Compiled.of(for_c(parsed(text), tmp_path), tmp_path / "c")
    x, y = np.zeros(9, np.float32), np.arange(-4, 5, dtype=np.float32)
    x[::2] = y[::3] = np.nan
    inputs = {"x": x, "y": y}
    _, outputs = compiled.run(inputs)
    for name, expected in answers(tmp_path / "source.onnx", inputs).items():
        np.testing.assert_array_equal(outputs[name], expected)


def test_the_largest_of_infinities_is_one(tmp_path: Path) -> None:
    """In other windows, those over the border and of all, ONNX Runtime has one or the lowest number."""
    text = "g (float[1,1,6,6] x) => (float y) { y = MaxPool<kernel_shape=[2,2], strides=[2,2]>(x) }"
    compiled = Compiled.of(for_c(parsed(text), tmp_path), tmp_path / "c")
    inputs = {"x": np.full((1, 1, 6, 6), -np.inf, np.float32)}
    _, outputs = compiled.run(inputs)
    for name, expected in answers(tmp_path / "source.onnx", inputs).items():
        np.testing.assert_array_equal(outputs[name], expected)


@pytest.mark.parametrize("function", ["HardSwish(a)", "Mul(a, b)"], ids=["hard_swish", "silu"])
def test_an_activation_that_becomes_nodes_is_computed_with_its_convolution(
    function: str, tmp_path: Path
) -> None:
    """ONNX Runtime writes HardSwish as two nodes: its result would be two more values at once."""
    text = f"""g (float[1,8,6,6] x) => (float y) {{
        a = Conv(x, w)
        b = Sigmoid(a)
        c = {function}
        y = Conv(c, w)
    }}"""
    compiled = check(parsed(text, {"w": (8, 8, 1, 1)}), tmp_path)
    assert compiled.exported.memory.arena_bytes == 8 * 6 * 6 * 4


REFUSED = {
    "training_mode": "y = Dropout(x, half, yes)",
    "training": "y, m, v = BatchNormalization<training_mode=1>(x, w, w, w, w)",
    "logarithm": "y = LogSoftmax(x)",
    "sqrt": "y = Sqrt(x)",
    "groups": "y = InstanceNormalization(x, w, w)",
    "LRN": "y = LRN<size=3>(x)",
    "mode edge": 'y = Pad<mode="edge">(x, pads)',
    "keep_aspect_ratio_policy": (
        'z = Resize<mode="nearest", keep_aspect_ratio_policy="not_larger">(x, , , all)\n y = Neg(z)'
    ),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_c_would_compute_otherwise_is_refused(what: str, tmp_path: Path) -> None:
    text = f"g (float[1,3,4,4] x) => (float y) {{ {REFUSED[what]} }}"
    numbers = {"half": 0.5, "all": [1, 3, 8, 8], "pads": [0, 0, 1, 1, 0, 0, 1, 1]}
    model = with_constants(parsed(text, {"w": (3,)}), **numbers)
    model.graph.initializer.append(numpy_helper.from_array(np.array(True), "yes"))
    model.opset_import[0].version = 18
    with pytest.raises(ExportError, match=what):
        export_c(for_c(model, tmp_path), ExportOptions())


def test_some_axes_can_be_resized(tmp_path: Path) -> None:
    text = (
        'g (float[1,3,4,4] x) => (float y) { y = Resize<mode="nearest", axes=[2,3]>(x, , , sizes) }'
    )
    model = with_constants(parsed(text), sizes=[8, 6])
    model.opset_import[0].version = 18
    check(model, tmp_path)


def test_outputs_that_nobody_reads_are_not_made(tmp_path: Path) -> None:
    text = "g (float[1,3,4,4] x) => (float y) { y, places = MaxPool<kernel_shape=[2,2]>(x) }"
    check(parsed(text), tmp_path)


def test_an_old_softmax_takes_all_behind_its_axis(tmp_path: Path) -> None:
    model = parsed("soft (float[2,3,4] x) => (float y) { y = Softmax(x) }")
    model.opset_import[0].version = 11
    check(model, tmp_path)


@st.composite
def convolutions(draw: st.DrawFn) -> onnx.ModelProto:
    """A few convolutions of one input, each with a geometry of its own, some with what follows them."""
    groups = draw(st.sampled_from([1, 2, 4]))
    channels = groups * draw(st.integers(1, 9))
    height, width = draw(st.integers(5, 9)), draw(st.integers(5, 11))
    nodes, weights, outputs = [], {}, []
    for number in range(4):
        apart = draw(st.sampled_from([1, groups, channels]))
        filters = apart * draw(st.integers(1, 40 // apart + 1))
        kernel = [draw(st.integers(1, 3)) for _ in range(2)]
        steps = draw(st.tuples(st.integers(1, 2), st.integers(1, 3)))
        pads = [draw(st.integers(0, size - 1)) for size in (*kernel, *kernel)]
        dilations = draw(st.tuples(st.integers(1, 2), st.integers(1, 2)))
        after = draw(st.sampled_from(["Relu", "Sigmoid", "HardSwish"]))
        attributes = (
            f"group={apart}, pads={pads}, strides={list(steps)}, dilations={list(dilations)}"
        )
        nodes.append(f"c{number} = Conv<{attributes}>(x, w{number}, b{number})")
        nodes.append(f"y{number} = {after}(c{number})")
        weights[f"w{number}"] = (filters, channels // apart, *kernel)
        weights[f"b{number}"] = (filters,)
        outputs.append(f"float y{number}")
    body = "\n".join(nodes)
    text = f"g (float[1,{channels},{height},{width}] x) => ({', '.join(outputs)}) {{ {body} }}"
    return parsed(text, weights)


@examples(2, many=60)
@given(convolutions())
def test_convolutions_of_any_geometry(
    tmp_path_factory: pytest.TempPathFactory, model: onnx.ModelProto
) -> None:
    check(model, tmp_path_factory.mktemp("c"))


GATED = """gated (float[1,3,9,9] x) => (float[1,20,5,5] y) {{
    a = Conv<pads=[1,1,1,1], strides=[2,2]>(x, stem)
    b = Relu(a)
    c = Conv<pads=[1,1,1,1], group={channels}>(b, depth, bias)
    d = Sigmoid(c)
    e = Mul(c, d)
    f = GlobalAveragePool(e)
    g = Conv(f, down)
    h = Relu(g)
    i = Conv(h, up)
    j = Sigmoid(i)
    k = Mul(e, j)
    l = Conv(k, narrow)
    m = Add(l, b)
    y = Conv(m, last)
}}"""


@pytest.mark.parametrize("channels", thinned([24, 22, 30], 1))
def test_channels_that_fill_no_block(channels: int, tmp_path: Path) -> None:
    """A pack fills up blocks of channels; C has none."""
    weights = {
        "stem": (channels, 3, 3, 3),
        "depth": (channels, 1, 3, 3),
        "bias": (channels,),
        "down": (6, channels, 1, 1),
        "up": (channels, 6, 1, 1),
        "narrow": (channels, channels, 1, 1),
        "last": (20, channels, 1, 1),
    }
    compiled = check(parsed(GATED.format(channels=channels), weights), tmp_path)
    exported = compiled.exported
    plane = 5 * 5 * 4
    # Two values of all channels, each aligned to 64, the stem in one, and the gate.
    assert exported.memory.arena_bytes <= 3 * channels * plane + 512
    kept = sum(int(np.prod(shape)) for shape in weights.values()) * 4
    assert exported.weight_bytes == kept


@pytest.mark.skipif(host_target().block == 1, reason="no blocked layout here")
def test_a_graph_in_blocks_is_refused(tiny_pack: Pack, tmp_path: Path) -> None:
    """What lies in blocks is not in the order that shapes say."""
    graph = graph_for_c(tiny_pack.model_path, tmp_path, SourceOptions())
    with pytest.raises(ExportError, match=r"\(Conv\): it is on blocks of channels; give the"):
        export_c(graph, ExportOptions())


@pytest.mark.parametrize("channels", thinned([58, 18, 57, 63], 4))
def test_channels_that_only_fill_are_skipped(channels: int, tmp_path: Path) -> None:
    """Of a convolution that reads the input, which has no blocks, too."""
    model = parsed(
        f"fill (float[1,{channels},6,5] x) => (float y) {{ a = Conv(x, w)\n b = Relu(a)\n"
        f" c = Conv<group={channels}, pads=[1,1,1,1]>(b, d)\n y = Conv(c, v) }}",
        {"w": (channels, channels, 1, 1), "d": (channels, 1, 3, 3), "v": (4, channels, 1, 1)},
    )
    check(model, tmp_path)


def test_a_softmax_along_channels(tmp_path: Path) -> None:
    """A pack turns it; of planes it takes no copy."""
    model = parsed("soft (float[2,5,4,3] x) => (float y) { a = Neg(x)\n y = Softmax<axis=1>(a) }")
    compiled = check(model, tmp_path)
    kernels = [step.kernel for step in compiled.exported.memory.steps]
    assert kernels == ["apply", "softmax"]
