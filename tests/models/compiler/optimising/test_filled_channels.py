"""Channels that four does not divide: filled up where no result shows it, and interpolated as planes."""

import re
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import onnx
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from numpy.typing import NDArray
from onnx import numpy_helper
from onnx.parser import parse_model

from models.compiler import CompileOptions
from models.network.names import NCHWC
from models.packs.pack import Pack
from models.packs.target import host_target
from models.progress import silent
from pipeline.checking.checker import checker
from tests.examples import examples
from tests.models.nets import answers, written
from tests.models.streamed import compiled, same, streamed

Floats = NDArray[np.float32]

# Of every text: x goes in, y comes out; weights by name and shape.
NETWORKS = {
    "residual, of each channel by itself": (
        """a = Conv<pads=[1,1,1,1]>(x, w0, b0)  r = Relu(a)
        d = Conv<pads=[1,1,1,1], group=22>(r, w1, b1)  p = Conv(d, w2, b2)  s = Add(p, r)
        m = MaxPool<kernel_shape=[2,2], strides=[2,2]>(s)  y = Conv(m, w3, b3)""",
        {"w0": (22, 3, 3, 3), "w1": (22, 1, 3, 3), "w2": (22, 22, 1, 1), "w3": (7, 22, 1, 1)},
    ),
    "gate": (
        """a = Conv(x, w0, b0)  h = HardSwish(a)  d = Conv<pads=[2,2,2,2], group=74>(h, w1, b1)
        g = GlobalAveragePool(d)  f = Conv(g, w2, b2)  e = Relu(f)  i = Conv(e, w3, b3)
        k = HardSigmoid(i)  n = Mul(d, k)  y = Conv(n, w4, b4)""",
        {
            "w0": (74, 3, 1, 1),
            "w1": (74, 1, 5, 5),
            "w2": (18, 74, 1, 1),
            "w3": (74, 18, 1, 1),
            "w4": (24, 74, 1, 1),
        },
    ),
    "no number of zero": (
        "a = Conv(x, w0, b0)  f = Log(a)  d = Conv<group=18>(f, w1, b1)  y = Conv(d, w2, b2)",
        {"w0": (18, 3, 1, 1), "w1": (18, 1, 3, 3), "w2": (4, 18, 1, 1)},
    ),
    "read by all": (
        """a = Conv(x, w0, b0)  s = Sigmoid(a)  y = Conv<pads=[1,1,1,1]>(s, w1, b1)""",
        {"w0": (50, 3, 3, 3), "w1": (33, 50, 3, 3)},
    ),
}


def network(text: str, shapes: Mapping[str, tuple[int, ...]]) -> onnx.ModelProto:
    head = (
        '<ir_version: 8, opset_import: ["" : 17]> net (float[1,3,24,20] x) => (float[a,b,c,d] y) {'
    )
    model = parse_model(f"{head}{text}}}")
    generator = np.random.default_rng(7)
    biases = {f"b{name[1:]}": shape[:1] for name, shape in shapes.items()}
    for name, shape in {**shapes, **biases}.items():
        array = generator.standard_normal(shape).astype(np.float32) / 4
        model.graph.initializer.append(numpy_helper.from_array(array, name))
    return onnx.shape_inference.infer_shapes(model)


def operators(pack: Pack) -> list[onnx.NodeProto]:
    return [node for data in pack.graphs for node in onnx.load_from_string(data).graph.node]


@pytest.mark.parametrize("name", NETWORKS)
def test_all_convolutions_are_blocked(name: str, tmp_path: Path) -> None:
    source = written(network(*NETWORKS[name]), tmp_path / "m.onnx")
    pack = compiled(source, tmp_path)
    kinds = {node.domain for node in operators(pack) if "Conv" in node.op_type}
    assert kinds == {NCHWC} or host_target().block == 1
    inputs = {"x": np.random.default_rng(5).standard_normal((1, 3, 24, 20)).astype(np.float32)}
    same(streamed(pack, inputs), answers(source, inputs), 1e-5, 1e-5)


