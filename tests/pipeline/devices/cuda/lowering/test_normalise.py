"""Norms, softmax and reductions: lowered, beside ONNX Runtime."""

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.devices.cuda.lowering import NotCoveredError
from tests.examples import over
from tests.pipeline.devices.cuda.lowering.lowered import agree
from tests.pipeline.devices.nodes import drawn, ints, numbers

pytestmark = pytest.mark.usefixtures("kernels")

X = numbers(2, 6, 5, 7)


@over("axis", [0, 1, 2, -1])
@over("operator", ["Softmax", "LogSoftmax"])
@over("opset", [11, 17])
def test_softmax(operator: str, axis: int, opset: int) -> None:
    agree(operator, [X * 9], {"axis": axis}, opset=opset)


@given(st.integers(1, 3), st.integers(1, 700), st.sampled_from([1, 3]))
@drawn
def test_softmax_of_any_length(outer: int, length: int, inner: int) -> None:
    agree("Softmax", [numbers(outer, length, inner) * 5], {"axis": 1})


def test_softmax_of_large_numbers() -> None:
    agree("Softmax", [np.array([[1e4, -1e4, 9990], [-1e30, 1e30, 0]], np.float32)])


def test_batch_norm() -> None:
    vectors = [numbers(6, seed=i) ** 2 for i in range(4)]
    agree("BatchNormalization", [X, *vectors], weights=True)
    agree("BatchNormalization", [X, *vectors], {"epsilon": 0.1}, opset=8)


def test_instance_norm() -> None:
    agree("InstanceNormalization", [X + 3, numbers(6), numbers(6, seed=1)])
    agree("InstanceNormalization", [numbers(1, 2, 30, 20), numbers(2), numbers(2, seed=1)])


def test_group_norm() -> None:
    inputs = [X + 3, numbers(6), numbers(6, seed=1)]
    agree("GroupNormalization", inputs, {"num_groups": 3}, opset=21)
    with pytest.raises(NotCoveredError, match="opset 18 is not known"):
        agree("GroupNormalization", [X, numbers(3), numbers(3)], {"num_groups": 3}, opset=18)


@over("axis", [-1, 1, 2])
def test_layer_norm(axis: int) -> None:
    shape = X.shape[axis:]
    agree("LayerNormalization", [X, numbers(*shape), numbers(*shape, seed=1)], {"axis": axis})
    agree("LayerNormalization", [X, numbers(*shape)], {"axis": axis, "epsilon": 0.1})


@over("size", [1, 3, 5, 9])
def test_response_norm(size: int) -> None:
    agree("LRN", [X], {"size": size, "alpha": 0.2, "beta": 0.6, "bias": 1.5})


@over("shape", [(2, 3, 1, 1), (1, 5, 30, 41), (2, 3, 9), (1, 2, 3, 4, 5)])
@over("operator", ["GlobalAveragePool", "GlobalMaxPool"])
def test_global_pool(operator: str, shape: tuple[int, ...]) -> None:
    agree(operator, [numbers(*shape)])


REDUCTIONS = [
    *("ReduceL1", "ReduceL2", "ReduceMax", "ReduceMean", "ReduceMin", "ReduceProd", "ReduceSum"),
    "ReduceSumSquare",
]


@given(
    st.sampled_from(REDUCTIONS),
    st.lists(st.integers(1, 9), min_size=1, max_size=5),
    st.data(),
    st.booleans(),
)
@drawn
def test_reduction(operator: str, shape: Sequence[int], data: st.DataObject, keep: bool) -> None:
    axes = data.draw(st.lists(st.integers(0, len(shape) - 1), min_size=1, unique=True))
    signed = [axis - data.draw(st.sampled_from([0, len(shape)])) for axis in axes]
    agree(operator, [numbers(*shape), ints(*signed)], {"keepdims": int(keep)}, opset=18)


@pytest.mark.parametrize("shape", [(2, 70, 30, 80), (1, 3, 2100)])
def test_many_results_have_a_thread_each(shape: tuple[int, ...]) -> None:
    program = agree("ReduceMean", [numbers(*shape)], {"axes": [1]})
    assert program.calls[0].function == "reduce_short_sum"


def test_reduction_as_attributes() -> None:
    agree("ReduceMean", [X], {"axes": [2, 3]})
    agree("ReduceMean", [X], {"keepdims": 0})
    agree("ReduceMean", [X], {"keepdims": 0}, opset=18)
    agree("ReduceMean", [X], {"noop_with_empty_axes": 1}, opset=18)
    agree("ReduceSum", [X, ints(1)], {"keepdims": 0}, opset=13)
