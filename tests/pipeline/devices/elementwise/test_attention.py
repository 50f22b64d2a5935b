"""Attention of the native library: the numbers of its definition, the same bits on any rows and threads."""

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper

from models.runtime.sessions import SessionError, open_piece, run_session
from pipeline.devices.base import KernelError
from pipeline.devices.cpu import CpuDevice, _CpuKernel
from pipeline.devices.elementwise.attention import native_attention
from pipeline.devices.interface.native import ATTENTION_KEYS, ATTENTION_ROWS, MAX_HEAD
from tests.examples import over
from tests.pipeline.devices.elementwise.chains import library, needs_library

pytestmark = needs_library
Floats = NDArray[np.float32]
#: Images, queries, keys, heads, channels of a head, channels of a value, and of a bias images and heads.
Case = tuple[int, int, int, int, int, int, tuple[int, int] | None]
CASES: list[Case] = [
    (1, 1, 1, 1, 1, 1, None),
    (2, 50, 70, 3, 80, 48, None),
    (1, ATTENTION_ROWS + 1, ATTENTION_KEYS, 2, 64, 64, None),
    (1, 2 * ATTENTION_ROWS, 3 * ATTENTION_KEYS + 1, 1, 32, MAX_HEAD, None),
    (1, 7, ATTENTION_KEYS - 1, 2, MAX_HEAD, 20, (1, 1)),
    (2, 130, 65, 4, 32, 32, (2, 1)),
    (2, 20, 130, 2, 20, 24, (1, 2)),
    (2, 20, 130, 2, 20, 24, (2, 2)),
]


def piece(case: Case, **attributes: float) -> bytes:
    images, queries, keys, heads, head, value_head, bias = case
    shapes = {
        "q": [images, queries, heads * head],
        "k": [images, keys, heads * head],
        "v": [images, keys, heads * value_head],
    }
    if bias is not None:
        shapes["b"] = [*bias, queries, keys]
    inputs = ["q", "k", "v", *(["", "", "b"] if bias is not None else [])]
    node = helper.make_node("MultiHeadAttention", inputs, ["y"], domain="com.microsoft")
    for name, value in {"num_heads": heads, "scale": 0.3, **attributes}.items():
        node.attribute.append(helper.make_attribute(name, value))
    ports = [helper.make_tensor_value_info(*item) for item in _typed(shapes)]
    (output,) = _typed({"y": [images, queries, heads * value_head]})
    graph = helper.make_graph([node], "g", ports, [helper.make_tensor_value_info(*output)])
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    return bytes(model.SerializeToString())


def _typed(shapes: dict[str, list[int]]) -> list[tuple[str, int, list[int]]]:
    return [(name, TensorProto.FLOAT, shape) for name, shape in shapes.items()]


def drawn(graph: bytes, spread: float = 1.0) -> dict[str, Floats]:
    generator = np.random.default_rng(5)
    arrays = {}
    for port in onnx.ModelProto.FromString(graph).graph.input:
        shape = [axis.dim_value for axis in port.type.tensor_type.shape.dim]
        arrays[port.name] = (spread * generator.standard_normal(shape)).astype(np.float32)
    return arrays


def exact(case: Case, inputs: dict[str, Floats], scale: float = 0.3) -> NDArray[np.float64]:
    images, queries, keys, heads, *_ = case

    def by_head(name: str, tokens: int) -> NDArray[np.float64]:
        array = inputs[name].astype(np.float64)
        return array.reshape(images, tokens, heads, -1).transpose(0, 2, 1, 3)

    scores = scale * by_head("q", queries) @ by_head("k", keys).transpose(0, 1, 3, 2)
    scores = scores + inputs.get("b", np.zeros(1, np.float32))
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    result = weights / weights.sum(-1, keepdims=True) @ by_head("v", keys)
    return np.asarray(result.transpose(0, 2, 1, 3).reshape(images, queries, -1))


def native(graph: bytes, inputs: dict[str, Floats], threads: int = 2) -> Floats:
    attention = native_attention(graph)
    assert attention is not None
    session = open_piece(attention.graph, threads, library().path)
    return np.asarray(run_session(session, inputs)["y"])


@over("case", CASES)
@over("spread", [0.1, 1.0, 2.0])
def test_it_is_what_the_definition_says(case: Case, spread: float) -> None:
    graph = piece(case)
    inputs = drawn(graph, spread)
    np.testing.assert_allclose(native(graph, inputs), exact(case, inputs), rtol=2e-5, atol=2e-5)


