"""Windows of a convolution: what ONNX Runtime convolves, as rows of a matrix."""

from typing import Any

import numpy as np
from hypothesis import assume, given
from hypothesis import strategies as st
from onnx import TensorProto, helper

from models.compiler.optimising.quantised_layers import pixels_of
from models.network.windows import windows_of
from models.runtime.sessions import open_session, session_options
from tests.examples import examples

SIDES = st.tuples(st.integers(1, 6), st.integers(1, 6))
PADDING = st.sampled_from(["NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER"])
FEW = st.tuples(st.integers(1, 3), st.integers(1, 3))
IMAGE_LAST = (0, 2, 3, 1)


@examples(10, many=500, deadline=None)
@given(
    sides=SIDES,
    window=st.tuples(FEW, FEW, FEW),
    padding=PADDING,
    pads=st.tuples(*[st.integers(0, 2)] * 4),
    images=st.integers(1, 2),
)
def test_windows_times_weights_are_the_convolution(
    sides: tuple[int, int],
    window: tuple[tuple[int, int], ...],
    padding: str,
    pads: tuple[int, ...],
    images: int,
) -> None:
    kernel, strides, dilations = window
    if padding.startswith("SAME"):
        dilations = (1, 1)  # ONNX Runtime has no other there
    given: dict[str, Any] = {"strides": strides, "dilations": dilations, "auto_pad": padding}
    around = pads if padding == "NOTSET" else (0, 0, 0, 0)
    if padding == "NOTSET":
        given["pads"] = pads
    reach = [(n - 1) * d + 1 for n, d in zip(kernel, dilations, strict=True)]
    assume(all(sides[i] + around[i] + around[i + 2] >= reach[i] for i in range(2)))
    generator = np.random.default_rng(0)
    x = generator.integers(-9, 10, (images, 3, *sides)).astype(np.float32)
    weight = generator.integers(-9, 10, (4, 3, *kernel)).astype(np.float32)
    expected = _convolved(x, weight, given)
    last = x.transpose(IMAGE_LAST)
    windows = pixels_of(windows_of(given, kernel, sides), images)
    pixels = np.concatenate([last.reshape(-1, 3), np.zeros((1, 3), np.float32)])
    rows = pixels[windows.pixels].reshape(-1, 3 * kernel[0] * kernel[1])
    product = rows @ weight.transpose(2, 3, 1, 0).reshape(-1, 4)
    np.testing.assert_array_equal(product, expected.transpose(IMAGE_LAST).reshape(-1, 4))
    assert windows.outside == (len(pixels) - 1 in windows.pixels)


def _convolved(x: np.ndarray, weight: np.ndarray, given: dict[str, Any]) -> np.ndarray:
    node = helper.make_node("Conv", ["x", "w"], ["y"], **given)
    ports = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [None] * 4) for name in "xwy"]
    graph = helper.make_graph([node], "g", ports[:2], ports[2:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    session = open_session(model.SerializeToString(), session_options(optimise=False, threads=1))
    (result,) = session.run(None, {"x": x, "w": weight})
    return np.asarray(result)
