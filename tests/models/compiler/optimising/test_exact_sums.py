"""Sums of products of bytes are exact on every processor, whatever the weights are."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import numpy_helper
from onnx.parser import parse_model

from models.compiler import CompileOptions, compile_onnx
from models.compiler.optimising.exact_sums import ExactSums, largest_signed
from models.errors import PackError
from models.graphs.reader import graph_at
from models.packs.pack import open_pack, read_pack
from models.packs.target import host_target
from tests.examples import over
from tests.models.nets import exact_answers, written
from tests.models.refusal import refuses
from tests.models.streamed import compiled, streamed

#: A processor without dot products, and one with them.
WITHOUT, WITH = (replace(host_target(), exact_weights=largest) for largest in (64, 128))
ZERO = 117
_random = np.random.default_rng(0)
X = _random.integers(0, 256, (6, 40)).astype(np.uint8)
X[0, :2] = 0, 255
IMAGE = _random.integers(0, 256, (1, 8, 5, 5)).astype(np.uint8)
W = _random.integers(-128, 128, (40, 16)).astype(np.int8)
FILTERS = _random.integers(-128, 128, (6, 4, 2, 2)).astype(np.int8)
CONSTANTS: Mapping[str, NDArray[Any]] = {
    "w": W,
    "wt": np.ascontiguousarray(W.T),
    "wz": np.array(-3, np.int8),
    "wzs": np.full(6, 5, np.int8),
    "k": FILTERS,
    "z": np.array(ZERO, np.uint8),
    "one": np.array(1, np.float32),
    "small": np.array(2e-3, np.float32),
    "step": np.array([2e-3], np.float32),
    "tenth": np.array(0.1, np.float32),
    "bias": np.zeros(48, np.float32),
    "h": np.clip(W, -64, 64),
    "lw": W[None],
    "lr": W[None, :4],
    "lz": np.array([-3], np.int8),
    "wide": np.concatenate([W, W[::-1], W], axis=1),
}


def _model(text: str) -> onnx.ModelProto:
    model = parse_model(f'<ir_version: 9, opset_import: ["" : 17, "com.microsoft" : 1]> {text}')
    model.graph.initializer.extend(
        numpy_helper.from_array(array, name)
        for name, array in CONSTANTS.items()
        if name in text.replace("(", " ").replace(")", " ").replace(",", " ").split()
    )
    return model


def _product(zero: int) -> NDArray[Any]:
    sums: NDArray[Any] = (X.astype(np.int32) - ZERO) @ (W.astype(np.int32) - zero)
    return sums


def _convolved(zero: int, groups: int) -> NDArray[Any]:
    image = (IMAGE.astype(np.int32) - ZERO).reshape(groups, -1, 5, 5)
    filters = (FILTERS.astype(np.int32) - zero).reshape(groups, -1, 8 // groups, 2, 2)
    windows = np.lib.stride_tricks.sliding_window_view(image, (2, 2), axis=(2, 3))
    sums: NDArray[Any] = np.concatenate(np.einsum("gcyxij,gfcij->gfyx", windows, filters))[None]
    return sums


def _rounded(sums: NDArray[Any]) -> NDArray[Any]:
    rounded: NDArray[Any] = np.rint(sums * CONSTANTS["small"]) + ZERO
    return rounded.clip(0, 255).astype(np.uint8)


_SMALL = float(CONSTANTS["small"])
_FLOATS = X.astype(np.float32) - ZERO  # DynamicQuantizeLinear makes X of these


@over(
    "text, expected",
    [
        ("(uint8[6,40] x) => (int32[6,16] y) { y = MatMulInteger(x, w, z) }", _product(0)),
        (
            "(uint8[6,40] x, int8[40,16] v) => (int32[6,16] y) { y = MatMulInteger(x, v, z, wz) }",
            _product(-3),
        ),
        (
            """(uint8[6,40] x, bool[1] c) => (int32[6,16] y) { y = If(c) <
                then_branch = t () => (int32[6,16] a) { a = MatMulInteger(x, w, z) },
                else_branch = e () => (int32[6,16] b) { b = MatMulInteger(x, w, z, wz) }
            > }""",
            _product(0),
        ),
        (
            """(uint8[6,40] x) => (uint8[6,16] y) {
                y = QLinearMatMul(x, one, z, w, small, wz, one, z)
            }""",
            _rounded(_product(-3)),
        ),
        (
            """(uint8[6,40] x) => (uint8[6,16] y) {
                y = com.microsoft.QGemm<transB=1>(x, one, z, wt, small, wz, , one, z)
            }""",
            _rounded(_product(-3)),
        ),
        (
            """(float[6,40] f) => (float[6,16] y) {
                y = com.microsoft.DynamicQuantizeMatMul(f, w, small, wz)
            }""",
            _product(-3) * _SMALL,
        ),
        (
            """(uint8[6,40] x) => (float[6,16] y) {
                y = com.microsoft.MatMulIntegerToFloat(x, w, one, small, z)
            }""",
            _product(0) * _SMALL,
        ),
        (
            "(uint8[1,8,5,5] i) => (int32[1,6,4,4] y) { y = ConvInteger<group=2>(i, k, z) }",
            _convolved(0, 2),
        ),
        (
            """(uint8[1,8,5,5] i) => (uint8[1,6,4,4] y) {
                y = QLinearConv<group=2>(i, one, z, k, small, wzs, one, z)
            }""",
            _rounded(_convolved(5, 2)),
        ),
    ],
)
def test_sums_with_weights_of_all_eight_bits_are_exact(
    text: str, expected: NDArray[Any], tmp_path: Path
) -> None:
    """In the pack for any processor, and in what it is compared with."""
    folder = tmp_path / str(len([*tmp_path.iterdir()]))
    folder.mkdir()
    tensors = {"x": X, "v": W, "c": np.array([True]), "f": _FLOATS, "i": IMAGE}
    source = written(_model(f"g {text}"), folder / "m.onnx")
    pack = compiled(source, folder, CompileOptions(target=WITHOUT))
    assert pack.manifest.target.exact_weights <= WITHOUT.exact_weights
    inputs = {port.name: tensors[port.name] for port in pack.manifest.inputs}
    for answer in (exact_answers(source, inputs), streamed(pack, inputs)):
        np.testing.assert_allclose(answer["y"], expected, rtol=1e-6)


@over(
    "text, floats",
    [
        (
            """(float[3,1,40] s) => (float[3,1,1,4] y) {
                y = com.microsoft.DynamicQuantizeLSTM<hidden_size=4>(
                    s, lw, lr, , , , , , step, lz, step, lz)
            }""",
            """(float[3,1,40] s) => (float[3,1,1,4] y) {
                a = DequantizeLinear(lw, small, wz)
                b = DequantizeLinear(lr, small, wz)
                ta = Transpose<perm=[0,2,1]>(a)
                tb = Transpose<perm=[0,2,1]>(b)
                y = LSTM<hidden_size=4>(s, ta, tb)
            }""",
        ),
        (
            """(uint8[1,6,40] q) => (float[1,6,16] y) {
                y = com.microsoft.QAttention<num_heads=4>(q, wide, bias, tenth, small, , z, wz)
            }""",
            """(uint8[1,6,40] q) => (float[1,6,16] y) {
                a = DequantizeLinear(q, tenth, z)
                b = DequantizeLinear(wide, small, wz)
                y = com.microsoft.Attention<num_heads=4>(a, b, bias)
            }""",
        ),
    ],
)
def test_so_are_those_of_recurrence_and_attention(text: str, floats: str, tmp_path: Path) -> None:
    inputs = {"s": _FLOATS[:3, None] / 99} if "LSTM" in text else {"q": X[None]}
    folder = tmp_path / str(len([*tmp_path.iterdir()]))
    folder.mkdir()
    pack = compiled(
        written(_model(f"g {text}"), folder / "m.onnx"), folder, CompileOptions(target=WITHOUT)
    )
    expected = exact_answers(written(_model(f"g {floats}"), folder / "floats.onnx"), inputs)["y"]
    assert np.ptp(expected) > 0.2
    np.testing.assert_allclose(streamed(pack, inputs)["y"], expected, atol=0.02)


def test_packs_with_weights_that_need_dot_products_are_refused_without(tmp_path: Path) -> None:
    """Those of MatMulInteger; a native kernel computes QGemm, which is exact on all."""
    text = "(uint8[6,40] x) => (int32[6,16] y) { y = MatMulInteger(x, w, z) }"
    source = written(_model(f"g {text}"), tmp_path / "m.onnx")
    folder = compile_onnx(source, tmp_path / "m", CompileOptions(target=WITH))
    assert read_pack(folder).manifest.target.exact_weights == WITH.exact_weights
    open_pack(folder, WITH)
    with refuses(PackError, "8-bit weights up to 128 need a processor with dot products"):
        open_pack(folder, WITHOUT)


@over(
    "text, dtype",
    [
        ("(int8[6,40] x) => (int32[6,16] y) { y = MatMulInteger(x, w) }", "int8"),
        ("(uint8[6,40] x) => (int32[6,16] y) { y = MatMulInteger(x, h, z) }", "uint8"),
    ],
)
def test_what_is_exact_stays_as_it_is(text: str, dtype: str, tmp_path: Path) -> None:
    """Behind signed bytes, and weights up to 64."""
    graph = graph_at(written(_model(f"g {text}"), tmp_path / f"{dtype}.onnx"))
    assert ExactSums(graph, 64, tmp_path).run() is graph
    assert largest_signed(graph.nodes, graph) == {"int8": 0, "uint8": 64}[dtype]
