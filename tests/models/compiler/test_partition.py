"""Nodes that ONNX Runtime refuses with weights as inputs become resident pieces, and no others."""

from pathlib import Path

import onnx

from models.compiler.cutting.partition import CutGraph
from models.runtime.sessions import SessionError, open_piece
from tests.models.compiler.compiling import divided
from tests.models.nets import answers, inputs_for, parsed, written
from tests.models.streamed import compiled, same, streamed


def strict(data: bytes) -> object:
    """Load a piece, but take the slope of PRelu only as a constant."""
    graph = onnx.load_model_from_string(data).graph
    inputs = {value.name for value in graph.input}
    if any(node.op_type == "PRelu" and node.input[1] in inputs for node in graph.node):
        raise SessionError("PRelu: the slope must be a constant")
    return open_piece(data)


def parts(tmp_path: Path) -> CutGraph:
    model = parsed(
        """slopes (float[1,64] x) => (float[1,64] y) {
            a = Gemm<transB=1>(x, w)
            b = Neg(a)
            c = PRelu(b, s)
            d = Abs(c)
            y = Gemm<transB=1>(d, v)
        }""",
        {"w": (64, 64), "v": (64, 64), "s": (64,)},
    )
    source = written(model, tmp_path / "m.onnx")
    return divided(source, tmp_path / "work", 1 << 20, strict).divided


def test_only_the_refused_node_is_resident(tmp_path: Path) -> None:
    found = parts(tmp_path)
    (piece,) = [piece for piece in found.pieces if piece.region is not None]
    nodes = found.graph.nodes[piece.first_node : piece.end_node]
    assert [node.op_type for node in nodes] == ["PRelu"]
    assert piece.region is not None
    (reason,) = piece.region.reasons
    assert "(PRelu)" in reason
    assert "only as constants" in reason


def test_every_node_is_in_one_piece(tmp_path: Path) -> None:
    found = parts(tmp_path)
    covered = [i for piece in found.pieces for i in range(piece.first_node, piece.end_node)]
    assert covered == list(range(len(found.graph.nodes)))
    assert len(found.graph_of) == len(found.pieces)
    firsts = list(found.graphs.values())
    assert [firsts[number] for number in found.graph_of] == found.pieces


def test_a_piece_ends_where_a_bottleneck_is_narrow(tmp_path: Path) -> None:
    """A region that ends there keeps the few channels whole, not those that they become next."""
    model = parsed(
        """slim (float[1,64,8,8] x) => (float[1,64,8,8] y) {
            a = Conv(x, w)
            b = Relu(a)
            y = Conv(b, v)
        }""",
        {"w": (16, 64, 1, 1), "v": (64, 16, 1, 1)},
    )
    source = written(model, tmp_path / "m.onnx")
    found = divided(source, tmp_path / "work", 1 << 20).divided
    ends = [found.graph.nodes[piece.end_node - 1].op_type for piece in found.pieces]
    assert any(kind in ends[:-1] for kind in ("Conv", "FusedConv"))


def test_attention_with_heads_in_one_dimension_is_written_with_its_sizes(tmp_path: Path) -> None:
    """ONNX Runtime infers its result's shape from sizes alone: four dimensions, where there are three."""
    model = parsed(
        """attends (float[1,8,32] x) => (float[1,8,32] y) {
            q = Mul(x, s)
            a = Attention<q_num_heads=4, kv_num_heads=4>(q, x, x)
            y = Add(a, x)
        }""",
        {"s": (32,)},
    )
    model.opset_import[0].version = 23
    source, inputs = written(model, tmp_path / "m.onnx"), inputs_for({"x": (1, 8, 32)})
    pack = compiled(source, tmp_path)
    assert not pack.manifest.resident_pieces
    same(streamed(pack, inputs), answers(source, inputs), 1e-5, 1e-5)
