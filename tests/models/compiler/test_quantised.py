"""Quantised networks: packs give exactly what plain ONNX Runtime gives, in every architecture."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from onnx.parser import parse_model

from models.runtime.sessions import open_resident
from pipeline.schedule.architectures import ARCHITECTURES
from tests.models.nets import written
from tests.models.streamed import compiled, same, streamed

CHANNELS = 64


def _model(text: str, **constants: np.ndarray) -> onnx.ModelProto:
    model = parse_model(f'<ir_version: 9, opset_import: ["" : 17, "com.microsoft" : 1]> {text}')
    model.graph.initializer.extend(
        numpy_helper.from_array(array, name) for name, array in constants.items()
    )
    return model


def _weights(*shape: int) -> np.ndarray:
    return np.random.default_rng(4).integers(-127, 128, shape).astype(np.int8)


def _scales(count: int) -> np.ndarray:
    return np.linspace(0.002, 0.004, count).astype(np.float32)


def qdq() -> onnx.ModelProto:
    """Convolutions between quantise and dequantise nodes, weights quantised for each channel."""
    return _model(
        """qdq (float[1,64,8,8] x) => (float[1,10] y) {
            a8 = QuantizeLinear(x, s, z)
            a = DequantizeLinear(a8, s, z)
            w = DequantizeLinear<axis=0>(w8, ws, wz)
            b = DequantizeLinear<axis=0>(b32, bs, bz)
            c = Conv<pads=[1,1,1,1]>(a, w, b)
            r = Relu(c)
            d8 = QuantizeLinear(r, t, z)
            d = DequantizeLinear(d8, t, z)
            v = DequantizeLinear<axis=0>(v8, ws, wz)
            e = Conv(d, v)
            f8 = QuantizeLinear(e, t, z)
            f = DequantizeLinear(f8, t, z)
            p = GlobalAveragePool(f)
            g = Flatten(p)
            y = Gemm<transB=1>(g, m)
        }""",
        s=np.array(0.02, np.float32),
        z=np.array(128, np.uint8),
        t=np.array(0.05, np.float32),
        w8=_weights(CHANNELS, CHANNELS, 3, 3),
        v8=_weights(CHANNELS, CHANNELS, 1, 1),
        ws=_scales(CHANNELS),
        wz=np.zeros(CHANNELS, np.int8),
        b32=np.arange(CHANNELS, dtype=np.int32),
        bs=_scales(CHANNELS) * np.float32(0.02),
        bz=np.zeros(CHANNELS, np.int32),
        m=np.linspace(-1, 1, 10 * CHANNELS, dtype=np.float32).reshape(10, CHANNELS),
    )


def qlinear() -> onnx.ModelProto:
    """The quantised operators themselves, uint8 in and out."""
    return _model(
        """qlinear (uint8[1,64,8,8] x) => (uint8[1,64,8,8] y, uint8[1,64,8,8] sum) {
            y = QLinearConv<pads=[1,1,1,1]>(x, s, z, w, ws, wz, t, z, b)
            sum = com.microsoft.QLinearAdd(x, s, z, y, t, z, t, z)
        }""",
        s=np.array(0.02, np.float32),
        z=np.array(128, np.uint8),
        t=np.array(0.1, np.float32),
        w=_weights(CHANNELS, CHANNELS, 3, 3),
        ws=_scales(CHANNELS),
        wz=np.zeros(CHANNELS, np.int8),
        b=np.arange(CHANNELS, dtype=np.int32),
    )


def dynamic() -> onnx.ModelProto:
    """Quantised while it runs, as onnxruntime.quantization.quantize_dynamic writes it."""
    return _model(
        """dynamic (float[1,256] x) => (float[1,128] y) {
            q, s, z = DynamicQuantizeLinear(x)
            m = MatMulInteger(q, w, z)
            f = Cast<to=1>(m)
            k = Mul(s, ws)
            y = Mul(f, k)
        }""",
        w=_weights(256, 128),
        ws=np.array(0.01, np.float32),
    )


@pytest.mark.parametrize("architecture", sorted(ARCHITECTURES))
@pytest.mark.parametrize("make", [qdq, qlinear, dynamic], ids=lambda make: make.__name__)
def test_quantised_networks_equal_plain_onnx_runtime(
    make: Callable[[], onnx.ModelProto], architecture: str, tmp_path: Path
) -> None:
    model = make()
    source = written(model, tmp_path / "m.onnx")
    pack = compiled(source, tmp_path)
    generator = np.random.default_rng(6)
    (port,) = pack.manifest.inputs
    values = generator.standard_normal(port.shape) * 40 + 128 * (port.dtype == "uint8")
    inputs = {port.name: np.clip(values, -255, 255).astype(port.dtype)}
    session = open_resident(str(source))
    names = [output.name for output in session.get_outputs()]
    expected = dict(zip(names, session.run(names, inputs), strict=True))
    same(streamed(pack, inputs, architecture), expected, 1e-5, 1e-5)
    # Their weights stream: int8 ones a quarter of the size.
    assert pack.manifest.resident_pieces == []
    weights = sum(span.length for span in pack.manifest.spans)
    floats = sum(4 * np.prod(tensor.dims) for tensor in model.graph.initializer)
    assert 0 < weights < 0.5 * floats
