"""What a compiled pack is, for networks of every kind: the file format's promises as properties."""

import functools
import hashlib
import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from models.compiler import CompileOptions, compile_onnx
from models.compiler.cutting.chunks import default_chunk_bytes
from models.packs.folders import find_pack
from models.packs.manifest import checksum
from models.packs.pack import FILES, Pack, open_pack
from models.packs.records.pieces import TENSOR_ALIGNMENT, Operand
from models.packs.records.spans import SPAN_ALIGNMENT
from models.packs.target import host_target
from tests.examples import examples
from tests.models.chosen import check_dimensions
from tests.models.nets import CHUNK_BYTES, NETS, answers, inputs_for, parsed, residual, written

SPLIT = ("residual", "gemm", "gemm_by_column", "matmul", "shared_weight")


@dataclass(frozen=True)
class Compiled:
    source: Path
    pack: Pack


@pytest.fixture(scope="module")
def compiler(tmp_path_factory: pytest.TempPathFactory) -> "Compiler":
    return Compiler(tmp_path_factory.mktemp("nets"))


class Compiler:
    """Compiles each network once."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.compiled = functools.cache(self._compiled)

    def _compiled(self, name: str) -> Compiled:
        source = written(NETS[name](), self.folder / f"{name}.onnx")
        options = CompileOptions(chunk_bytes=CHUNK_BYTES)
        pack = compile_onnx(source, self.folder / "repository" / name, options)
        return Compiled(source, open_pack(pack))


@pytest.fixture(params=list(NETS))
def net(request: pytest.FixtureRequest, compiler: Compiler) -> Compiled:
    return compiler.compiled(str(request.param))


@pytest.fixture(params=SPLIT)
def split(request: pytest.FixtureRequest, compiler: Compiler) -> Compiled:
    return compiler.compiled(str(request.param))


def weight_operands(pack: Pack) -> Iterator[tuple[int, Operand]]:
    for number, piece in enumerate(pack.manifest.pieces):
        for operand in piece.inputs:
            if operand.kind == "span":
                yield number, operand


def test_pack_says_what_was_compiled(net: Compiled) -> None:
    manifest = net.pack.manifest
    data = net.source.read_bytes()
    assert manifest.source.file == net.source.name
    assert manifest.source.n_bytes == len(data)
    assert manifest.source.sha256 == hashlib.sha256(data).hexdigest()
    assert manifest.target == replace(host_target(), exact_weights=0)
    assert net.pack.name == net.source.stem
    assert net.pack.version == "1"
    source = onnx.load(net.source).graph
    assert [port.name for port in manifest.inputs] == [value.name for value in source.input]
    assert [port.name for port in manifest.outputs] == [value.name for value in source.output]


def test_folder_holds_four_files_and_nothing_else(net: Compiled) -> None:
    folder = net.pack.folder
    assert sorted(path.name for path in folder.iterdir()) == sorted([*FILES, "manifest.json"])
    assert [path.name for path in folder.parent.iterdir()] == ["1"]


def test_model_file_is_a_standard_model_with_the_same_answers(net: Compiled) -> None:
    onnx.load(net.pack.model_path)
    inputs = inputs_for({port.name: port.shape for port in net.pack.manifest.inputs})
    expected = answers(net.source, inputs)
    got = answers(net.pack.model_path, inputs, optimise=True)
    assert got.keys() == expected.keys()
    for name, array in expected.items():
        assert np.abs(got[name] - array).max() <= 1e-5, name


def test_every_range_of_the_model_file_lies_in_weights(net: Compiled) -> None:
    size = net.pack.weights_path.stat().st_size
    model = onnx.load(net.pack.model_path, load_external_data=False)
    external = [tensor for tensor in model.graph.initializer if tensor.external_data]
    for tensor in external:
        entries = {entry.key: entry.value for entry in tensor.external_data}
        assert entries["location"] == "weights.bin"
        assert (
            0 <= int(entries["offset"]) <= int(entries["offset"]) + int(entries["length"]) <= size
        )
        assert int(entries["offset"]) % TENSOR_ALIGNMENT == 0
    assert bool(external) == bool(net.pack.manifest.weight_bytes)


def test_model_file_and_pieces_read_the_same_bytes(net: Compiled) -> None:
    """Each weight of model.onnx is, byte for byte, what the pieces that use it read."""
    weights = net.pack.weights_path.read_bytes()
    whole = {
        tensor.raw_data
        for tensor in onnx.load(net.pack.model_path).graph.initializer
        if tensor.raw_data
    }
    for _, operand in weight_operands(net.pack):
        start = net.pack.manifest.spans[operand.index].file_offset + operand.offset
        part = weights[start : start + operand.n_bytes]
        assert any(part in tensor for tensor in whole)


def test_spans_tile_the_file_and_have_their_checksums(net: Compiled) -> None:
    weights = net.pack.weights_path.read_bytes()
    spans = net.pack.manifest.spans
    ends = list(itertools.accumulate(span.length for span in spans))
    assert [span.offset for span in spans] == [0, *ends][: len(spans)]
    in_file = {span.file_offset: span.file_end for span in spans}
    assert [*in_file, len(weights)] == [0, *in_file.values()]
    for span in spans:
        assert span.offset % SPAN_ALIGNMENT == span.length % SPAN_ALIGNMENT == 0
        assert checksum(weights[span.file_offset : span.file_end]) == span.checksum
    assert sorted(spans, key=lambda span: not span.resident) == list(spans)


def test_bytes_outside_tensors_are_zero(net: Compiled) -> None:
    weights = np.frombuffer(net.pack.weights_path.read_bytes(), np.uint8)
    unused = np.ones(len(weights), bool)
    for _, operand in weight_operands(net.pack):
        start = net.pack.manifest.spans[operand.index].offset + operand.offset
        unused[start : start + operand.n_bytes] = False
    assert not weights[unused].any()


def test_pieces_read_their_own_span_and_resident_ones(net: Compiled) -> None:
    manifest = net.pack.manifest
    streamed = [piece.span for piece in manifest.pieces if piece.span is not None]
    assert streamed == [i for i, span in enumerate(manifest.spans) if not span.resident]
    for number, operand in weight_operands(net.pack):
        span = manifest.spans[operand.index]
        assert span.resident or operand.index == manifest.pieces[number].span


def test_no_chunk_is_larger_than_a_layer(net: Compiled) -> None:
    manifest = net.pack.manifest
    for layer in manifest.layers:
        for piece in manifest.pieces[layer.first_piece : layer.end_piece]:
            if piece.span is not None and layer.end_piece - layer.first_piece > 1:
                assert manifest.spans[piece.span].length <= layer.weight_bytes


def test_chunks_of_a_layer_are_contiguous(split: Compiled) -> None:
    """Their weights are one range of the file, and their outputs are one value without a gap."""
    manifest = split.pack.manifest
    cut = [layer for layer in manifest.layers if layer.end_piece - layer.first_piece > 1]
    assert cut
    for layer in cut:
        numbers = range(layer.first_piece, layer.end_piece)
        pieces = [manifest.pieces[number] for number in numbers]
        spans = [manifest.spans[piece.span] for piece in pieces if piece.span is not None]
        assert len(spans) == len(pieces)
        for one, following in itertools.pairwise(spans):
            assert one.offset + one.length == following.offset
        assert all(span.length <= CHUNK_BYTES for span in spans)
        weights = [operand for number, operand in weight_operands(split.pack) if number in numbers]
        streamed = [part.n_bytes for part in weights if not manifest.spans[part.index].resident]
        assert sum(span.length for span in spans) == sum(streamed)
        (index,) = {piece.outputs[0].index for piece in pieces}
        end = 0
        for piece in pieces:
            (result,) = piece.outputs
            assert result.offset == end
            end += result.n_bytes
        assert end == manifest.values[index].n_bytes


def test_pieces_with_the_same_structure_share_a_graph(compiler: Compiler) -> None:
    """Equal blocks of a residual network need no more sessions than one of them."""
    manifest = compiler.compiled("residual").pack.manifest
    graphs = [manifest.pieces[layer.first_piece].graph for layer in manifest.layers]
    first, second, third, fourth = graphs[1:5]  # two blocks of two convolutions
    assert (first, second) == (third, fourth)
    assert len(manifest.graphs) < len(manifest.pieces) / 2
    for layer in manifest.layers:
        pieces = manifest.pieces[layer.first_piece : layer.end_piece]
        assert len({piece.graph for piece in pieces}) == 1  # all chunks have the same size


def test_graphs_are_distinct_models_without_weights_or_names(net: Compiled) -> None:
    assert len(set(net.pack.graphs)) == len(net.pack.graphs)
    for data in net.pack.graphs:
        graph = onnx.load_from_string(data).graph
        assert [value.name for value in graph.input] == [f"x{i}" for i in range(len(graph.input))]
        assert [value.name for value in graph.output] == [f"y{i}" for i in range(len(graph.output))]
        assert not any(node.name or node.doc_string for node in graph.node)
        assert all(math.prod(tensor.dims) <= 16 for tensor in graph.initializer)


def test_operands_have_the_dimensions_of_their_graph(net: Compiled) -> None:
    for piece in net.pack.manifest.pieces:
        check_dimensions(net.pack, piece)


def test_compiling_twice_gives_the_same_bytes(tmp_path: Path) -> None:
    source = written(residual(), tmp_path / "m.onnx")
    one, two = (
        compile_onnx(source, tmp_path / name / "m", CompileOptions(chunk_bytes=CHUNK_BYTES))
        for name in ("one", "two")
    )
    for name in FILES:
        assert (one / name).read_bytes() == (two / name).read_bytes(), name


def test_a_tensor_without_rows_is_on_no_rows(tmp_path: Path) -> None:
    model = parsed(
        """empty (float[1,16,4,4] x) => (float[1,16,0,4] y)
        <int64[1] end = {0}, int64[1] rows = {2}>
        { c = Conv(x, w)  none = Slice(c, end, end, rows)  y = Relu(none) }""",
        {"w": (16, 16, 1, 1)},
    )
    onnx.save(model, tmp_path / "m.onnx")
    pack = open_pack(compile_onnx(tmp_path / "m.onnx", tmp_path / "empty"))
    assert all(min(value.shape) > 0 for value in pack.manifest.row_values)


def test_one_matrix_joined_is_on_no_rows(tmp_path: Path) -> None:
    model = parsed("one (float[2,3] x) => (float[2,3] y) { y = Concat<axis=0>(x) }", {})
    pack = open_pack(compile_onnx(written(model, tmp_path / "m.onnx"), tmp_path / "one"))
    assert not pack.manifest.row_operators


def test_a_limit_that_holds_nothing_is_none(tmp_path: Path) -> None:
    """ONNX Runtime takes a Clip whose least value has no numbers, which stretches to no tensor."""
    text = "g (float[1,3,8,8] x) => (float[1,3,8,8] y) { y = Clip(x, e) }"
    source = written(parsed(text, {"e": (0,)}), tmp_path / "m.onnx")
    pack = open_pack(compile_onnx(source, tmp_path / "repository" / "m"))
    assert pack.manifest.outputs[0].shape == (1, 3, 8, 8)


def test_progress_names_every_step_once(tmp_path: Path) -> None:
    steps: list[str] = []

    def progress(step: str, detail: str = "") -> None:
        if not detail:
            steps.append(step)
        assert steps[-1] == step

    compile_onnx(written(NETS["gemm"](), tmp_path / "m.onnx"), tmp_path / "m", None, progress)
    assert steps == ["read", "optimise", "cut", "write", "check"]


@examples(6, many=150)
@given(chunk_bytes=st.integers(1, 300_000))
def test_any_chunk_limit_gives_a_pack_that_computes_the_same(
    chunk_bytes: int, compiler: Compiler
) -> None:
    reference = compiler.compiled("residual")
    options = CompileOptions(chunk_bytes=chunk_bytes, force=True)
    pack = open_pack(compile_onnx(reference.source, compiler.folder / "any" / "m", options))
    assert pack.manifest.weight_bytes == reference.pack.manifest.weight_bytes
    assert pack.manifest.parameters == reference.pack.manifest.parameters
    smallest = 64 * 9 * 4 * 16  # sixteen output channels: one block of the blocked layout
    assert pack.manifest.largest_chunk_bytes <= max(chunk_bytes + SPAN_ALIGNMENT, 4 * smallest)
    inputs = inputs_for({"image": (1, 3, 8, 8)})
    expected = answers(reference.pack.model_path, inputs)
    assert np.array_equal(answers(pack.model_path, inputs)["logits"], expected["logits"])


@given(weight_bytes=st.integers(0, 1 << 40))
def test_finest_chunk_is_a_256th_within_limits(weight_bytes: int) -> None:
    smallest, largest = default_chunk_bytes(0), default_chunk_bytes(1 << 60)
    chunk = default_chunk_bytes(weight_bytes)
    assert smallest <= chunk <= largest
    assert chunk in {smallest, largest, weight_bytes // 256}
    assert default_chunk_bytes(weight_bytes + 1) >= chunk


def test_parameters_are_trainable_numbers(compiler: Compiler) -> None:
    # Five convolutions of 3x3, their norms' gains and shifts, a classifier with a bias.
    expected = 64 * 3 * 9 + 4 * 64 * 64 * 9 + 5 * 2 * 64 + 10 * 64 + 10
    assert compiler.compiled("residual").pack.manifest.parameters == expected


def test_pack_is_found_by_its_model(net: Compiled) -> None:
    assert find_pack(net.pack.folder.parent) == net.pack.folder
    assert open_pack(net.pack.folder.parent) == net.pack


@pytest.mark.parametrize(
    "node", ["Concat<axis=1>(x)", "Concat<axis=0>(x, x)", "Slice(x, first, end)", "Split(x)"]
)
def test_what_moves_elements_of_a_matrix_moves_no_rows(tmp_path: Path, node: str) -> None:
    bounds = "<int64[1] first = {0}, int64[1] end = {1}>"
    text = f"m (float[2,40] x) => (float[n,m] y) {bounds} {{ z = {node} y = Relu(z) }}"
    source = written(parsed(text), tmp_path / "m.onnx")
    assert not open_pack(compile_onnx(source, tmp_path / "m")).manifest.row_operators


def test_what_is_turned_and_loses_unknown_axes_moves_no_rows(tmp_path: Path) -> None:
    text = """m (float[1,1,12] x, int64[1] axes) => (float[a,b] y) {
        turned = Transpose<perm=[1,0,2]>(x)
        z = Squeeze(turned, axes)
        y = Relu(z)
    }"""
    source = written(parsed(text), tmp_path / "m.onnx")
    assert not open_pack(compile_onnx(source, tmp_path / "m")).manifest.row_operators


def test_a_folder_may_be_relative_or_a_link(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ONNX Runtime reads weights of working files beside them only, by their names."""
    source = written(residual(), tmp_path / "residual.onnx")
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    monkeypatch.chdir(tmp_path)
    for folder in (Path("relative"), tmp_path / "link"):
        assert open_pack(compile_onnx(source, folder / "net")).manifest.pieces