@over("case", CASES[:6])
@over("threads", [1, 2, 3])
def test_bits_depend_neither_on_rows_nor_on_threads(case: Case, threads: int) -> None:
    graph = piece(case)
    inputs = drawn(graph)
    every = native(graph, inputs, 2)
    np.testing.assert_array_equal(native(graph, inputs, threads), every)
    images, queries, *others, bias = case
    for rows in {1, min(2, queries), queries // 2 or 1}:
        some = {**inputs, "q": inputs["q"][:, -rows:]}
        if bias is not None:
            some["b"] = inputs["b"][:, :, -rows:]
        smaller: Case = (images, rows, *others, bias)  # type: ignore[assignment]
        result = native(piece(smaller), some, threads)
        np.testing.assert_array_equal(result, every[:, -rows:])


def test_what_is_masked_counts_for_nothing_and_all_masked_is_nan() -> None:
    case: Case = (1, 6, 2 * ATTENTION_KEYS + 3, 2, 16, 16, (1, 1))
    graph = piece(case)
    inputs = drawn(graph)
    inputs["b"][..., : ATTENTION_KEYS + 1] = -np.inf
    inputs["v"][:, : ATTENTION_KEYS + 1] = 1e30
    np.testing.assert_allclose(native(graph, inputs), exact(case, inputs), rtol=2e-5, atol=2e-5)
    inputs["b"][0, 0, 3] = -np.inf
    result = native(graph, inputs)
    assert np.isnan(result[0, 3]).all()
    assert np.isfinite(np.delete(result, 3, axis=1)).all()


def test_nan_stays_in_its_row() -> None:
    case: Case = (1, 20, 70, 1, 8, 8, None)
    graph = piece(case)
    inputs = drawn(graph)
    inputs["q"][0, 11, 3] = np.nan
    result = native(graph, inputs)
    assert np.isnan(result[0, 11]).all()
    assert np.isfinite(np.delete(result, 11, axis=1)).all()


def test_the_device_runs_it_and_counts_what_it_allocates() -> None:
    case = CASES[2]
    graph = piece(case)
    one, two = CpuDevice(1), CpuDevice(2)
    counted = [device.abilities().scratch_bytes(graph) for device in (one, two)]
    assert counted[0] is not None
    assert counted[1] == 2 * counted[0]
    inputs = drawn(graph)
    results = []
    for device in (one, two, CpuDevice(2, native=False)):
        result = np.empty((1, case[1], 128), np.float32)
        device.make(graph).bind(list(inputs.values()), [result])()
        results.append(result)
        device.close()
    np.testing.assert_array_equal(results[0], results[1])
    np.testing.assert_allclose(results[2], results[0], rtol=1e-4, atol=1e-5)


def test_without_the_library_a_plan_counts_onnx_runtimes_kernel() -> None:
    assert CpuDevice(2, native=False).abilities().scratch_bytes(piece(CASES[2])) is None


@pytest.mark.parametrize(
    "graph",
    [
        piece((1, 5, 5, 1, MAX_HEAD + 1, 8, None)),
        piece((1, 5, 5, 1, 8, MAX_HEAD + 1, None)),
        piece(CASES[1], unidirectional=1),
        piece(CASES[1], scale=0.0),
        piece((1, 5, 5, 2, 8, 8, (2, 1))),
        b"MultiHeadAttention com.microsoft",
        b"",
    ],
)
def test_what_native_kernels_do_not_compute_stays(graph: bytes) -> None:
    assert native_attention(graph) is None


def test_tensors_that_do_not_fit_are_refused() -> None:
    attention = native_attention(piece(CASES[1]))
    assert attention is not None
    without_shapes = onnx.ModelProto.FromString(attention.graph)
    for port in (*without_shapes.graph.input, *without_shapes.graph.output):
        port.type.tensor_type.ClearField("shape")
    kernel = _CpuKernel(open_piece(without_shapes.SerializeToString(), 2, library().path))
    inputs = drawn(piece(CASES[1]))
    inputs["v"] = inputs["v"][:, 1:]
    with pytest.raises((KernelError, SessionError), match="do not fit"):
        kernel.bind(list(inputs.values()), [np.empty((2, 50, 144), np.float32)])()


@over("case", [case for case in CASES if case[4] == case[5]])
@over("is_native", [True, False])
def test_a_result_may_lie_over_the_queries(case: Case, is_native: bool) -> None:
    """ONNX Runtime's own kernel stands in where there is no library."""
    graph = piece(case)
    inputs = drawn(graph)
    device = CpuDevice(2, native=is_native)
    expected = np.empty_like(inputs["q"])
    device.make(graph).bind(list(inputs.values()), [expected])()
    device.make(graph).bind(list(inputs.values()), [inputs["q"]])()
    device.close()
    np.testing.assert_array_equal(inputs["q"], expected)
