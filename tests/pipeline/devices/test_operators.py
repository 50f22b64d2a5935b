"""Operators of the reference device beside ONNX Runtime: standard ones, and fused ones."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.examples import over
from tests.pipeline.devices.nodes import (
    ACTIVATIONS,
    MICROSOFT,
    Array,
    agree,
    drawn,
    ints,
    numbers,
    windows,
)

X = numbers(2, 6, 5, 7)
POSITIVE = np.abs(numbers(2, 3, 4)) + np.float32(0.1)
WHOLE = np.array([[7, -7, 6], [1, -1, 0]], np.int64)


def scalar(value: float) -> Array:
    return np.array(value, np.float32)


Case = tuple[str, Sequence[Array | None], Mapping[str, Any], int]


def case(
    operator: str,
    inputs: Sequence[Array | None],
    attributes: Mapping[str, Any] | None = None,
    opset: int = 17,
) -> Case:
    return operator, inputs, attributes or {}, opset


CASES = [
    *[
        case(name, [X])
        for name in (
            *("Relu", "LeakyRelu", "Sigmoid", "HardSigmoid", "Tanh", "Elu", "Softplus", "Exp"),
            *(
                "HardSwish",
                "Neg",
                "Selu",
                "Softsign",
                "ThresholdedRelu",
                "Identity",
                "Flatten",
                "Transpose",
                "GlobalAveragePool",
                "GlobalMaxPool",
            ),
        )
    ],
    case("LeakyRelu", [X], {"alpha": 0.3}),
    case("HardSigmoid", [X], {"alpha": 0.3, "beta": 0.1}),
    case("Elu", [X], {"alpha": 2.0}),
    case("Celu", [X], {"alpha": 2.0}),
    case("Sqrt", [POSITIVE]),
    case("Clip", [X, scalar(-0.5), scalar(0.7)]),
    case("Clip", [X, None, scalar(0.7)]),
    case("Clip", [X, scalar(0)]),
    case("Clip", [X], {"min": 0.0, "max": 6.0}, 6),
    *[case(name, [X, numbers(6, 1, 7)]) for name in ("Add", "Sub", "Mul", "Div", "Max", "Min")],
    case("Mod", [X, numbers(6, 1, 7)], {"fmod": 1}),
    case("Mod", [WHOLE, ints(2, 3, -4)]),
    case("Sum", [X, numbers(6, 5, 7), numbers(7)]),
    case("Div", [WHOLE, ints(2, 3, -4)]),
    case("Sub", [WHOLE, ints(2)]),
    case("Pow", [POSITIVE, numbers(3, 1)]),
    case("Concat", [X, numbers(2, 1, 5, 7)], {"axis": 1}),
    case("Concat", [X, numbers(2, 6, 5, 2)], {"axis": -1}),
    case("Slice", [X, ints(1, -3), ints(100, -1), ints(1, 3)]),
    case("Slice", [X, ints(-1, 4), ints(-100, 0), ints(1, 2), ints(-2, -1)]),
    case("Slice", [X, ints(0, 1), ints(1, 3)]),
    case("Slice", [X], {"starts": [1, -2], "ends": [3, 9], "axes": [1, 3]}, 9),
    case("Reshape", [X, ints(0, -1, 7)]),
    case("Reshape", [X, ints(10, 6, 7)]),
    case("Flatten", [X], {"axis": 2}),
    case("Flatten", [X], {"axis": -1}),
    case("Flatten", [X], {"axis": 0}),
    case("Squeeze", [numbers(1, 3, 1, 4), ints(0, -2)]),
    case("Squeeze", [numbers(1, 3, 1, 4)]),
    case("Squeeze", [numbers(1, 3, 1, 4)], {"axes": [2]}, 11),
    case("Unsqueeze", [numbers(3, 4), ints(0, -1)]),
    case("Unsqueeze", [numbers(3, 4)], {"axes": [0, 3]}, 11),
    case("Transpose", [X], {"perm": [0, 2, 3, 1]}),
    case("Gemm", [numbers(2, 5), numbers(5, 4), numbers(4)], {"alpha": 0.5, "beta": 2.0}),
    case("Gemm", [numbers(5, 2), numbers(4, 5), numbers(2, 1)], {"transA": 1, "transB": 1}),
    case("Gemm", [numbers(2, 5), numbers(5, 4)]),
    case("MatMul", [numbers(3, 2, 5), numbers(5, 4)]),
    case("MatMul", [numbers(5), numbers(2, 5, 4)]),
    *[case("Softmax", [X * 9], {"axis": axis}, opset) for axis in (1, -1) for opset in (11, 17)],
    case("Softmax", [X]),
    case("Softmax", [X], {}, 11),
    case("BatchNormalization", [X, *(numbers(6, seed=i) ** 2 for i in range(4))]),
    case("BatchNormalization", [X, *(numbers(6) ** 2 for _ in range(4))], {"epsilon": 0.1}, 8),
    case("LRN", [X], {"size": 3, "alpha": 0.2, "beta": 0.6, "bias": 1.5}),
    case("LRN", [X], {"size": 5}),
    case("Pad", [X, ints(0, 1, 2, 0, 1, 0, 0, 3)]),
    case("Pad", [X, ints(0, 0, -1, 2, 0, 0, -1, -3), scalar(2.5)]),
    case("Pad", [X, ints(1, 2), None, ints(3)], {}, 18),
    case("Pad", [X], {"pads": [0, 0, 1, 1, 0, 0, 2, 2], "value": 1.5}, 9),
    case("ReduceMean", [X], {"axes": [2, 3]}),
    case("ReduceMean", [X, ints(-1, 1)], {"keepdims": 0}, 18),
    case("ReduceMean", [X], {"keepdims": 0}, 18),
    case("ReduceMean", [X], {"noop_with_empty_axes": 1}, 18),
    case("Cast", [X * 5], {"to": 7}),
    case("Cast", [WHOLE], {"to": 1}),
    case("Cast", [X], {"to": 11}),
    case("MaxPool", [np.arange(24, dtype=np.int8).reshape(1, 1, 4, 6)], {"kernel_shape": [2, 3]}),
    case("MaxPool", [numbers(1, 2, 9)], {"kernel_shape": [3], "strides": [2]}),
    case("Conv", [numbers(1, 2, 9), numbers(3, 2, 3)], {"pads": [1, 1]}),
    case("Conv", [numbers(1, 2, 4, 5, 6), numbers(3, 2, 2, 1, 3), numbers(3)]),
]


@pytest.mark.parametrize(
    ("operator", "inputs", "attributes", "opset"),
    [pytest.param(*values, id=f"{index}-{values[0]}") for index, values in enumerate(CASES)],
)
def test_operator(
    operator: str, inputs: Sequence[Array | None], attributes: Mapping[str, Any], opset: int
) -> None:
    agree(operator, inputs, attributes=attributes, opset=opset)


@over(
    "inputs, attributes, opset, outputs",
    [
        ([X, ints(1, 2, 3)], {"axis": 1}, 17, 3),
        ([X], {"axis": 1}, 17, 2),
        ([X], {"axis": -1, "split": [3, 4]}, 11, 2),
        ([X], {"axis": 3, "num_outputs": 2}, 18, 2),
    ],
)
def test_split(
    inputs: list[Array | None], attributes: dict[str, Any], opset: int, outputs: int
) -> None:
    agree("Split", inputs, attributes=attributes, opset=opset, outputs=outputs)


@over("coordinates", ["asymmetric", "half_pixel"])
@over("rounding", ["floor", "ceil", "round_prefer_floor", "round_prefer_ceil"])
@over("factors", [(2.0, 3.0), (1.5, 0.75)])
def test_resize(coordinates: str, rounding: str, factors: tuple[float, float]) -> None:
    attributes = {
        "mode": "nearest",
        "coordinate_transformation_mode": coordinates,
        "nearest_mode": rounding,
    }
    scales = np.array([1, 1, *factors], np.float32)
    agree("Resize", [X, None, scales], attributes=attributes)
    if factors[0] == 2:
        agree("Resize", [X, scales], attributes={"mode": "nearest"}, opset=10)
        agree("Resize", [X, None, None, ints(2, 6, 10, 21)], attributes=attributes)


@given(windows(), st.integers(1, 3), st.integers(1, 4), st.integers(1, 3), st.booleans())
@drawn
def test_conv(
    drawn: tuple[tuple[int, int], dict[str, Any]], group: int, depth: int, rows: int, bias: bool
) -> None:
    size, attributes = drawn
    weight = numbers(group * rows, depth, *attributes["kernel_shape"])
    vector = numbers(group * rows) if bias else None
    inputs = [numbers(2, group * depth, *size), weight, vector]
    agree("Conv", inputs, attributes=attributes | {"group": group}, weights=True)


@given(windows(), st.booleans(), st.booleans(), st.sampled_from([17, 19]))
@drawn
def test_average_pool(
    drawn: tuple[tuple[int, int], dict[str, Any]], round_up: bool, padding: bool, opset: int
) -> None:
    size, attributes = drawn
    attributes |= {"ceil_mode": int(round_up), "count_include_pad": int(padding)}
    if opset < 19:
        del attributes["dilations"]
    agree("AveragePool", [numbers(2, 3, *size)], attributes=attributes, opset=opset)


@given(windows(), st.booleans())
@drawn
def test_max_pool(drawn: tuple[tuple[int, int], dict[str, Any]], round_up: bool) -> None:
    size, attributes = drawn
    inputs = [numbers(2, 3, *size)]
    agree("MaxPool", inputs, attributes=attributes | {"ceil_mode": int(round_up)})


@pytest.mark.parametrize("alpha", [1.0, 1.702])
def test_quick_gelu(alpha: float) -> None:
    agree("QuickGelu", [X], attributes={"alpha": alpha}, domain=MICROSOFT)


@over("attributes", ACTIVATIONS)
@over("with_sum", [False, True])
def test_fused_conv(attributes: dict[str, Any], with_sum: bool) -> None:
    inputs = [X, numbers(4, 6, 3, 3), numbers(4), *([numbers(2, 4, 3, 5)] if with_sum else [])]
    agree("FusedConv", inputs, attributes=attributes, domain=MICROSOFT, weights=True)


@over(
    "attributes",
    [
        {"activation": "Relu"},
        {"activation": "LeakyRelu", "activation_alpha": 0.3, "alpha": 0.5, "beta": 2.0},
        {"activation": "Sigmoid", "transB": 1},
    ],
)
def test_fused_gemm(attributes: dict[str, Any]) -> None:
    shape = (4, 5) if "transB" in attributes else (5, 4)
    inputs = [numbers(3, 5), numbers(*shape), numbers(4)]
    agree("FusedGemm", inputs, attributes=attributes, domain=MICROSOFT)
