"""What inputs of layers on bytes may be, left out or of fewer numbers: the same bits, or an error."""

from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper

from pipeline.export_c.export import ExportOptions, export_c
from pipeline.export_c.network.pack_network import ExportError
from tests.pipeline.export_c.byte_graphs import MICROSOFT, Graph, same_bits
from tests.pipeline.export_c.compiled import TARGETS, needs_compiler, packed

pytestmark = needs_compiler


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dtype", ["uint8", "int8"])
def test_zero_points_that_are_left_out(dtype: str, target: str, tmp_path: Path) -> None:
    """They are 0, of the type of the bytes: before floats, in tables, and for who gives or gets bytes."""
    g, shape = Graph(dtype, 7), (1, 3, 5, 7)
    scale = g.constant(np.float32(0.02))
    kind = getattr(TensorProto, dtype.upper())
    g.add("QuantizeLinear", "q", "x", scale, output_dtype=kind)
    g.add("MaxPool", "m", "q", kernel_shape=[2, 2])
    for operator, made in (("QLinearLeakyRelu", "l"), ("QLinearSigmoid", "s")):
        g.add(operator, made, "q", scale, "", scale, "", domain=MICROSOFT)
    g.scales = dict.fromkeys("mls", (scale,))
    pack = packed(g.model(shape, [*"mls"], opset=21), tmp_path, target)
    same_bits(pack, tmp_path, shape)
    network = export_c(pack, ExportOptions(byte_ports=True)).api.network
    found = {
        port.name: network.quantised[port.name] for port in (*network.inputs, *network.outputs)
    }
    assert {(how.dtype, how.plain_zero) for how in found.values()} == {(dtype, 0)}


def test_what_a_split_makes_of_an_output_stays_a_float(tmp_path: Path) -> None:
    """Others read the rest of it as floats."""
    g, shape = Graph("uint8", 1), (1, 4, 5, 7)
    source = g.quantized()
    g.add("MaxPool", "m", source, kernel_shape=[2, 2])
    g.scales["m"] = g.scales[source]
    model = g.model(shape, ["m"])
    model.graph.node[-1].output[0] = "floats"
    model.graph.node.append(helper.make_node("Split", ["floats"], ["m_out", "rest"], axis=1))
    model.graph.node.append(helper.make_node("Neg", ["rest"], ["y"]))
    model.graph.output.append(helper.make_tensor_value_info("y", TensorProto.FLOAT, None))
    exported = export_c(packed(model, tmp_path), ExportOptions(byte_ports=True))
    assert set(exported.api.network.quantised) == {"x"}


def test_biases_and_parts_of_products(tmp_path: Path) -> None:
    """A bias is broadcast to rows; products whose results are joined are one only if they are alike."""
    g, shape = Graph("uint8", 8), (5, 4)
    source = g.quantized()
    names = []
    for number, bias in enumerate([(), (1,), (1, 1), (5,), (1, 5), (5,)]):
        to = g.scaled(f"y{number}", 0.01) if number != 5 else g.scales["y4"]
        given = (*g.scales[source], *g.weights((4, 5), 5), g.bias(bias), *to)
        names.append(g.add("QGemm", f"y{number}", source, *given, domain=MICROSOFT))
    g.scales["y5"] = g.scales["y4"]
    for made, parts, axis in (("a", names[:2], 1), ("b", names[2:4], 0), ("c", names[4:], 1)):
        g.add("Concat", made, *parts, axis=axis)
        g.scales[made] = g.scales[parts[0]]
    compiled = same_bits(packed(g.model(shape, [*"abc"]), tmp_path), tmp_path, shape)
    kernels = [step.kernel for step in compiled.exported.memory.steps]
    assert kernels.count("convolve_bytes") == 5


@pytest.mark.parametrize("bias", [(5, 1), (5, 5)])
def test_a_bias_for_each_row_is_refused(bias: tuple[int, ...], tmp_path: Path) -> None:
    g, shape = Graph("uint8", 8), (5, 4)
    source = g.quantized()
    given = (*g.scales[source], *g.weights((4, 5), 5), g.bias(bias), *g.scaled("y"))
    g.add("QGemm", "y", source, *given, domain=MICROSOFT)
    with pytest.raises(ExportError, match=r"a bias \[5, \d\] of 5 filters"):
        export_c(packed(g.model(shape, ["y"]), tmp_path), ExportOptions())


def test_windows_that_onnx_runtime_shifts_are_refused(tmp_path: Path) -> None:
    g, shape = Graph("uint8", 1), (1, 2, 7, 7)
    g.add("MaxPool", "m", g.quantized(), kernel_shape=[1, 1], strides=[3, 3], auto_pad="SAME_UPPER")
    g.scales["m"] = g.scales["q"]
    with pytest.raises(ExportError, match=r"auto_pad with strides \[3, 3\] beyond a kernel"):
        export_c(packed(g.model(shape, ["m"]), tmp_path), ExportOptions())
