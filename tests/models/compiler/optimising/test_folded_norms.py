"""Batch norms that become part of convolutions in their files: with the bits that ONNX Runtime makes."""

from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import numpy_helper
from onnx.parser import parse_model

from models.compiler.optimising.by_onnxruntime import move_weights, optimise_model
from models.compiler.optimising.folded_norms import FoldNorms
from models.graphs.file import bring_inside
from models.network.names import op_of


def network(text: str) -> onnx.ModelProto:
    """Return a network of ``text``; w, v: weights; the other constants are vectors, one above zero."""
    head = '<ir_version: 8, opset_import: ["" : 17]> net (float[1,9,6,6] x) => (float[a,b,c,d] y)'
    model = parse_model(f"{head} {{ {text} }}")
    generator = np.random.default_rng(2)
    for name in ("w", "v", "b", "scale", "shift", "mean", "var"):
        shape = {"w": (32, 9, 3, 3), "v": (32, 32, 1, 1)}.get(name, (32,))
        array = generator.standard_normal(shape).astype(np.float32)
        array = np.abs(array) if name == "var" else array
        model.graph.initializer.append(numpy_helper.from_array(array, name))
    return model


def constants(model: onnx.ModelProto, folder: Path) -> list[bytes]:
    """Return what the nodes of ``model`` read, one after the other."""
    for tensor in model.graph.initializer:
        bring_inside(tensor, folder)
    arrays = {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    return [
        arrays[name].tobytes() for node in model.graph.node for name in node.input if name in arrays
    ]


#: Whether our pass runs before ONNX Runtime.
FIRST = (True, False)
NORM = "BatchNormalization<epsilon=0.01>"


@pytest.mark.parametrize(
    ("text", "folded"),
    [
        (f"a = Conv(x, w)  y = {NORM}(a, scale, shift, mean, var)", True),
        (f"a = Conv(x, w, b)  n = {NORM}(a, scale, shift, mean, var)  y = Relu(n)", True),
        (f"a = Conv(x, w)  s = Neg(scale)  t = Neg(shift)  y = {NORM}(a, s, t, mean, var)", True),
        (f"a = Conv(x, w)  c = Relu(a)  y = {NORM}(c, scale, shift, mean, var)", False),
        (f"a = Conv(x, w)  n = {NORM}(a, scale, shift, mean, var)  y = Add(a, n)", False),
        (
            f"c = Conv(x, w)  r = Conv(x, w)  n = {NORM}(c, scale, shift, mean, var)  y = Add(n, r)",
            False,
        ),
    ],
    ids=["no bias", "bias", "the other sign", "in between", "two readers", "shared weights"],
)
def test_it_equals_onnx_runtime(text: str, folded: bool, tmp_path: Path) -> None:
    models = []
    for first in FIRST:
        folder = tmp_path / str(first)
        folder.mkdir()
        model, source = network(text), folder / "source.onnx"
        move_weights(model, source.with_suffix(".data"))
        if first:
            assert FoldNorms(model, folder).run() == folded
            left = [op_of(node) for node in model.graph.node].count("BatchNormalization")
            assert left == (not folded)
        level = ort.GraphOptimizationLevel.ORT_ENABLE_BASIC
        models.append(optimise_model(model, source, folder / "folded.onnx", level, source))
        models[-1].graph.node.sort(key=lambda node: node.output[0])
    folded_first, reference = (
        constants(model, tmp_path / str(first)) for model, first in zip(models, FIRST, strict=True)
    )
    assert folded_first == reference
