"""What onnxruntime.quantization makes of one network, in its variants: all of it streams."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper
from onnxruntime.quantization import (
    CalibrationDataReader,
    QuantFormat,
    QuantType,
    quantize_dynamic,
    quantize_static,
)

from tests.models.nets import answers, exact_answers, written
from tests.models.streamed import compiled, streamed

pytestmark = pytest.mark.slow

SIDE = 24
TYPES = {"u8": QuantType.QUInt8, "s8": QuantType.QInt8, "u16": QuantType.QUInt16}
WEIGHTS = {"s8": QuantType.QInt8, "u8": QuantType.QUInt8, "s4": QuantType.QInt4}
# A step of 8 bits here and there, where sums of floats and of integers are on two sides of a half.
FAR = 5e-2


class Pictures(CalibrationDataReader):  # type: ignore[misc]
    def __init__(self) -> None:
        self._made = self._inputs()

    def _inputs(self) -> Iterator[dict[str, np.ndarray]]:
        generator = np.random.default_rng(2)
        for _ in range(3):
            yield {"x": generator.standard_normal((1, 3, SIDE, SIDE)).astype(np.float32)}

    def get_next(self) -> dict[str, np.ndarray] | None:
        return next(self._made, None)


def network() -> onnx.ModelProto:
    """An inverted bottleneck with its sum, a pool, two branches, and a classifier."""
    generator = np.random.default_rng(1)
    nodes: list[onnx.NodeProto] = []
    constants: dict[str, np.ndarray] = {
        "zero": np.array(0, np.float32),
        "six": np.array(6, np.float32),
    }

    def conv(x: str, kernel: tuple[int, ...], act: str = "", groups: int = 1) -> str:
        name = f"c{len(nodes)}"
        fan = np.prod(kernel[1:])
        constants[f"{name}w"] = generator.standard_normal(kernel) * (2 / fan) ** 0.5
        constants[f"{name}b"] = generator.standard_normal(kernel[0]) / 10
        inputs, pads = [x, f"{name}w", f"{name}b"], [kernel[2] // 2] * 4
        nodes.append(helper.make_node("Conv", inputs, [name], name, pads=pads, group=groups))
        if not act:
            return name
        limits = ["zero", "six"] if act == "Clip" else []
        nodes.append(helper.make_node(act, [name, *limits], [f"{name}r"]))
        return f"{name}r"

    def node(kind: str, inputs: list[str], **given: Any) -> str:
        nodes.append(helper.make_node(kind, inputs, [f"{kind}{len(nodes)}"], **given))
        return str(nodes[-1].output[0])

    first = conv(conv("x", (32, 3, 3, 3), "Clip"), (48, 32, 1, 1))
    inner = conv(conv(first, (96, 48, 1, 1), "Clip"), (96, 1, 3, 3), "Clip", 96)
    pooled = node(
        "MaxPool",
        [node("Add", [first, conv(inner, (48, 96, 1, 1))])],
        kernel_shape=[2, 2],
        strides=[2, 2],
    )
    deep = conv(pooled, (128, 48, 3, 3), "Relu")
    both = node("Concat", [deep, conv(deep, (128, 128, 3, 3), "Relu")], axis=1)
    flat = node("Flatten", [node("GlobalAveragePool", [both])])
    constants |= {
        "fw": generator.standard_normal((40, 256)) / 16,
        "fb": generator.standard_normal(40),
    }
    nodes.append(helper.make_node("Gemm", [flat, "fw", "fb"], ["y"], transB=1))
    ports = [("x", [1, 3, SIDE, SIDE]), ("y", [1, 40])]
    inputs, outputs = (
        [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, shape)]
        for name, shape in ports
    )
    arrays = [
        numpy_helper.from_array(np.asarray(array, np.float32), name)
        for name, array in constants.items()
    ]
    graph = helper.make_graph(nodes, "g", inputs, outputs, arrays)
    opsets = [helper.make_opsetid("", 21)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def _static(
    kind: QuantFormat, activations: str, weights: str, channels: bool, **extra: bool
) -> Any:
    def make(source: Path, result: Path) -> None:
        quantize_static(
            source,
            result,
            Pictures(),
            kind,
            per_channel=channels,
            activation_type=TYPES[activations],
            weight_type=WEIGHTS[weights],
            extra_options=extra,
        )

    return make


def _dynamic(weights: str, channels: bool) -> Any:
    def make(source: Path, result: Path) -> None:
        quantize_dynamic(source, result, per_channel=channels, weight_type=WEIGHTS[weights])

    return make


QDQ, OPERATORS = QuantFormat.QDQ, QuantFormat.QOperator
VARIANTS: dict[str, Callable[[Path, Path], None]] = {
    **{
        f"{kind.name} {act} {weight} {'channels' if channels else 'tensors'}": _static(
            kind, act, weight, channels
        )
        for kind in QuantFormat
        for act, weight in (("u8", "s8"), ("u8", "u8"), ("s8", "s8"))
        for channels in (False, True)
    },
    "16-bit activations": _static(QDQ, "u16", "s8", True),
    "4-bit weights": _static(QDQ, "u8", "s4", True),
    "symmetric": _static(QDQ, "s8", "s8", True, ActivationSymmetric=True),
    "weights as floats": _static(QDQ, "s8", "s8", True, AddQDQPairToWeight=True),
    "float biases": _static(QDQ, "u8", "s8", True, QuantizeBias=False),
    "removable kept": _static(QDQ, "u8", "s8", True, QDQKeepRemovableActivations=True),
    **{f"dynamic {weight}": _dynamic(weight, weight == "s8") for weight in ("s8", "u8")},
}


@pytest.mark.parametrize("name", VARIANTS)
def test_what_quantisers_write_streams(name: str, tmp_path: Path) -> None:
    source, result = written(network(), tmp_path / "floats.onnx"), tmp_path / "m.onnx"
    VARIANTS[name](source, result)
    pack = compiled(result, tmp_path)
    given = {"x": np.random.default_rng(7).standard_normal((1, 3, SIDE, SIDE)).astype(np.float32)}
    optimised = answers(result, given, optimise=True)["y"]
    expected = [exact_answers(result, given)["y"], optimised]
    got = streamed(pack, given)["y"]
    off = min(float(np.abs(got - answer).max() / np.abs(answer).max()) for answer in expected)
    assert off <= FAR
    manifest = pack.manifest
    assert manifest.resident_pieces == []
    # An eighth of a page more for each span, and no float where an integer was.
    in_file = sum(span.file_length for span in manifest.spans)
    assert in_file < 1.2 * (manifest.parameters or 0) + 4096 * len(manifest.spans)
    kinds = {layer.operator for layer in manifest.layers}
    wide = name == "16-bit activations"
    assert ("Conv" in kinds) == wide
    # Weights are never made while it runs.
    assert wide or "dynamic" in name or kinds & {"QLinearConv", "QGemm"}