@pytest.mark.parametrize(
    "text",
    [
        "a = Conv(x, w0, b0)  y = Conv<group=18>(a, w1, b1)",
        "a = Conv(x, w0, b0)  e = Softmax<axis=1>(a)  d = Conv<group=18>(e, w1)  y = Conv(d, w2, b2)",
    ],
    ids=["an output", "all channels at once"],
)
def test_what_somebody_sees_is_not_filled(text: str, tmp_path: Path) -> None:
    shapes = {"w0": (18, 3, 1, 1), "w1": (18, 1, 3, 3), "w2": (4, 18, 1, 1)}
    source = written(network(text, shapes), tmp_path / "m.onnx")
    pack = compiled(source, tmp_path)
    assert any(node.domain != NCHWC for node in operators(pack) if "Conv" in node.op_type)
    inputs = {"x": np.random.default_rng(5).random((1, 3, 24, 20), np.float32)}
    same(streamed(pack, inputs), answers(source, inputs), 1e-5, 1e-5)


@pytest.mark.parametrize("rounding", ["Sign", "Round", "Floor", "Ceil"])
def test_sums_of_integers_stay_zero(rounding: str, tmp_path: Path) -> None:
    """A binary network: weights of 1 and -1, whose sums are often zero, of which Sign makes zero."""
    text = f"a = Conv(x, w0, b0)  r = {rounding}(a)  s = Conv<pads=[1,1,1,1]>(r, w1)  y = Sign(s)"
    model = network(text, {"w0": (58, 3, 1, 1), "w1": (32, 58, 3, 3)})
    for tensor in model.graph.initializer:
        if tensor.name == "w1":
            signs = np.sign(numpy_helper.to_array(tensor))
            tensor.CopyFrom(numpy_helper.from_array(signs, "w1"))
    source = written(model, tmp_path / "m.onnx")
    inputs = {"x": np.random.default_rng(5).standard_normal((1, 3, 24, 20)).astype(np.float32)}
    expected = answers(source, inputs)
    assert (expected["y"] == 0).any()
    same(streamed(compiled(source, tmp_path), inputs), expected, 0, 0)


# What of zeros, or of infinities, no number comes: x to y, with numbers by name.
OPERATORS = (
    "t = Sub(x, one)  y = Sqrt(t)",
    "t = Mul(x, twenty)  u = Sub(hundred, t)  y = Exp(u)",
    "t = Exp(x)  u = Exp(t)  y = Exp(u)",
    "y = Log(x)",
    "y = Reciprocal(x)",
    "y = Div(one, x)",
    "y = Div(x, zero)",
    "y = Pow(x, minus)",
    "t = Log(x)  u = Reciprocal(t)  y = Sigmoid(u)",
    "t = Sub(x, one)  u = Sqrt(t)  y = Max(u, one)",
    "y = Erf(x)",
    "y = Softplus(x)",
    "t = Neg(x)  y = Relu(t)",
)
SCALARS = {"zero": 0.0, "one": 1.0, "minus": -1.5, "twenty": 20.0, "hundred": 100.0}
#: Between convolutions, of {c} channels: a to b.
BETWEEN = (
    "b = Conv<pads=[1,1,1,1]>(a, full, bias)",
    "b = Conv<pads=[1,1,1,1], group={c}>(a, each, bias)",
    "s = Conv(x, first)  b = Add(a, s)",
    "b = AveragePool<kernel_shape=[3,3], pads=[1,1,1,1]>(a)",
)


def renamed(text: str, stage: int, source: str, result: str) -> str:
    """Return nodes with names of their own; what they read and make have these names."""
    names = {"x": source, "y": result} | {name: f"{name}{stage}" for name in "tus"}
    return re.sub(r"\b[xytus]\b", partial(_name_of, names), text)


def _name_of(names: Mapping[str, str], match: re.Match[str]) -> str:
    return names[match[0]]


