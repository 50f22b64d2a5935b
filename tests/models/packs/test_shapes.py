"""Packs of several shapes: one folder over shared weights; what is wrong is refused."""

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx.parser
import pytest

from models.compiler.compile import CompileOptions, compile_onnx
from models.errors import CompileError, OnnxError, PackError
from models.packs.manifest import read_manifest, without_checksum, write_manifest
from models.packs.pack import added_file_bytes, open_pack, read_pack
from models.packs.shapes import ShapeMatch, UnknownShapeError
from tests.models.refusal import refuses


def weights_text(count: int) -> str:
    """Return so many weights_text that differ."""
    return ", ".join(f"{value:.4f}" for value in np.random.default_rng(1).normal(size=count))


# A network of texts: a vector for each token, of those that the mask leaves.
TOKENS = f"""
<ir_version: 9, opset_import: ["" : 17]>
tokens (int64[b, n] input_ids, int64[b, n] attention_mask)
  => (float[b, n, 8] last_hidden_state, float[b, 8] sum)
<float[64, 8] table = {{{weights_text(512)}}}, float[8, 8] w = {{{weights_text(64)}}},
 int64[1] last = {{2}}, int64[1] axes = {{1}}>
{{
  rows = Gather(table, input_ids)
  mask = Cast <to = 1> (attention_mask)
  column = Unsqueeze(mask, last)
  masked = Mul(rows, column)
  last_hidden_state = MatMul(masked, w)
  sum = ReduceSum <keepdims = 0> (last_hidden_state, axes)
}}
"""
# Larger where it is wider: its constant follows from the shape.
WIDE = """
<ir_version: 9, opset_import: ["" : 17]>
wide (float[1, n] x) => (float[1, n] y)
{
  shape = Shape(x)
  ones = ConstantOfShape <value = float[1] {2}> (shape)
  half = Exp(ones)
  y = Mul(x, half)
}
"""


def source(folder: Path, text: str = TOKENS, name: str = "tokens") -> Path:
    """Write the network ``text``."""
    path = folder / f"{name}.onnx"
    path.write_bytes(onnx.parser.parse_model(text).SerializeToString())
    return path


def compiled(folder: Path, shapes: Any, path: Path | None = None, **options: Any) -> Path:
    """Compile a network in ``shapes``; return the folder of its pack."""
    path = path or source(folder)
    return compile_onnx(path, folder / path.stem, CompileOptions(shapes=shapes, **options))


