"""Pools with a window: lowered, beside ONNX Runtime."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.devices.cuda.lowering import NotCoveredError
from tests.examples import over
from tests.pipeline.devices.cuda.lowering.lowered import agree
from tests.pipeline.devices.nodes import drawn, numbers, windows

pytestmark = pytest.mark.usefixtures("kernels")


@given(windows(), st.booleans())
@drawn
def test_max_pool(drawn: tuple[tuple[int, int], dict[str, Any]], round_up: bool) -> None:
    size, attributes = drawn
    agree("MaxPool", [numbers(2, 3, *size)], attributes | {"ceil_mode": int(round_up)})


@given(windows(), st.booleans(), st.booleans(), st.sampled_from([17, 19]))
@drawn
def test_average_pool(
    drawn: tuple[tuple[int, int], dict[str, Any]], round_up: bool, padding: bool, opset: int
) -> None:
    size, attributes = drawn
    attributes |= {"ceil_mode": int(round_up), "count_include_pad": int(padding)}
    if opset < 19:
        del attributes["dilations"]
    agree("AveragePool", [numbers(2, 3, *size)], attributes, opset=opset)


def test_one_spatial_axis() -> None:
    agree("MaxPool", [numbers(1, 2, 9)], {"kernel_shape": [3], "strides": [2], "pads": [1, 1]})
    agree("AveragePool", [numbers(1, 2, 9)], {"kernel_shape": [3], "pads": [1, 1]})


@over(
    "x, outputs, reason",
    [
        (numbers(1, 2, 4, 4, 4), 1, "3 spatial axes"),
        (numbers(1, 2, 4, 4), 2, "2 outputs"),
        (np.zeros((1, 1, 4, 4), np.int8), 1, "no kernel of bytes"),
    ],
)
def test_not_covered(x: Any, outputs: int, reason: str) -> None:
    with pytest.raises(NotCoveredError, match=f"MaxPool: {reason}"):
        agree("MaxPool", [x], {"kernel_shape": [2] * (x.ndim - 2)}, outputs=outputs)


def test_nan_is_not_swallowed() -> None:
    """Of pools and reductions ONNX Runtime keeps some NaN and loses others: nothing to agree with."""
    x = numbers(1, 3, 6, 5)
    x[0, 1, 2, 3] = np.nan
    agree("Max", [x, numbers(1, 3, 6, 5, seed=1)])
    agree("Min", [numbers(1, 3, 6, 5, seed=1), x])
