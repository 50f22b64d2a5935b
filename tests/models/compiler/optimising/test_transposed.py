"""Transposed convolutions as convolutions: the same numbers, in the blocked layout, on rows."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from onnx.parser import parse_model

from models.compiler.analysis.graph import NCHWC_DOMAIN
from models.packs.records.row_parts import RowOperator
from models.packs.target import host_target
from tests.models.nets import answers, written
from tests.models.streamed import compiled, same, streamed

# kernel, stride, padding, output padding, channels in and out
SHAPES = [
    (2, 2, (0, 0, 0, 0), (0, 0), 24, 24),
    (4, 2, (1, 1, 1, 1), (0, 0), 16, 5),
    (3, 2, (1, 1, 1, 1), (1, 1), 32, 16),
    (3, 2, (1, 0, 0, 1), (0, 0), 8, 3),
    (16, 2, (7, 7, 7, 7), (0, 0), 16, 1),
    (8, 4, (2, 2, 2, 2), (0, 0), 1, 1),
    (3, 1, (1, 1, 1, 1), (0, 0), 20, 16),
    (2, 3, (0, 0, 0, 0), (1, 0), 4, 7),
    (3, 2, 'auto_pad="SAME_UPPER"', (0, 0), 16, 5),
    (5, 2, "output_shape=[48,40]", (0, 0), 16, 5),
]


def network(
    kernel: int,
    stride: int,
    pads: tuple[int, ...] | str,
    more: tuple[int, ...],
    given: int,
    made: int,
) -> onnx.ModelProto:
    listed = pads if isinstance(pads, str) else f"pads=[{','.join(map(str, pads))}]"
    model = parse_model(
        f"""<ir_version: 8, opset_import: ["" : 17]> net (float[1,3,24,20] x) => (float[a,b,c,d] y) {{
            h = Conv<pads=[1,1,1,1]>(x, v)
            r = Relu(h)
            t = ConvTranspose<kernel_shape=[{kernel},{kernel}], strides=[{stride},{stride}],
                {listed}, output_padding=[{more[0]},{more[1]}]>(r, w, b)
            y = Sigmoid(t)
        }}"""
    )
    generator = np.random.default_rng(kernel + stride)
    shapes = {"v": (given, 3, 3, 3), "w": (given, made, kernel, kernel), "b": (made,)}
    for name, shape in shapes.items():
        array = generator.standard_normal(shape).astype(np.float32)
        model.graph.initializer.append(numpy_helper.from_array(array / 4, name))
    return onnx.shape_inference.infer_shapes(model)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_what_a_transposed_convolution_makes_stays_the_same(
    shape: tuple[int, int, tuple[int, ...] | str, tuple[int, ...], int, int], tmp_path: Path
) -> None:
    source = written(network(*shape), tmp_path / "m.onnx")
    pack = compiled(source, tmp_path)
    nodes = [node for data in pack.graphs for node in onnx.load_from_string(data).graph.node]
    kinds = {node.domain for node in nodes if "Conv" in node.op_type}
    assert kinds == {NCHWC_DOMAIN} or host_target().block == 1
    on_rows = {piece for item in pack.manifest.row_operators for piece in _pieces(item)}
    assert on_rows == {*range(len(pack.manifest.pieces))}
    inputs = {"x": np.random.default_rng(5).standard_normal((1, 3, 24, 20)).astype(np.float32)}
    same(streamed(pack, inputs), answers(source, inputs), 1e-5, 1e-5)


def _pieces(item: RowOperator) -> range:
    return range(item.first_piece, item.end_piece)
