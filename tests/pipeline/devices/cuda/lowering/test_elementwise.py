"""Activations, arithmetic with broadcasting: lowered, beside ONNX Runtime."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from models.network.activations import Activation
from models.network.node import NamedTensor
from models.network.operators.reading import Combine, Map, Operator
from pipeline.devices.cuda.call import DevicePointer
from pipeline.devices.cuda.operators import launches
from pipeline.devices.cuda.scope import ConvolutionSettings, Scope
from pipeline.devices.interface.cuda import MAX_RANK
from tests.examples import over
from tests.pipeline.devices.cuda.lowering.graphs import graph, node
from tests.pipeline.devices.cuda.lowering.lowered import Array, agree, same
from tests.pipeline.devices.cuda.space import placed, some_kernels
from tests.pipeline.devices.nodes import MICROSOFT, drawn, numbers

pytestmark = pytest.mark.usefixtures("kernels")

X = numbers(2, 6, 5, 7) * 4
POSITIVE = np.abs(X) + np.float32(0.1)


@over(
    "operator, attributes",
    [
        *[
            (name, {})
            for name in ("Abs", "Ceil", "Celu", "Elu", "Erf", "Exp", "Floor", "HardSigmoid")
        ],
        *[(name, {}) for name in ("HardSwish", "LeakyRelu", "Neg", "Reciprocal", "Relu", "Round")],
        *[(name, {}) for name in ("Sigmoid", "Sign", "Softplus", "Softsign", "Tanh")],
        *[(name, {}) for name in ("Selu", "ThresholdedRelu")],
        ("Elu", {"alpha": 0.3}),
        ("Celu", {"alpha": 0.3}),
        ("Selu", {"alpha": 0.3, "gamma": 2.0}),
        ("ThresholdedRelu", {"alpha": -0.3}),
        ("HardSigmoid", {"alpha": 0.4, "beta": 0.3}),
        ("LeakyRelu", {"alpha": 0.2}),
    ],
)
def test_of_one_tensor(operator: str, attributes: dict[str, Any]) -> None:
    assert len(agree(operator, [X], attributes).calls) == 1


@pytest.mark.parametrize("operator", ["Log", "Sqrt"])
def test_of_positive_numbers(operator: str) -> None:
    agree(operator, [POSITIVE])


def test_a_mish_of_minus_x() -> None:
    nodes = [
        node("Sigmoid", "x0", "s"),
        node("Mul", "s s", "t"),
        node("HardSigmoid", "t", "h", alpha=0.5, beta=0.5),
        node("Div", "x0 h", "d"),
        node("Sub", "x0 d", "y0"),
    ]
    program = same(graph(nodes, [X]), [X])
    assert [call.function for call in program.calls] == ["activate_elements"]


def test_of_newer_opsets() -> None:
    agree("Mish", [X], opset=18)
    agree("Gelu", [X], opset=20)
    agree("Gelu", [X], {"approximate": "tanh"}, opset=20)
    agree("Gelu", [X], domain=MICROSOFT)
    agree("QuickGelu", [X], {"alpha": 1.0}, domain=MICROSOFT)


def test_clip() -> None:
    low, high = np.array(-0.5, np.float32), np.array(1.5, np.float32)
    for inputs in ([X, low, high], [X, low], [X, None, high], [X]):
        agree("Clip", inputs)
    agree("Clip", [X], {"min": -1.0, "max": 2.0}, opset=6)


@st.composite
def broadcasts(draw: st.DrawFn) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Draw two shapes that broadcast."""
    shape = draw(st.lists(st.integers(1, 4), min_size=1, max_size=MAX_RANK))
    parts = []
    for _ in range(2):
        kept = [n if draw(st.booleans()) else 1 for n in shape]
        parts.append(tuple(kept[draw(st.integers(0, len(shape))) :]))
    return parts[0], parts[1]


@given(broadcasts(), st.sampled_from(["Add", "Sub", "Mul", "Div", "Max", "Min", "Pow"]))
@drawn
def test_broadcast(shapes: tuple[tuple[int, ...], tuple[int, ...]], operator: str) -> None:
    a, b = (np.abs(numbers(*shape, seed=i)) + np.float32(0.5) for i, shape in enumerate(shapes))
    agree(operator, [a, b], weights=True)


@over(
    "shape, function",
    [
        ((2, 6, 5, 7), "binary"),
        ((6, 1, 1), "binary_periodic"),
        ((2, 6, 1, 1), "binary_periodic"),
        ((7,), "binary_periodic"),
        ((), "binary_periodic"),
        ((2, 1, 5, 1), "binary_broadcast"),
    ],
)
@over("operator", ["Sub", "Div"])
def test_common_shapes_have_a_fast_kernel(
    shape: tuple[int, ...], function: str, operator: str
) -> None:
    other = np.abs(numbers(*shape, seed=1)) + np.float32(0.5)
    for inputs in ([X, other], [other, POSITIVE]):
        assert [call.function for call in agree(operator, inputs).calls] == [function]


def test_more_than_two_operands() -> None:
    others = [numbers(6, 5, 7), numbers(1), X]
    assert len(agree("Sum", [X, *others]).calls) == 3
    agree("Max", [X, *others])
    agree("Sum", [X])


@over("shape", [(2, 6, 5, 7), (6, 1, 1), (2, 1, 5, 1)])
def test_modulo(shape: tuple[int, ...]) -> None:
    for inputs in ([X, numbers(*shape, seed=1)], [numbers(*shape, seed=1), X]):
        agree("Mod", inputs, {"fmod": 1})


def test_prelu() -> None:
    agree("PRelu", [X, numbers(6, 1, 1)])
    agree("PRelu", [X, numbers(1)])


@pytest.mark.parametrize("left", [True, False])
def test_a_result_may_lie_where_an_input_of_its_shape_lies(left: bool) -> None:
    x, z = POSITIVE.copy(), np.abs(numbers(6, 1, 1)) + np.float32(0.5)
    full, part = (
        NamedTensor(name=name, dtype="float32", shape=array.shape)
        for name, array in (("x", x), ("z", z))
    )
    pair = (part, full) if left else (full, part)
    wanted = z / x if left else x / z
    _run(Combine(kind="divide", operands=pair, y=full), x, z)
    np.testing.assert_allclose(x, wanted, rtol=1e-6)
    _run(Combine(kind="add", operands=(full, full), y=full), x, z)
    np.testing.assert_allclose(x, 2 * wanted, rtol=1e-6)
    _run(Map(function=Activation("negative"), x=full, y=full), x, z)
    np.testing.assert_allclose(x, -2 * wanted, rtol=1e-6)


def _run(operator: Operator, *arrays: Array) -> None:
    held = [placed(array) for array in arrays]
    scope = Scope(
        ConvolutionSettings(), {"x": DevicePointer("input"), "z": DevicePointer("input", 1)}
    )
    for call in launches(operator, scope):
        some_kernels().launch(call, lambda pointer: int(held[pointer.index].ctypes.data))
    for array, copy in zip(arrays, held, strict=True):
        array[...] = copy
