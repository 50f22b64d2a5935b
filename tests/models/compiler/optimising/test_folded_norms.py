"""Batch norms that become part of convolutions in their files: with the bits that ONNX Runtime makes."""

from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import numpy_helper
from onnx.parser import parse_model

from models.compiler.optimising.by_onnxruntime import optimised
from models.compiler.optimising.folded_norms import FoldNorms
from models.graphs.graph import Graph, with_weights_in
from models.graphs.reader import graph_of


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


def constants(graph: Graph) -> list[bytes]:
    """Return what the nodes of ``graph`` read, one after the other."""
    nodes = sorted(graph.nodes, key=lambda node: node.output)
    names = (name for node in nodes for name in node.reads)
    return [graph.constants[name].tobytes() for name in names if name in graph.constants]


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
    results = []
    for first in FIRST:
        folder = tmp_path / str(first)
        folder.mkdir()
        source = folder / "source.onnx"
        graph = with_weights_in(graph_of(network(text)), source.with_suffix(".data"))
        if first:
            graph = FoldNorms(graph, folder).run()
            left = [node.operator for node in graph.nodes].count("BatchNormalization")
            assert left == (not folded)
        level = ort.GraphOptimizationLevel.ORT_ENABLE_BASIC
        results.append(constants(optimised(graph, source, folder / "folded.onnx", level, source)))
    folded_first, reference = results
    assert folded_first == reference
