"""Zero points that are left out, or written: packs compute with those of the standard."""

from pathlib import Path

import numpy as np
import pytest
from onnx import numpy_helper

from models.compiler import CompileOptions, compile_onnx
from models.packs.pack import open_pack
from models.packs.target import host_target, named_target
from tests.models.nets import answers, inputs_for, parsed, written


@pytest.mark.parametrize("target", ["cpu", "cuda-sm72"])
@pytest.mark.parametrize("opset", [17, 21])
@pytest.mark.parametrize("zero", ["", ", zero"], ids=["left out", "written"])
def test_bytes_with_a_sign_keep_it_where_they_move(
    opset: int, target: str, zero: str, tmp_path: Path
) -> None:
    """ONNX Runtime would quantise to bytes without one behind Transpose, or to no type."""
    model = parsed(
        f"""g (float[1,3,6,4] x) => (float y) {{
            q = QuantizeLinear(x, scale, zero)
            m = MaxPool<kernel_shape=[2,2]>(q)
            f = DequantizeLinear(m, scale{zero})
            y = Transpose<perm=[0,2,3,1]>(f)
        }}"""
    )
    model.opset_import[0].version = opset
    constants = {"scale": np.float32(0.02), "zero": np.int8(0)}
    for name, number in constants.items():
        model.graph.initializer.append(numpy_helper.from_array(np.array(number), name))
    source = written(model, tmp_path / "source.onnx")
    wanted = host_target() if target == "cpu" else named_target(target)
    made = compile_onnx(source, tmp_path / "pack", CompileOptions(target=wanted))
    pack, inputs = open_pack(made, wanted), inputs_for({"x": (1, 3, 6, 4)})
    expected = answers(source, inputs)["y"]
    np.testing.assert_array_equal(answers(pack.model_path, inputs)["y"], expected)
    assert (expected < 0).any()
