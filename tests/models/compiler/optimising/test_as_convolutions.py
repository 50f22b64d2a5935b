"""Dense layers on rows become convolutions that stream in chunks; splits of channels stay blocked."""

from collections import Counter
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from onnx.parser import parse_model

from models.compiler import CompileOptions
from models.network.names import NCHWC
from models.packs.manifest import Manifest
from models.packs.records.row_parts import RowOperator
from models.packs.target import host_target
from models.zoo.builder import SkeletonBuilder, ZooTensor
from models.zoo.classifiers import convnext, vit
from tests.models.nets import answers, filled, written
from tests.models.streamed import compiled, same, streamed

pytestmark = pytest.mark.skipif(host_target().block == 1, reason="no blocked layout here")


def check(model: onnx.ModelProto, folder: Path) -> Manifest:
    """Compare ``pre`` and ``2s`` with each other and with the source; return the manifest."""
    source = folder / "source.onnx"
    onnx.save(filled(model), source)
    pack = compiled(source, folder, CompileOptions(chunk_bytes=4096, force=True))
    (port,) = pack.manifest.inputs
    inputs = {port.name: np.random.default_rng(1).standard_normal(port.shape, np.float32)}
    held = streamed(pack, inputs, "pre")
    same(streamed(pack, inputs), held)
    (got,), (right,) = held.values(), answers(source, inputs).values()
    assert np.abs(got - right).max() <= 1e-5 * np.abs(right).max()
    return pack.manifest


def operators(manifest: Manifest) -> Counter[str]:
    return Counter(layer.operator for layer in manifest.layers)


def tokens(width: int) -> onnx.ModelProto:
    """Two dense layers with a GELU between on 16 rows, one of them by row."""
    b = SkeletonBuilder("tokens", 8)
    x = b.transpose(
        b.reshape(b.conv(b.image, width, 2, 2, pads=(0, 0, 0, 0)), 1, width, -1), 0, 2, 1
    )
    y = b.dense(b.gelu(b.dense(b.layer_norm(x), 4 * width)), width)
    return b.model(b.add(x, y))


def test_layers_on_rows_are_convolutions_in_chunks(tmp_path: Path) -> None:
    manifest = check(tokens(32), tmp_path)
    found = operators(manifest)
    assert found["Conv"] == 3
    assert not found["Gemm"] + found["MatMul"] + found["FusedMatMul"]
    # 4 x 32 x 32 numbers a layer, cut in chunks of 4 KiB or of the fewest channels.
    assert manifest.largest_chunk_bytes <= 8192


def test_layers_whose_channels_fill_no_block_stay_as_they_are(tmp_path: Path) -> None:
    found = operators(check(tokens(20), tmp_path))
    assert found["Gemm"] + found["MatMul"] + found["FusedMatMul"] == 2


def halves(b: SkeletonBuilder, x: ZooTensor) -> ZooTensor:
    """What YOLOv8 calls C2f."""
    first, second = b.split(b.silu(b.conv(x, 32, 1)), (16, 16))
    third = b.add(second, b.silu(b.conv(second, 16, 3)))
    return b.silu(b.conv(b.concat(first, second, third), 32, 1))


def test_halves_of_channels_stay_blocked(tmp_path: Path) -> None:
    b = SkeletonBuilder("halves", 16)
    x = halves(b, b.silu(b.conv(b.image, 32, 3, 2)))
    found = operators(check(b.model(x), tmp_path))
    assert found["Split"] == 1
    assert not found["ReorderInput"]
    assert found["ReorderOutput"] == 1  # for the answer


@pytest.mark.slow
@pytest.mark.parametrize("name", ["convnext", "vit"])
def test_small_networks(name: str, tmp_path: Path) -> None:
    made = convnext((1, 2, 1), (32, 64, 96), 64) if name == "convnext" else vit(128, 2, 64)
    found = operators(check(made, tmp_path))
    assert found["Gemm"] == 1  # the last layer, on one row


# Transposed convolutions as convolutions: the same numbers, in the blocked layout, on rows.

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
    assert kinds == {NCHWC} or host_target().block == 1
    on_rows = {piece for item in pack.manifest.row_operators for piece in _pieces(item)}
    assert on_rows == {*range(len(pack.manifest.pieces))}
    inputs = {"x": np.random.default_rng(5).standard_normal((1, 3, 24, 20)).astype(np.float32)}
    same(streamed(pack, inputs), answers(source, inputs), 1e-5, 1e-5)


def _pieces(item: RowOperator) -> range:
    return range(item.first_piece, item.end_piece)
