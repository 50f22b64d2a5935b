"""Which gathers read rows of their table alone, and what the pack says of these."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from tempfile import mkdtemp

import numpy as np
import onnx
import pytest
import xxhash
from numpy.typing import NDArray
from onnx import numpy_helper
from onnx.parser import parse_model

from models.compiler import CompileOptions, compile_onnx
from models.compiler.cutting.tables import MIN_TABLE_BYTES, page_checksums
from models.compiler.passes.table import TARGETS
from models.errors import PackError
from models.packs.checks import check_manifests
from models.packs.manifest import Manifest
from models.packs.pack import Pack, open_pack, read_pack
from models.packs.records.pieces import PAGE_BYTES, Alternative, JoinedPieces, Piece, max_pages
from models.packs.records.spans import Stored, StoredPart
from models.packs.target import named_target
from tests.examples import over

ROWS, WIDTH = 1100, 256
assert ROWS * WIDTH * 4 > MIN_TABLE_BYTES


def network(text: str, **weights: NDArray[np.generic]) -> onnx.ModelProto:
    model = parse_model(f'<ir_version: 9, opset_import: ["" : 17]> {text}')
    for name, array in weights.items():
        model.graph.initializer.append(numpy_helper.from_array(array, name))
    return model


def drawn(*shape: int) -> NDArray[np.float32]:
    return np.random.default_rng(1).standard_normal(shape, dtype=np.float32)


def compiled(model: onnx.ModelProto, folder: Path, options: CompileOptions | None = None) -> Pack:
    folder = Path(mkdtemp(dir=folder))
    onnx.save(model, folder / "net.onnx")
    return read_pack(compile_onnx(folder / "net.onnx", folder / "packs" / "net", options))


def lookups(pack: Pack) -> list[Piece]:
    return [piece for piece in pack.manifest.pieces if piece.page_checksums is not None]


def embedding(
    rows: int = ROWS, indices: str = "int64[1,8] ids", out: str = "1,8,256", axis: int = 0
) -> onnx.ModelProto:
    text = f"embed ({indices}) => (float[{out}] y) {{ y = Gather<axis={axis}>(table, ids) }}"
    return network(text, table=drawn(rows, WIDTH))


LOOKUPS = {
    "a sentence": ("int64[1,8] ids", "1,8,256"),
    "indices of 32 bits": ("int32[1,8] ids", "1,8,256"),
    "a row of indices": ("int64[5] ids", "5,256"),
    "one index": ("int64 ids", "256"),
}


@over("case", sorted(LOOKUPS))
def test_rows_of_a_large_table_are_read_by_themselves(case: str, tmp_path: Path) -> None:
    indices, out = LOOKUPS[case]
    pack = compiled(embedding(indices=indices, out=out), tmp_path)
    (piece,) = lookups(pack)
    assert piece.span is not None
    assert piece.page_checksums is not None
    span = pack.manifest.spans[piece.span]
    content = pack.weights_path.read_bytes()[span.file_offset :][: span.length]
    assert content[: 4 * ROWS * WIDTH] == drawn(ROWS, WIDTH).tobytes()
    resident = pack.manifest.spans[piece.page_checksums.index]
    resident_bytes = pack.weights_path.read_bytes()[
        resident.file_offset + piece.page_checksums.offset :
    ]
    checksums = np.frombuffer(resident_bytes, np.uint64, span.length // PAGE_BYTES)
    pages = [content[start : start + PAGE_BYTES] for start in range(0, span.length, PAGE_BYTES)]
    assert checksums.tolist() == [xxhash.xxh3_64_intdigest(page) for page in pages]
    assert pack.manifest.largest_chunk_bytes == 0


#: Networks whose table is streamed, and why.
STREAMED: dict[str, Callable[[], onnx.ModelProto]] = {
    "small": lambda: embedding(rows=8),
    "most of it": lambda: embedding(indices="int64[1,200] ids", out="1,200,256"),
    "columns": lambda: embedding(indices="int64[8] ids", out="1100,8", axis=1),
    "the last layer, too": lambda: network(
        """tied (int64[1] ids) => (float[1,1100] y) {
            x = Gather(table, ids)
            y = Gemm<transB=1>(x, table)
        }""",
        table=drawn(ROWS, WIDTH),
    ),
    "a table of a request": lambda: network(
        """given (float[1100,256] table, int64[1,8] ids) => (float[1,8,256] y) {
            y = Gather(table, ids)
        }"""
    ),
}


@over("case", sorted(STREAMED))
def test_other_tables_are_streamed(case: str, tmp_path: Path) -> None:
    assert not lookups(compiled(STREAMED[case](), tmp_path))


@pytest.mark.parametrize("target", ["cuda-sm72", "aarch64-generic"])
def test_a_gpu_streams_tables(target: str, tmp_path: Path) -> None:
    options = CompileOptions(target=named_target(target))
    assert len(lookups(compiled(embedding(), tmp_path, options))) == (target != "cuda-sm72")


def test_c_has_no_pieces_and_no_tables() -> None:
    assert "find-tables" not in {step.name for target in ("c", "gpu") for step in TARGETS[target]}


def test_without_the_pass_the_table_is_one_chunk(tmp_path: Path) -> None:
    pack = compiled(embedding(), tmp_path, CompileOptions(without=("find-tables",)))
    assert not lookups(pack)
    assert pack.manifest.largest_chunk_bytes == 4 * ROWS * WIDTH


@over("store", ["fp16", "int8", "lossless"])
def test_stored_weights_leave_a_table_as_it_is(store: str, tmp_path: Path) -> None:
    text = """both (int64[1,8] ids) => (float[1,8,64] y) {
        x = Gather(table, ids)
        y = MatMul(x, w)
    }"""
    model = network(text, table=drawn(ROWS, WIDTH), w=drawn(WIDTH, 64))
    pack = compiled(model, tmp_path, CompileOptions(store=store))  # type: ignore[arg-type]
    (piece,) = lookups(pack)
    assert piece.span is not None
    span = pack.manifest.spans[piece.span]
    assert span.stored is not None
    content = pack.weights_path.read_bytes()[span.file_offset :]
    assert content[: 4 * ROWS * WIDTH] == drawn(ROWS, WIDTH).tobytes()
    assert any(item.file_length < item.length for item in pack.manifest.spans if item is not span)


def test_checksums_are_those_of_pages_filled_up_with_zeros() -> None:
    table = np.arange(PAGE_BYTES + 3, dtype=np.uint8)
    filled = table.tobytes().ljust(2 * PAGE_BYTES, b"\0")
    expected = [xxhash.xxh3_64_intdigest(filled[:PAGE_BYTES])]
    expected.append(xxhash.xxh3_64_intdigest(filled[PAGE_BYTES:]))
    assert page_checksums(table).tolist() == expected


@over("row_bytes", [1, 2, 1536, 4095, 4096, 4097, 4098, 8192, 8193])
def test_max_pages_are_those_of_the_worst_offset(row_bytes: int) -> None:
    touched = [
        (start + row_bytes - 1) // PAGE_BYTES - start // PAGE_BYTES + 1
        for start in range(PAGE_BYTES)
    ]
    assert max_pages(row_bytes) == max(touched)


# What a manifest may not say.


@pytest.fixture(scope="module")
def manifest(tmp_path_factory: pytest.TempPathFactory) -> Manifest:
    return compiled(embedding(), tmp_path_factory.mktemp("table")).manifest


def _piece(manifest: Manifest, **changes: object) -> Manifest:
    (piece,) = manifest.pieces
    return replace(manifest, pieces=(replace(piece, **changes),))  # type: ignore[arg-type]


def _checksums(manifest: Manifest, **changes: object) -> Manifest:
    (piece,) = manifest.pieces
    assert piece.page_checksums is not None
    return _piece(manifest, page_checksums=replace(piece.page_checksums, **changes))  # type: ignore[arg-type]


def _operand(manifest: Manifest, port: str, index: int, **changes: object) -> Manifest:
    (piece,) = manifest.pieces
    operands = list(getattr(piece, port))
    operands[index] = replace(operands[index], **changes)
    return _piece(manifest, **{port: tuple(operands)})


def _stored(manifest: Manifest) -> Manifest:
    spans = list(manifest.spans)
    for index, span in enumerate(spans):
        stored_part = StoredPart(encoding="bytes", offset=0, length=span.length - 64)
        spans[index] = replace(
            span, stored=Stored(offset=span.offset, length=span.length, parts=(stored_part,))
        )
    return replace(manifest, spans=tuple(spans))


MERGED = (JoinedPieces(graph=0, n_chunks=1),)
FAULTS: dict[str, tuple[Callable[[Manifest], Manifest], str]] = {
    "fewer checksums": (lambda m: _checksums(m, shape=(274,)), "not 275 checksums"),
    "of another type": (lambda m: _checksums(m, dtype="int64"), "not 275 checksums"),
    "outside of their span": (lambda m: _checksums(m, offset=4096), "are outside span 0"),
    "of no span": (lambda m: _checksums(m, index=9), "span 9 is out of range"),
    "in a value": (lambda m: _checksums(m, kind="value"), "outside value 0"),
    "in the table": (lambda m: _checksums(m, index=1), "which is not its own"),
    "floats as indices": (
        lambda m: _operand(m, "inputs", 0, dtype="float64"),
        "say no rows of a table",
    ),
    "other rows": (lambda m: _operand(m, "outputs", 0, shape=(1, 7, 256)), "are not the rows"),
    "a table in the middle": (
        lambda m: _operand(m, "inputs", 1, offset=64, shape=(ROWS - 1, WIDTH)),
        "does not lie at the beginning of span 1",
    ),
    "stored in parts": (_stored, "does not lie at the beginning of span 1"),
    "a chunk": (
        lambda m: replace(
            m, alternatives=(Alternative(first_piece=0, end_piece=1, joined=MERGED),)
        ),
        "of a piece in alternatives",
    ),
    "more inputs": (
        lambda m: _piece(m, inputs=(*m.pieces[0].inputs, m.pieces[0].inputs[0])),
        "of a piece that is no Gather",
    ),
}


@over("name", sorted(FAULTS))
def test_what_cannot_be_rows_of_a_table_is_refused(manifest: Manifest, name: str) -> None:
    damage, message = FAULTS[name]
    check_manifests({Path("manifest.json"): manifest})
    with pytest.raises(PackError, match=rf"pieces\.0.*{message}"):
        check_manifests({Path("manifest.json"): damage(manifest)})


def test_an_opened_pack_has_its_table(tmp_path: Path) -> None:
    pack = compiled(embedding(), tmp_path)
    assert lookups(open_pack(pack.folder)) == lookups(pack)