class Drawn(NamedTuple):
    """A convolution to ``channels``; ``stages``: operators, and what is behind them; the ``last`` ones."""

    channels: int
    stages: list[tuple[str, str]]
    last: str
    bias: float = 0.0

    def model(self) -> onnx.ModelProto:
        nodes, source = ["v0 = Conv(x, first, bias)"], "v0"
        for stage, (operators, between) in enumerate(self.stages):
            nodes.append(renamed(operators, stage, source, f"a{stage}"))
            source = f"v{stage + 1}"
            names = {"a": f"a{stage}", "b": source, "s": f"s{stage}"}
            text = between.replace("{c}", str(self.channels))
            nodes.append(re.sub(r"\b[abs]\b", partial(_name_of, names), text))
        nodes += [renamed(self.last, 9, source, "last"), "y = Conv(last, end)"]
        ports = "(float[1,16,9,9] x) => (float[1,4,9,9] y)"
        head = f'<ir_version: 8, opset_import: ["" : 17]> net {ports}'
        model = parse_model(f"{head} {{ {'  '.join(nodes)} }}")
        arrays = {name: np.array(scalar, np.float32) for name, scalar in SCALARS.items()}
        arrays["bias"] = np.full(self.channels, self.bias, np.float32)
        generator, channels = np.random.default_rng(3), self.channels
        shapes = {"first": (channels, 16, 1, 1), "full": (channels, channels, 3, 3)}
        shapes |= {"each": (channels, 1, 3, 3), "end": (4, channels, 1, 1)}
        for name, shape in shapes.items():
            arrays[name] = (generator.standard_normal(shape) / 8).astype(np.float32)
        for name, array in arrays.items():
            model.graph.initializer.append(numpy_helper.from_array(array, name))
        return onnx.shape_inference.infer_shapes(model)


OPERATOR = st.sampled_from(OPERATORS)
DRAWN = st.builds(
    Drawn,
    st.integers(57, 63),
    st.lists(st.tuples(OPERATOR, st.sampled_from(BETWEEN)), max_size=2),
    OPERATOR,
    st.sampled_from([0.0, 5.0]),
)


def kinds(array: Floats) -> Floats:
    """Return infinities and NaN as they are, and 0 for numbers."""
    return np.where(np.isfinite(array), np.float32(0), array)


@given(drawn=DRAWN, special=st.sampled_from([None, np.inf, -np.inf, np.nan]))
@example(drawn=Drawn(58, [], OPERATORS[0], 5.0), special=None)
@example(drawn=Drawn(63, [], OPERATORS[1], 5.0), special=None)
@example(drawn=Drawn(57, [], "y = Erf(x)"), special=np.inf)
@example(drawn=Drawn(61, [("y = Div(one, x)", BETWEEN[1])], "y = Erf(x)"), special=np.nan)
@examples(few=2, many=300)
def test_infinities_and_nan_are_where_onnx_runtime_has_them(
    drawn: Drawn, special: float | None, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Whatever operators make of channels that fill, and of numbers of the network's own."""
    folder = tmp_path_factory.mktemp("drawn")
    source = written(drawn.model(), folder / "m.onnx")
    inputs = {"x": np.random.default_rng(5).standard_normal((1, 16, 9, 9)).astype(np.float32)}
    if special is not None:
        inputs["x"][0, 3, 4, 4] = special
    expected, result = answers(source, inputs), streamed(compiled(source, folder), inputs)
    np.testing.assert_array_equal(kinds(result["y"]), kinds(expected["y"]))


def test_where_all_is_nan_it_compiles(tmp_path: Path) -> None:
    text = "a = Conv(x, w0, b0)  n = Sqrt(m)  m = Sub(a, far)  y = Conv(n, w1, b1)"
    model = network(text, {"w0": (58, 3, 1, 1), "w1": (6, 58, 1, 1)})
    model.graph.initializer.append(numpy_helper.from_array(np.array(1e3, np.float32), "far"))
    source, notes = written(model, tmp_path / "m.onnx"), list[str]()
    accept = checker(source, host_target(), notes.append, silent, depth="quick")
    compiled(source, tmp_path, CompileOptions(accept=accept))
    assert [note for note in notes if "NaN" in note]


@pytest.mark.parametrize("behind", ["y = Concat<axis=1>(u, u)", "y = Sigmoid(u)"])
def test_an_interpolated_channel_takes_the_memory_of_one(behind: str, tmp_path: Path) -> None:
    text = f"""a = Conv(x, w0, b0)  f = Constant<value_floats=[1.0,1.0,4.0,4.0]>()
        u = Resize<mode="linear">(a, , f)  {behind}"""
    source = written(network(text, {"w0": (1, 3, 3, 3)}), tmp_path / "m.onnx")
    pack = compiled(source, tmp_path)
    assert "Upsample" not in {node.op_type for node in operators(pack)}
    largest = max(value.n_bytes for value in pack.manifest.values)
    assert largest <= 2 * 4 * 88 * 72
    inputs = {"x": np.random.default_rng(5).standard_normal((1, 3, 24, 20)).astype(np.float32)}
    same(streamed(pack, inputs), answers(source, inputs), 1e-5, 1e-5)
