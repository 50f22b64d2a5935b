"""Layers in coarser chunks: what can be chosen, and that every choice gives the same bits."""

import contextlib
import functools
import itertools
from collections.abc import Callable
from dataclasses import replace

import onnx
import pytest

from models.compiler import CompileOptions, compile_onnx
from models.packs.pack import Pack, open_pack
from models.packs.target import host_target
from pipeline.program.choice import (
    choose_pieces,
    chunk_sizes,
    finest_positions,
    largest_unit_bytes,
    streamed_bytes,
)
from pipeline.program.program import Program
from pipeline.program.steps import scratch_bytes
from tests.models.chosen import WholeMemory, check_dimensions
from tests.models.nets import NETS, inputs_for, parsed, written


def strided() -> onnx.ModelProto:
    """3x3 with strides and an activation, 1x1, and channels that are no multiple of a block."""
    return parsed(
        """strided (float[1,40,13,13] x) => (float[1,75,7,7] y) {
            a = Conv<pads=[1,1,1,1], strides=[2,2]>(x, wa, ba)
            b = LeakyRelu<alpha=0.1>(a)
            c = Conv(b, wc, bc)
            d = Sigmoid(c)
            y = Conv(d, wy, by)
        }""",
        {"wa": (208, 40, 3, 3), "ba": (208,), "wc": (144, 208, 1, 1), "bc": (144,)}
        | {"wy": (75, 144, 1, 1), "by": (75,)},
    )


def summed() -> onnx.ModelProto:
    """A convolution that adds a tensor and then activates, which ONNX Runtime makes one node."""
    return parsed(
        """summed (float[1,64,7,7] x) => (float[1,160,7,7] y) {
            a = Conv(x, wa)
            b = Conv<pads=[1,1,1,1]>(x, wb, bb)
            s = Add(a, b)
            y = Relu(s)
        }""",
        {"wa": (160, 64, 1, 1), "wb": (160, 64, 3, 3), "bb": (160,)},
    )


def row() -> onnx.ModelProto:
    """Fully connected layers whose rows are no multiple of anything."""
    return parsed(
        """row (float[1,300] x) => (float[1,301] y) {
            a = Gemm<transB=1>(x, wa, ba)
            b = Relu(a)
            y = Gemm<transB=1>(b, wy)
        }""",
        {"wa": (1024, 300), "ba": (1024,), "wy": (301, 1024)},
    )


def plain() -> onnx.ModelProto:
    """One-dimensional convolutions: the blocked layout has none."""
    return parsed(
        """plain (float[1,24,40] x) => (float[1,140,5] y) {
            a = Conv<pads=[1,1]>(x, wa, ba)
            b = Relu(a)
            y = Conv<strides=[8]>(b, wy)
        }""",
        {"wa": (256, 24, 3), "ba": (256,), "wy": (140, 256, 3)},
    )


MODELS: dict[str, Callable[[], onnx.ModelProto]] = {
    **{
        name: NETS[name]
        for name in ("residual", "gemm_by_column", "matmul", "shared_weight", "concat")
    },
    **{item.__name__: item for item in (strided, summed, row, plain)},
}
FINE = (4_000, 20_000)
#: What is computed as a plain product of matrices is joined only where it gave the same bits.
CERTAIN = ("residual", "gemm_by_column", "matmul", "shared_weight", "strided", "summed", "row")


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, int], Pack]:
    folder = tmp_path_factory.mktemp("choice")

    @functools.cache
    def compile_one(name: str, chunk_bytes: int) -> Pack:
        source = written(MODELS[name](), folder / f"{name}.onnx")
        options = CompileOptions(chunk_bytes=chunk_bytes, version=chunk_bytes)
        return open_pack(compile_onnx(source, folder / "repository" / name, options))

    return compile_one


@pytest.fixture(params=zip(MODELS, itertools.cycle(FINE)), ids=lambda item: f"{item[0]}-{item[1]}")
def pack(request: pytest.FixtureRequest, compiled: Callable[[str, int], Pack]) -> Pack:
    return compiled(*request.param)


