"""The layout of images, in blocks of 8 and of 16 channels: what is blocked, and what it computes."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from onnx import numpy_helper
from onnx.parser import parse_model

from models.compiler.optimising.blocked_weights import BlockFill, WeightOrder
from models.compiler.optimising.layout import Layout
from models.graphs.graph import Graph, ValueTypes
from models.graphs.ranges import INSIDE_BYTES, range_of
from models.graphs.reader import graph_of
from models.graphs.writer import model_of
from models.network.fields import Array
from models.network.names import NCHWC
from tests.examples import examples, over
from tests.oracle.blocked import plain_weight
from tests.oracle.device import ReferenceDevice

BLOCKS = pytest.mark.parametrize("block", [8, 16])
Floats = NDArray[np.float32]
#: Of each text: x goes in, y comes out; of constants, but ``ones``, the shapes.
Shapes = Mapping[str, tuple[int, ...]]


def network(text: str, shapes: Shapes, channels: int = 3) -> Graph:
    ports = f"(float[1,{channels},9,16] x) => (float[a,b,c,d] y)"
    head = f'<ir_version: 8, opset_import: ["" : 17, "com.microsoft" : 1]> net {ports}'
    model = parse_model(f"{head} {{ {text} }}")
    generator = np.random.default_rng(3)
    for name, shape in shapes.items():
        array = generator.standard_normal(shape).astype(np.float32) / 4
        model.graph.initializer.append(numpy_helper.from_array(array, name))
    model.graph.initializer.append(numpy_helper.from_array(np.ones(20, np.float32), "ones"))
    inferred = onnx.shape_inference.infer_shapes(model)
    return graph_of(inferred).with_types(ValueTypes(images(inferred.graph), {}))


def images(graph: onnx.GraphProto) -> dict[str, Array]:
    """Return the images of ``graph``, by name, as shape inference has them."""
    ports = (*graph.input, *graph.value_info, *graph.output)
    sizes = {
        port.name: tuple(dim.dim_value for dim in port.type.tensor_type.shape.dim) for port in ports
    }
    return {name: Array(dtype="float32", shape=shape) for name, shape in sizes.items()}


def computed(graph: Graph, block: int = 1) -> Floats:
    """Return what NumPy computes of drawn inputs, with blocks of ``block`` channels."""
    (port,), (result,) = graph.inputs, graph.outputs
    x = np.random.default_rng(5).standard_normal(graph.array(port).shape).astype(np.float32)
    y = np.empty(graph.array(result).shape, np.float32)
    ReferenceDevice(block).make(model_of(graph).SerializeToString()).bind([x], [y])()
    return y


def operators(graph: Graph) -> Counter[str]:
    return Counter(node.operator.replace(f"{NCHWC}.", "Blocked") for node in graph.nodes)


class Case(NamedTuple):
    """A network; ``blocked``: its operators then, with blocks of 8 and of 16 channels."""

    text: str
    shapes: Shapes
    blocked: str
    channels: int = 3


CASES = {
    "an image, a sum and its activation": Case(
        """a = Conv<pads=[1,1,1,1]>(x, w0)  r = Relu(a)  b = Conv(r, w1)  s = Add(r, b)
        y = LeakyRelu<alpha=0.1>(s)""",
        {"w0": (32, 3, 3, 3), "w1": (32, 32, 1, 1)},
        "BlockedConv BlockedConv BlockedReorderOutput",
    ),
    "a plain image is turned once": Case(
        "a = Conv(x, w0)  b = Conv(x, w1)  y = Add(a, b)",
        {"w0": (16, 16, 1, 1), "w1": (16, 16, 1, 1)},
        "BlockedReorderInput BlockedConv BlockedConv BlockedReorderOutput",
        16,
    ),
    "channels last, in and out": Case(
        "p = Transpose<perm=[0,3,1,2]>(x)  a = Conv(p, w0)  y = Transpose<perm=[0,2,3,1]>(a)",
        {"w0": (20, 16, 1, 1)},
        "BlockedReorderInput BlockedConv BlockedReorderOutput",
    ),
    "each channel by itself, and its gate": Case(
        """a = Conv(x, w0)  d = Conv<group=32,pads=[1,1,1,1]>(a, w1)  g = GlobalAveragePool(d)
        h = Conv(g, w2)  k = Sigmoid(h)  m = Mul(k, d)  y = Conv(m, w3)""",
        {"w0": (32, 3, 1, 1), "w1": (32, 1, 3, 3), "w2": (32, 32, 1, 1), "w3": (5, 32, 1, 1)},
        "BlockedConv BlockedConv BlockedGlobalAveragePool BlockedConv Reshape BlockedConv "
        "BlockedConv BlockedReorderOutput",
    ),
    "one channel to one": Case(
        "a = Conv<pads=[1,1,1,1]>(x, w0)  y = Conv(a, w1)",
        {"w0": (1, 1, 3, 3), "w1": (9, 1, 3, 1)},
        "BlockedConv BlockedReorderOutput BlockedConv BlockedReorderOutput",
        1,
    ),
    "groups of blocks": Case(
        "y = Conv<group=2>(x, w0)",
        {"w0": (32, 16, 1, 1)},
        "BlockedReorderInput BlockedConv BlockedReorderOutput",
        32,
    ),
    "groups that are no blocks": Case("y = Conv<group=2>(x, w0)", {"w0": (32, 4, 1, 1)}, "Conv", 8),
    "channels of which zeros fill blocks": Case(
        "a = Conv(x, w0)  s = Sigmoid(a)  m = Mul(a, s)  y = Conv(m, w1)",
        {"w0": (20, 3, 1, 1), "w1": (4, 20, 1, 1)},
        "BlockedConv Sigmoid Mul BlockedConv BlockedReorderOutput",
    ),
    "an exponential of zeros could be anything": Case(
        "a = Conv(x, w0)  e = Exp(a)  y = Conv(e, w1)",
        {"w0": (20, 3, 1, 1), "w1": (4, 20, 1, 1)},
        "BlockedConv BlockedReorderOutput Exp BlockedReorderInput BlockedConv BlockedReorderOutput",
    ),
    "a gate of channels of which zeros fill blocks": Case(
        """a = Conv(x, w0)  e = Elu(a)  g = GlobalAveragePool(e)  h = Conv(g, w1)  k = Sigmoid(h)
        m = Mul(e, k)  y = Conv(m, w2)""",
        {"w0": (20, 3, 1, 1), "w1": (20, 20, 1, 1), "w2": (4, 20, 1, 1)},
        "BlockedConv Elu BlockedGlobalAveragePool BlockedConv Reshape BlockedConv BlockedConv "
        "BlockedReorderOutput",
    ),
    "a plain convolution makes the copies for one of windows": Case(
        "p = Conv<group=2>(x, w0)  a = Conv(p, w1)  e = Relu(a)  d = Conv(e, w2)  y = Exp(d)",
        {"w0": (18, 3, 1, 1), "w1": (22, 18, 1, 1), "w2": (4, 22, 3, 3)},
        "Conv com.microsoft.FusedConv BlockedReorderInput BlockedConv BlockedReorderOutput Exp",
        6,
    ),
    "for one of pixels it stays plain": Case(
        "p = Conv<group=2>(x, w0)  a = Conv(p, w1)  e = Relu(a)  y = Conv(e, w2)",
        {"w0": (18, 3, 1, 1), "w1": (22, 18, 1, 1), "w2": (4, 22, 1, 1)},
        "Conv com.microsoft.FusedConv Conv",
        6,
    ),
    "a sum between plain images is plain": Case(
        """a = Conv(x, w0)  p = Conv<group=4>(x, w1)  e = Exp(p)  s = Add(x, e)
        u = Conv<group=4>(s, w2)  y = Concat<axis=1>(u, a)""",
        {"w0": (16, 16, 1, 1), "w1": (16, 4, 1, 1), "w2": (16, 4, 1, 1)},
        "BlockedReorderInput BlockedConv Conv Exp Add Conv BlockedReorderOutput Concat",
        16,
    ),
    "channels of which copies fill blocks": Case(
        "a = Conv(x, w0)  e = Exp(a)  d = Conv<group=22>(e, w1)  y = Conv(d, w2)",
        {"w0": (22, 3, 1, 1), "w1": (22, 1, 3, 3), "w2": (4, 22, 1, 1)},
        "BlockedConv Exp BlockedConv BlockedConv BlockedReorderOutput",
    ),
    "parts of channels": Case(
        """a = Conv(x, w0)  p, q = Split<axis=1>(a)  t = Tanh(p)  c = Concat<axis=1>(q, t, a)
        m = MaxPool<kernel_shape=[2,2]>(c)  y = Conv(m, w1)""",
        {"w0": (32, 3, 1, 1), "w1": (8, 64, 1, 1)},
        "BlockedConv Split Tanh Concat BlockedMaxPool BlockedConv BlockedReorderOutput",
    ),
    "a batch norm that no convolution takes": Case(
        "a = Conv(x, w0)  r = Relu(a)  y = BatchNormalization(r, v0, v1, v2, ones)",
        {"w0": (20, 3, 1, 1), "v0": (20,), "v1": (20,), "v2": (20,)},
        "BlockedConv BlockedConv BlockedReorderOutput",
    ),
    "a hard swish": Case(
        """a = Conv(x, w0)  h = HardSigmoid<alpha=0.16666667,beta=0.5>(a)  m = Mul(a, h)
        y = Conv(m, w1)""",
        {"w0": (16, 3, 1, 1), "w1": (16, 16, 1, 1)},
        "BlockedConv BlockedConv BlockedReorderOutput",
    ),
    "a pool that no convolution reads": Case(
        "y = MaxPool<kernel_shape=[2,2]>(x)", {}, "MaxPool", 16
    ),
    "plain convolutions have sums, too": Case(
        "a = Conv<group=2>(x, w0)  s = Add(a, x)  y = Relu(s)",
        {"w0": (8, 4, 1, 1)},
        "com.microsoft.FusedConv",
        8,
    ),
    "limits behind a sum": Case(
        "a = Conv<group=2>(x, w0)  s = Add(a, x)  y = Clip(s, v0, v1)",
        {"w0": (8, 4, 1, 1), "v0": (), "v1": ()},
        "com.microsoft.FusedConv",
        8,
    ),
    "what two nodes read is no part of a convolution": Case(
        "a = Conv(x, w0)  r = Relu(a)  y = Add(a, r)",
        {"w0": (16, 3, 1, 1)},
        "BlockedConv Relu Add BlockedReorderOutput",
    ),
}


@BLOCKS
@over("name", CASES)
def test_it_computes_the_same_in_blocks(block: int, name: str) -> None:
    case = CASES[name]
    graph = network(case.text, case.shapes, case.channels)
    blocked = Layout(graph, block).run()
    np.testing.assert_allclose(computed(blocked, block), computed(graph), rtol=1e-4, atol=1e-5)
    assert operators(blocked) == Counter(case.blocked.split())
    ports = (*blocked.inputs, *blocked.outputs)
    assert [*blocked.values] == [*dict.fromkeys((*ports, *blocked.makers))]
    sizes = {name: array.shape for name, array in blocked.values.items()}
    assert all(shape[1] % block == 0 for name, shape in sizes.items() if "/blocked" in name)


@pytest.mark.parametrize("fill", BlockFill)
@over("order", [(24, 16, True), (24, 5, False), (16, 8, True), (8, 1, False)])
def test_weights_lie_as_kernels_read_them(
    fill: BlockFill, order: tuple[int, int, bool], tmp_path: Path
) -> None:
    features, depth, of_inputs = order
    block = 8
    array = np.random.default_rng(1).standard_normal((features - 3, depth, 3, 2)).astype(np.float32)
    if of_inputs:
        array = array[:, : depth - 2]
    layout = Layout(replace(network("y = Relu(x)", {}), constants={"w": array}), block, tmp_path)
    name = layout.weights.weights("w", WeightOrder(features, depth, of_inputs, fill, fill))
    written = layout.constants[name]
    is_large = written.nbytes > INSIDE_BYTES
    assert (range_of(written) is not None) == is_large
    plain = plain_weight(np.array(written), block)
    assert plain.shape == (features, depth, 3, 2)
    np.testing.assert_array_equal(plain[: features - 3, : array.shape[1]], array)
    rows, inputs = plain[features - 3 :, : array.shape[1]], plain[: features - 3, array.shape[1] :]
    if fill is BlockFill.ZEROS:
        assert not rows.any()
        assert not inputs.any()
    else:
        np.testing.assert_array_equal(rows, array[:3])
        np.testing.assert_array_equal(inputs, array[:, : inputs.shape[1]] * np.float32(2**-80))


def test_weights_that_two_layers_read_are_written_once() -> None:
    text = "a = Conv(x, w0)  r = Relu(a)  y = Conv(r, w0)"
    blocked = Layout(network(text, {"w0": (16, 16, 1, 1)}, 16), 8).run()
    assert len(blocked.constants) == 1


UNARY = ("Relu", "Sigmoid", "Exp", "LeakyRelu", "HardSigmoid", "Elu", "Softplus")
BINARY = ("Add", "Mul", "Sub", "Max")


@st.composite
def networks(draw: st.DrawFn) -> Graph:
    """Draw convolutions, operators on elements and concatenations, each of any values before it."""
    widths = st.sampled_from([8, 16, 20, 22, 32])
    channels = {"v0": draw(widths)}
    nodes, shapes = ["v0 = Conv(x, w0)"], {"w0": (channels["v0"], 3, 1, 1)}
    for index in range(1, draw(st.integers(3, 9))):
        x = draw(st.sampled_from(sorted(channels)))
        same = sorted(name for name in channels if channels[name] == channels[x])
        other, name, kind = draw(st.sampled_from(same)), f"v{index}", draw(st.integers(0, 6))
        channels[name] = channels[x]
        if kind == 0:
            channels[name] = draw(widths)
            shapes[f"w{index}"] = (channels[name], channels[x], 1, 1)
            nodes.append(f"{name} = Conv({x}, w{index})")
        elif kind == 1:
            shapes[f"w{index}"] = (channels[x], 1, 3, 3)
            nodes.append(f"{name} = Conv<group={channels[x]},pads=[1,1,1,1]>({x}, w{index})")
        elif kind == 2:
            nodes.append(f"{name} = {draw(st.sampled_from(UNARY))}({x})")
        elif kind == 3:
            nodes.append(f"{name} = {draw(st.sampled_from(BINARY))}({x}, {other})")
        elif kind == 4:
            nodes.append(f"{name} = MaxPool<kernel_shape=[3,3],pads=[1,1,1,1]>({x})")
        elif kind == 5:
            shapes[f"w{index}"] = (channels[x], channels[x], 1, 1)
            gate = f"g{index} = GlobalAveragePool({x})  c{index} = Conv(g{index}, w{index})"
            nodes.append(f"{gate}  {name} = Mul(c{index}, {x})")
        else:
            channels[name] = channels[x] + channels[other]
            nodes.append(f"{name} = Concat<axis=1>({x}, {other})")
    read = " ".join(text.partition("(")[2] for text in nodes)
    ends = ", ".join(name for name in channels if f"{name})" not in read and f"{name}," not in read)
    return network(" ".join([*nodes, f"y = Concat<axis=1>({ends})"]), shapes)


@given(graph=networks(), block=st.sampled_from([8, 16]))
@examples(few=8, many=400)
def test_drawn_networks_are_the_same_in_blocks(graph: Graph, block: int) -> None:
    expected, got = computed(graph), computed(Layout(graph, block).run(), block)
    scale = np.abs(expected[np.isfinite(expected)]).max(initial=1)
    np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-5 * scale)
