"""Joined chunks that a manifest cannot mean, one fault at a time; and which the compiler leaves out."""

import platform
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import pytest

from models.compiler.analysis.pieces import CutPiece
from models.compiler.cutting.chunks import Equality, alternatives
from models.compiler.cutting.partition import CutGraph
from models.compiler.cutting.piece_models import serialise
from models.errors import PackError
from models.packs.pack import Pack, open_pack
from models.packs.target import Target, cuda_target, host_target
from models.runtime.sessions import SessionError, open_piece
from tests.models.compiler.compiling import divided
from tests.models.nets import NETS, parsed, written
from tests.models.packs.documents import Document
from tests.models.packs.test_pack import Change, edit, put
from tests.models.refusal import refuses
from tests.models.streamed import compiled

# The pack's alternatives are 0: pieces [1, 5) in two, 1: the same in one, 2: pieces [5, 9) in two, ...


def operand(document: Document, piece: int, kind: str, position: int = 0) -> Any:
    return document["pieces"][piece][kind][position]


def moved(piece: int, kind: str, **fields: object) -> Change:
    """Return a change of the first operand of a piece that stays inside what it is a range of."""
    return lambda document: operand(document, piece, kind).update(fields)


def without_bias(document: Document) -> None:
    document["pieces"][3]["inputs"].pop()


def tall(document: Document) -> None:
    """Let the chunks of a weight be ranges that follow each other, but not rows of one array."""
    for piece in range(1, 5):
        found = next(item for item in document["pieces"][piece]["inputs"] if item["kind"] == "span")
        rows, columns = found["shape"][0], found["shape"][1]
        found["shape"] = [columns, rows, *found["shape"][2:]] if piece == 3 else found["shape"]


def shorter_weight(document: Document) -> None:
    """Let one chunk end before its span does: the next chunk does not follow it."""
    found = next(item for item in document["pieces"][2]["inputs"] if item["kind"] == "span")
    found["shape"][0] -= 1


@pytest.mark.parametrize(
    ("change", "field", "reason"),
    [
        (put("alternatives", 0, "first_piece", 5), "alternatives.0", "[5, 5) are out of range"),
        (put("alternatives", -1, "end_piece", 99), "alternatives.{last}", "99) are out of range"),
        (put("alternatives", 0, "end_piece", 6), "alternatives.0.joined", "4 in all, of 5 pieces"),
        (
            put("alternatives", 0, "joined", 0, "n_chunks", 3),
            "alternatives.0.joined",
            "n_chunks: 5 in all, of 4 pieces",
        ),
        (put("alternatives", 0, "joined", []), "alternatives.0.joined", "0 in all"),
        (
            put("alternatives", 0, "joined", 1, "graph", 99),
            "alternatives.0.joined.1.graph",
            "99 is out of range",
        ),
        (
            lambda document: document["alternatives"].insert(2, document["alternatives"][0]),
            "alternatives.2.joined",
            "not coarser",
        ),
        (
            lambda document: document["alternatives"].reverse(),
            "alternatives.1.joined",
            "not coarser",
        ),
        (
            lambda document: document["alternatives"].append(document["alternatives"][0]),
            "alternatives.{count}.first_piece",
            "1: overlaps the run before it, which ends at ",
        ),
        (
            lambda document: document["alternatives"][1].update(
                first_piece=2, joined=[{"graph": 0, "n_chunks": 3}]
            ),
            "alternatives.1.first_piece",
            "2: overlaps",
        ),
        (without_bias, "pieces.3", "other operands"),
        (shorter_weight, "alternatives.0", "inputs.1 of its pieces cannot be joined"),
        (tall, "alternatives.0", "inputs.1 of its pieces cannot be joined"),
        (moved(3, "outputs", offset=0), "alternatives.0", "outputs.0 of its pieces cannot"),
        (moved(3, "outputs", dtype="int32"), "alternatives.0", "outputs.0 of its pieces cannot"),
        (moved(3, "outputs", index=0, shape=[1], offset=0), "alternatives.0", "outputs.0 of its"),
        (moved(2, "inputs", shape=[1]), "alternatives.0", "inputs.0 of its pieces cannot"),
    ],
)
def test_joined_chunks_that_cannot_be_are_refused(
    change: Change, field: str, reason: str, pack_folder: Path, tiny_pack: Pack
) -> None:
    """How many there are depends on the processor: joined where that gives the same bits."""
    path, count = edit(pack_folder, change), len(tiny_pack.manifest.alternatives)
    with refuses(PackError, path, field.format(last=count - 1, count=count), reason):
        open_pack(pack_folder)