def test_every_choice_gives_the_same_bits(pack: Pack) -> None:
    program = Program.as_compiled(pack)
    inputs = inputs_for({port.name: port.shape for port in program.inputs})
    with contextlib.closing(WholeMemory(pack)) as memory:
        finest = memory.run(program.pieces, inputs)
        for limit in (*chunk_sizes(program), None):
            assert memory.run(choose_pieces(program, limit), inputs) == finest, limit
        for alternative in program.alternatives:
            alone = replace(program, alternatives=(alternative,))
            assert memory.run(choose_pieces(alone, None), inputs) == finest


@pytest.mark.skipif(host_target().block == 1, reason="no blocked layout here")
@pytest.mark.parametrize("name", CERTAIN)
def test_every_layer_in_chunks_can_be_whole(
    name: str, compiled: Callable[[str, int], Pack]
) -> None:
    program = Program.as_compiled(compiled(name, FINE[0]))
    cut = [layer for layer in program.layers if layer.end_piece - layer.first_piece > 1]
    assert cut
    whole = {
        (item.first_piece, item.end_piece) for item in program.alternatives if len(item.joined) == 1
    }
    assert whole == {(layer.first_piece, layer.end_piece) for layer in cut}
    uncut = len(program.pieces) - sum(layer.end_piece - layer.first_piece for layer in cut)
    assert len(choose_pieces(program, None)) == uncut + len(cut)


def test_no_piece_is_larger_than_was_asked(pack: Pack) -> None:
    program = Program.as_compiled(pack)
    sizes = chunk_sizes(program)
    for limit in sizes:
        largest = largest_unit_bytes(program, choose_pieces(program, limit))
        assert largest <= max(limit, program.largest_chunk_bytes)
    counts = [len(choose_pieces(program, limit)) for limit in (0, *sizes)]
    assert counts == sorted(set(counts), reverse=True)
    assert choose_pieces(program, 0) == program.pieces
    for limit in sizes:
        assert choose_pieces(program, limit - 1) != choose_pieces(program, limit)
    assert choose_pieces(program, None) == choose_pieces(program, max(sizes, default=0))


def test_a_choice_streams_every_span_once_and_in_order(pack: Pack) -> None:
    program = Program.as_compiled(pack)
    streamed = [number for number, span in enumerate(program.spans) if not span.resident]
    for limit in (*chunk_sizes(program), None):
        pieces = choose_pieces(program, limit)
        spans = [
            number
            for piece in pieces
            if piece.span is not None
            for number in range(piece.span, piece.span + piece.n_spans)
        ]
        assert spans == streamed
        assert sum(streamed_bytes(program, piece) for piece in pieces) == sum(
            program.spans[number].length for number in streamed
        )
        positions = finest_positions(program, pieces)
        assert [i for run in positions for i in run] == list(range(len(program.pieces)))
        for piece, run in zip(pieces, positions, strict=True):
            assert program.pieces[run.start].span == piece.span


def test_concatenated_operands_have_the_dimensions_of_their_graph(pack: Pack) -> None:
    program = Program.as_compiled(pack)
    for limit in (*chunk_sizes(program), None):
        for piece in choose_pieces(program, limit):
            check_dimensions(pack, piece)


def test_figures_follow_the_choice(compiled: Callable[[str, int], Pack]) -> None:
    program = Program.as_compiled(compiled("residual", FINE[0]))
    coarse = choose_pieces(program, None)
    assert len(coarse) < len(program.pieces)
    assert scratch_bytes(coarse) == scratch_bytes(program.pieces)
    assert largest_unit_bytes(program, program.pieces) == program.largest_chunk_bytes
    assert largest_unit_bytes(program, coarse) == chunk_sizes(program)[-1]


def test_one_layer_can_be_joined_alone(compiled: Callable[[str, int], Pack]) -> None:
    program = Program.as_compiled(compiled("residual", FINE[0]))
    alternative = program.alternatives[-1]
    pieces = choose_pieces(replace(program, alternatives=(alternative,)), None)
    gone = alternative.end_piece - alternative.first_piece - len(alternative.joined)
    assert len(pieces) == len(program.pieces) - gone
    assert pieces[: alternative.first_piece] == program.pieces[: alternative.first_piece]