@pytest.fixture(scope="module")
def module_pack(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A pack of three lengths."""
    return compiled(tmp_path_factory.mktemp("pack"), {"tokens": (4, 16, 8)})


@pytest.fixture
def pack(module_pack: Path, tmp_path: Path) -> Path:
    """The same, to be changed."""
    return shutil.copytree(module_pack, tmp_path / "tokens" / "1")


def lengths(pack: Path) -> list[tuple[int, ...]]:
    """Return the shapes of the first input, the largest first."""
    opened = read_pack(pack)
    return [shape.manifest.inputs[0].shape for shape in (opened, *opened.others)]


def test_shapes_lie_in_one_folder_the_largest_first(pack: Path) -> None:
    assert lengths(pack) == [(1, 16), (1, 8), (1, 4)]
    opened = read_pack(pack)
    assert [shape.path.name for shape in (opened, *opened.others)] == [
        "manifest.json",
        "shape-1.json",
        "shape-2.json",
    ]
    single = compiled(
        pack.parent.parent / "..", {"tokens": (16,)}, source(pack.parents[1], name="x")
    )
    assert (pack / "weights.bin").read_bytes() == (single / "weights.bin").read_bytes()
    added = added_file_bytes(opened)
    assert sum(added) == sum((pack / name).stat().st_size for name in (*STORE, *SHAPES))


STORE, SHAPES = ("weights.bin", "pieces.bin"), ("manifest.json", "shape-1.json", "shape-2.json")


def test_a_shape_opens_by_its_file(module_pack: Path) -> None:
    middle = open_pack(module_pack / "shape-1.json")
    assert (middle.shape_index, middle.others, middle.manifest.inputs[0].shape) == (1, (), (1, 8))
    assert not open_pack(module_pack / "manifest.json").others
    with refuses(PackError, "shape-3.json"):
        open_pack(module_pack / "shape-3.json")


def test_several_names_make_all_pairs(tmp_path: Path) -> None:
    pack = compiled(tmp_path, {"tokens": (4, 8), "batch": (1, 2)})
    assert lengths(pack) == [(2, 8), (2, 4), (1, 8), (1, 4)] or lengths(pack)[0] == (2, 8)
    assert len(set(lengths(pack))) == 4


def test_an_input_has_several_shapes(tmp_path: Path) -> None:
    path = source(tmp_path, WIDE, "wide")
    assert lengths(compiled(tmp_path, {"x": ((1, 4), (1, 6))}, path)) == [(1, 6), (1, 4)]


def test_a_dimension_may_have_one_length(tmp_path: Path) -> None:
    pack = compiled(tmp_path, {"n": (4,)})
    assert lengths(pack) == [(1, 4)]
    assert not (pack / "shape-1.json").exists()


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        ({"words": (4, 8)}, "no input called words"),
        ({"tokens": (4, 4)}, "there twice"),
        ({"tokens": tuple(range(1, 18))}, "16 are the most"),
        ({"tokens": ((4, 8), (8, 4))}, "no input called tokens"),
    ],
)
def test_shapes_that_cannot_be_are_refused(tmp_path: Path, shapes: Any, message: str) -> None:
    with refuses(OnnxError, message):
        compiled(tmp_path, shapes)


def test_different_weights_give_a_warning_or_an_error(tmp_path: Path) -> None:
    path, messages = source(tmp_path, WIDE, "wide"), list[str]()
    pack = compiled(tmp_path, {"n": (2000, 3000)}, path, warn=messages.append)
    warnings = [text for text in messages if "of its own" in text]
    assert (pack / "weights.bin").stat().st_size >= 5000 * 4
    assert len(warnings) == 1
    assert "[1, 2000]" in warnings[0]
    with refuses(CompileError, "[1, 2000]", "--same-weights"):
        compiled(tmp_path, {"n": (2000, 3000)}, path, force=True, same_weights=True)


# What is wrong with the record of a shape.


def changed(pack: Path, change: Callable[[Any], Any]) -> None:
    """Change the record of the second shape, and what the first says of it."""
    path = pack / "shape-1.json"
    write_manifest(change(read_manifest(without_checksum(path.read_bytes())[0])), path)
    relisted(pack)


def relisted(pack: Path) -> None:
    """Have manifest.json say what shape-1.json is now."""
    from models.compiler.writing.describe import file_records

    path = pack / "manifest.json"
    first = read_manifest(without_checksum(path.read_bytes())[0])
    write_manifest(replace(first, files={**first.files, **file_records(pack)}), path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda shape: replace(shape, name="other"), "name"),
        (lambda shape: replace(shape, source=replace(shape.source, file="b.onnx")), "source"),
        (lambda shape: replace(shape, files={}), "files: expected"),
        (lambda shape: replace(shape, inputs=shape.inputs[:1]), "inputs"),
        (
            lambda shape: replace(
                shape, spans=tuple(replace(span, checksum=16 * "0") for span in shape.spans)
            ),
            "not the same",
        ),
        (
            lambda shape: replace(
                shape, graphs=(replace(shape.graphs[0], offset=1 << 30), *shape.graphs[1:])
            ),
            "graphs.0",
        ),
    ],
)
def test_a_shape_of_another_pack_is_refused(
    pack: Path, change: Callable[[Any], Any], message: str
) -> None:
    changed(pack, change)
    with refuses(PackError, "shape-1.json", message):
        read_pack(pack)


def test_the_same_shape_twice_is_refused(pack: Path) -> None:
    (pack / "shape-1.json").write_bytes((pack / "shape-2.json").read_bytes())
    relisted(pack)
    with refuses(PackError, "shape-2.json", "the same"):
        read_pack(pack)


def test_a_damaged_or_missing_record_is_refused(pack: Path) -> None:
    path = pack / "shape-2.json"
    text = path.read_bytes()
    path.write_bytes(text.replace(b"Gather", b"Gathes"))
    with refuses(PackError, "shape-2.json", "damaged"):
        read_pack(pack)
    path.unlink()
    with refuses(PackError, "shape-2.json", "missing"):
        read_pack(pack)


def test_a_gap_in_their_numbers_is_refused(pack: Path) -> None:
    path = pack / "manifest.json"
    first = read_manifest(without_checksum(path.read_bytes())[0])
    files = {name: record for name, record in first.files.items() if name != "shape-1.json"}
    write_manifest(replace(first, files=files), path)
    with refuses(PackError, "manifest.json", "files: expected", "shape-1.json"):
        read_pack(pack)


# Which shape a request takes.


def inputs(count: int) -> dict[str, tuple[int, ...]]:
    return {"input_ids": (1, count), "attention_mask": (1, count)}


def test_a_request_has_its_shape_or_the_next_longer_one(module_pack: Path) -> None:
    shapes = read_pack(module_pack).shapes
    assert shapes.find(inputs(8)) == ShapeMatch(1)
    assert shapes.find(inputs(1)) == ShapeMatch(2, 1)
    assert shapes.find(inputs(9)) == ShapeMatch(0, 9)
    assert shapes.find({"input_ids": (1, 4)}) == ShapeMatch(0)  # refused there: one is missing
    for wrong in (inputs(17), inputs(0), {"input_ids": (1, 4), "attention_mask": (1, 8)}):
        with pytest.raises(UnknownShapeError, match=r"\[1, 16\]; \[1, 8\]; \[1, 4\]"):
            shapes.find(wrong)
    assert [port.shape for port in shapes.inputs] == [(1, -1), (1, -1)]
    assert [port.shape for port in shapes.outputs] == [(1, -1, 8), (1, 8)]


def test_what_is_padded_is_cut(module_pack: Path) -> None:
    shapes = read_pack(module_pack).shapes
    match = shapes.find(inputs(3))
    ids = np.arange(1, 4).reshape(1, 3)
    padded = shapes.padded(match, {"input_ids": ids, "attention_mask": np.ones_like(ids)})
    assert padded["input_ids"].tolist() == [[1, 2, 3, 0]]
    assert padded["attention_mask"].tolist() == [[1, 1, 1, 0]]
    outputs = {"last_hidden_state": np.zeros((1, 4, 8)), "sum": np.zeros((1, 8))}
    cut = shapes.cut(match, outputs)
    assert [array.shape for array in cut.values()] == [(1, 3, 8), (1, 8)]


def test_without_a_mask_nothing_is_padded(tmp_path: Path) -> None:
    path = source(tmp_path, WIDE, "wide")
    shapes = read_pack(compiled(tmp_path, {"n": (4, 6)}, path)).shapes
    with pytest.raises(
        UnknownShapeError, match=r"'x' is \[1, 5\]; the model takes \[1, 6\]; \[1, 4\]"
    ):
        shapes.find({"x": (1, 5)})