def test_pieces_without_weights_cannot_be_joined(tmp_path: Path) -> None:
    model = parsed("n (float[1,8,4,4] x) => (float[1,8,4,4] y) { y = Relu(x) }", {})
    pack = compiled(written(model, tmp_path / "m.onnx"), tmp_path)
    alone = {"first_piece": 0, "end_piece": 1, "joined": [{"graph": 0, "n_chunks": 1}]}
    path = edit(pack.folder, lambda document: document.update(alternatives=[alone]))
    with refuses(PackError, path, "alternatives.0", "streams nothing"):
        open_pack(pack.folder)


def cut_gemm(
    folder: Path, load: Callable[[bytes], object] = open_piece, target: Target | None = None
) -> CutGraph:
    source = written(NETS["gemm"](), folder / "m.onnx")
    return divided(source, folder / "work", 16 << 10, load, target).divided


def test_what_onnx_runtime_refuses_is_not_joined(tmp_path: Path) -> None:
    """Only the alternative of two chunks has a piece of 64 rows in this network of 128.

    For a GPU: there the graphs have sizes, elsewhere all of a layer's are one.
    """

    def load(data: bytes) -> object:
        shapes = [
            [dim.dim_value for dim in value.type.tensor_type.shape.dim]
            for value in onnx.load_model_from_string(data).graph.input
        ]
        if [64, 256] in shapes:
            raise SessionError("64 rows are too many")
        return open_piece(data)

    target = cuda_target(72)
    everything = cut_gemm(_folder(tmp_path, "all"), target=target)
    less = cut_gemm(_folder(tmp_path, "less"), load, target)
    counts = [len(item.pieces) for item in everything.alternatives]
    assert counts == [4, 2, 1]
    assert [len(item.pieces) for item in less.alternatives] == [4, 1]
    assert less.pieces == everything.pieces
    assert len(less.graphs) == len(everything.graphs) - 1


def _folder(parent: Path, name: str) -> Path:
    (parent / name).mkdir()
    return parent / name


def test_other_results_are_noticed(tmp_path: Path) -> None:
    parts = cut_gemm(tmp_path)
    equality = Equality(parts.graph)

    def serialised(pieces: list[CutPiece]) -> list[tuple[CutPiece, bytes]]:
        elided = parts.aliases.elided
        return [(piece, serialise(parts.graph, piece, elided)) for piece in pieces]

    finest = serialised(parts.pieces[: parts.alternatives[0].end])
    for alternative in alternatives(parts.graph, parts.pieces, host_target()):
        coarser = serialised(list(alternative.pieces))
        # Arm's kernel of few columns adds up more of a long row at a time than that of many.
        assert equality.holds(finest, coarser) or platform.machine() == "aarch64"
        assert not equality.holds(finest, [(piece, doubled(data)) for piece, data in coarser])
        assert not equality.holds(finest, [(piece, b"no model") for piece, _ in coarser])
    assert equality.holds(finest, finest)


def doubled(data: bytes) -> bytes:
    model = onnx.load_model_from_string(data)
    for item in model.graph.node[0].attribute:
        if item.name == "alpha":
            item.f = 2.0
    return bytes(model.SerializeToString())
