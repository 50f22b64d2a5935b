"""Resize and Upsample: lowered, beside ONNX Runtime."""

from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper

from models.runtime.sessions import open_piece
from pipeline.devices.cuda.lowering import NotCoveredError, lower
from pipeline.devices.cuda.scope import ConvolutionSettings
from tests.examples import over
from tests.pipeline.devices.cuda.lowering.lowered import Array, agree
from tests.pipeline.devices.nodes import drawn, ints, numbers, piece

pytestmark = pytest.mark.usefixtures("kernels")

COORDINATES = [
    *("align_corners", "asymmetric", "half_pixel", "half_pixel_symmetric", "pytorch_half_pixel"),
]
ROUNDINGS = ["floor", "ceil", "round_prefer_floor", "round_prefer_ceil"]
X = numbers(2, 3, 5, 7)


def floats(*values: float) -> Array:
    return np.array(values, np.float32)


lengths = st.tuples(st.integers(1, 9), st.integers(1, 9))


@given(st.sampled_from(COORDINATES), st.sampled_from(ROUNDINGS), lengths, lengths)
@drawn
def test_nearest_to_sizes(
    coordinates: str, rounding: str, size: tuple[int, int], result: tuple[int, int]
) -> None:
    attributes = {"coordinate_transformation_mode": coordinates, "nearest_mode": rounding}
    inputs = [numbers(1, 2, *size), None, None, ints(1, 2, *result)]
    agree("Resize", inputs, attributes | {"mode": "nearest"}, opset=19)


@given(
    st.sampled_from(COORDINATES),
    st.sampled_from([0.5, 0.75, 1.0, 1.5, 2.0, 3.0]),
    st.sampled_from([0.4, 1.0, 1.3, 2.0]),
    st.sampled_from(["nearest", "linear", "cubic"]),
)
@drawn
def test_scales(coordinates: str, height: float, width: float, mode: str) -> None:
    attributes: dict[str, Any] = {"coordinate_transformation_mode": coordinates, "mode": mode}
    agree("Resize", [X, None, floats(1, 1, height, width)], attributes, opset=19)


@given(st.sampled_from(COORDINATES), st.sampled_from(["linear", "cubic"]), lengths, lengths)
@drawn
def test_interpolation_to_sizes(
    coordinates: str, mode: str, size: tuple[int, int], result: tuple[int, int]
) -> None:
    attributes = {"coordinate_transformation_mode": coordinates, "mode": mode}
    inputs = [numbers(1, 2, *size), None, None, ints(1, 2, *result)]
    agree("Resize", inputs, attributes, opset=19)


def any_lengths(graph: bytes) -> onnxruntime.InferenceSession:
    """Return a session of a Resize whose lengths each run gives."""
    model = onnx.load_model_from_string(graph)
    (sizes,) = model.graph.initializer
    model.graph.input.append(helper.make_tensor_value_info(sizes.name, TensorProto.INT64, (1,)))
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "n"
    del model.graph.initializer[:]
    return open_piece(model.SerializeToString())


_LENGTHS = (1, 2, 3, 4, 6, 9, 14)


@pytest.mark.parametrize("coordinates", COORDINATES)
@pytest.mark.parametrize("rounding", ROUNDINGS)
def test_what_is_nearest(coordinates: str, rounding: str) -> None:
    """Lengths with common divisors and without: ties, and what rounding makes of them."""
    attributes: dict[str, Any] = {"mode": "nearest", "nearest_mode": rounding}
    attributes["coordinate_transformation_mode"] = coordinates
    session = any_lengths(piece("Resize", [floats(0), None, None, ints(1)], attributes, opset=19))
    x_name, sizes_name = (port.name for port in session.get_inputs())
    for length in _LENGTHS:
        x = np.arange(length, dtype=np.float32)
        for result in _LENGTHS:
            piece_of_one = piece("Resize", [x, None, None, ints(result)], attributes, opset=19)
            (expected,) = session.run(None, {x_name: x, sizes_name: ints(result)})
            (_, columns) = lower(piece_of_one, ConvolutionSettings()).constants
            assert columns.tolist() == expected.tolist(), (length, result)


@over("mode", ["nearest", "linear", "cubic"])
def test_the_same_size_is_a_copy(mode: str) -> None:
    agree("Resize", [X, None, floats(1, 1, 1.15, 1.1)], {"mode": mode})


def test_cubic_options() -> None:
    attributes = {"mode": "cubic", "cubic_coeff_a": -0.5, "exclude_outside": 1}
    agree("Resize", [X, None, floats(1, 1, 2, 1.5)], attributes)


@over("scales", [(2, 3), (1.5, 1.2), (0.6, 2), (0.4, 0.7)])
def test_old_opsets(scales: tuple[float, float]) -> None:
    agree("Resize", [X, floats(1, 1, *scales)], {"mode": "nearest"}, opset=10)
    agree("Resize", [X, floats(1, 1, *scales)], {"mode": "linear"}, opset=10)


@pytest.mark.parametrize("mode", ["nearest", "linear"])
def test_upsample(mode: str) -> None:
    agree("Upsample", [X, floats(1, 1, 2, 3)], {"mode": mode}, opset=9)
    agree("Upsample", [X], {"mode": mode, "scales": [1.0, 1.0, 2.0, 1.5]}, opset=8)


def test_fewer_axes() -> None:
    agree("Resize", [numbers(2, 3, 5), None, floats(1, 1, 2)], {"mode": "nearest"})
    agree("Resize", [X, None, None, ints(4, 9)], {"mode": "nearest", "axes": [2, 3]}, opset=18)


def test_not_covered() -> None:
    with pytest.raises(NotCoveredError, match="Resize: more than two axes"):
        agree("Resize", [X, None, floats(1, 2, 1, 1)], {"mode": "nearest"})
    with pytest.raises(NotCoveredError, match="Resize: antialias 1"):
        agree("Resize", [X, None, floats(1, 1, 2, 2)], {"mode": "linear", "antialias": 1}, opset=18)
