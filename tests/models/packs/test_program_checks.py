"""Operators on elements that a manifest cannot mean, one fault at a time."""

import json
import shutil
from functools import partial
from pathlib import Path
from typing import Any

import onnx
import pytest
from hypothesis import HealthCheck, given

from models.compiler import CompileOptions, compile_onnx
from models.errors import PackError
from models.packs.pack import Pack, open_pack
from models.packs.target import host_target
from pipeline.devices.elementwise.one_pass import chosen
from pipeline.program.prepare import with_chains
from pipeline.program.program import Program
from tests.examples import examples
from tests.fuzz.pack import attempt
from tests.models.nets import CHUNK_BYTES, parsed
from tests.models.packs.documents import Document
from tests.models.packs.test_manifest import MUTATIONS, mutate
from tests.models.packs.test_pack import Change, edit, put
from tests.models.refusal import refuses

_NODES = """
    a = Conv<pads=[1,1,1,1]>(x, wa)
    s = Sigmoid(a)
    silu = Mul(a, s)
    sum = Add(silu, a)
    y = Conv(sum, wb)
"""
_SHAPES = {"wa": (32, 8, 3, 3), "wb": (16, 32, 1, 1)}


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Pack:
    folder = tmp_path_factory.mktemp("programs")
    model = parsed(f"m (float[1,8,49,45] x) => (float[1,16,49,45] y) {{ {_NODES} }}", _SHAPES)
    onnx.save(model, folder / "m.onnx")
    options = CompileOptions(chunk_bytes=CHUNK_BYTES)
    return open_pack(compile_onnx(folder / "m.onnx", folder / "m", options))


@pytest.fixture
def folder(sound: Pack, tmp_path: Path) -> Path:
    return Path(shutil.copytree(sound.folder, tmp_path / "m" / "1"))


def first(document: Document, kind: str) -> int:
    """Return the first of a list that has a program which makes something."""
    return next(
        number
        for number, item in enumerate(document[kind])
        if item.get("elementwise", {}).get("makes")
    )


def of_piece(*way: Any) -> Change:
    return lambda document: put("pieces", first(document, "pieces"), *way)(document)


def of_row(*way: Any) -> Change:
    return lambda document: put("row_operators", first(document, "row_operators"), *way)(document)


def both(*changes: Change) -> Change:
    return lambda document: [change(document) for change in changes]


def with_two_results(shape: list[int]) -> Change:
    """Let the piece make what is in between, too, of ``shape``."""
    return both(
        put("programs", 0, "results", [1, 2]),
        of_piece("elementwise", "makes", [0, 1]),
        of_piece("outputs", 1, "shape", shape),
    )


def resident(document: Document) -> None:
    piece = document["pieces"][first(document, "pieces")]
    piece["resident"] = {"nodes": [], "operators": [], "weight_bytes": 0, "reasons": []}


@pytest.mark.parametrize(
    ("change", "field", "reason"),
    [
        (put("programs", 0, "steps", 0, "reads", [1]), "programs.0.steps.0.reads", "1 is not made"),
        (put("programs", 0, "steps", 1, "reads", [9, 0]), "programs.0.steps.1.reads", "9 is not"),
        (put("programs", 0, "steps", 0, "kind", "sinh"), "programs.0.steps.0.kind", "silu"),
        (put("programs", 0, "steps", 0, "numbers", []), "programs.0.steps.0", "silu of 1 values"),
        (put("programs", 0, "steps", 0, "numbers", [None]), "programs.0.steps.0", "that is none"),
        (put("programs", 0, "steps", 0, "numbers", [1e39]), "steps.0.numbers.0", "less than"),
        (put("programs", 0, "steps", 0, "numbers", [1, 2]), "programs.0.steps.0", "and 2 numbers"),
        (put("programs", 0, "steps", 0, "reads", [0, 0]), "programs.0.steps.0", "of 2 values"),
        (put("programs", 0, "steps", 1, "reads", []), "programs.0.steps.1", "add of 0 values"),
        (put("programs", 0, "steps", 1, "numbers", [1]), "programs.0.steps.1", "and 1 numbers"),
        (put("programs", 0, "steps", 1, "reads", [0]), "programs.0.steps.1", "add of 1 values"),
        (put("programs", 0, "n_inputs", 1 << 40), "programs.0.n_inputs", "of which"),
        (put("programs", 0, "results", [9]), "programs.0.results", "9 is out of range"),
        (put("programs", 0, "results", [2, 2]), "programs.0.results", "one is there twice"),
        (put("programs", 0, "results", []), "programs.0.results", "none"),
        (of_piece("elementwise", "program", 99), "elementwise.program", "99 is out of range"),
        (of_piece("elementwise", "reads", [0, 0]), "elementwise.reads", "2, of a program with 1"),
        (of_piece("elementwise", "reads", [9]), "elementwise.reads", "9 is out of range"),
        (of_piece("elementwise", "makes", []), "elementwise.makes", "0, of a program with 1"),
        (of_piece("elementwise", "makes", [9]), "elementwise.makes", "9 is out of range"),
        (of_piece("inputs", 0, "dtype", "int32"), "elementwise.reads", "0 is not float32"),
        (of_piece("inputs", 0, "shape", [2, 2]), "elementwise.reads", "[2, 2] does not stretch to"),
        (with_two_results([7]), "elementwise.makes", "of several shapes"),
        (
            both(with_two_results([7]), of_piece("elementwise", "makes", [0, 0])),
            "elementwise.makes",
            "one is there twice",
        ),
        (resident, "elementwise", "a resident piece has no program"),
    ],
)
def test_programs_that_cannot_be_are_refused(
    folder: Path, change: Change, field: str, reason: str
) -> None:
    path = edit(folder, change)
    with refuses(PackError, path, field, reason):
        open_pack(folder)


@pytest.mark.skipif(host_target().block == 1, reason="no blocked layout here")
@pytest.mark.parametrize(
    ("change", "field", "reason"),
    [
        (of_row("elementwise", "program", 99), "elementwise.program", "99 is out of range"),
        (of_row("elementwise", "reads", [9]), "elementwise.reads", "9 is out of range"),
        (of_row("elementwise", "makes", [1]), "elementwise.makes", "1 is out of range"),
        (
            of_row("inputs", 0, "window", {"kernel": 3, "before": 1, "behind": 1}),
            "elementwise.reads",
            "0 is not read row by row",
        ),
    ],
)
def test_programs_on_rows_that_cannot_be_are_refused(
    folder: Path, change: Change, field: str, reason: str
) -> None:
    at = first(json.loads((folder / "manifest.json").read_text()), "row_operators")
    path = edit(folder, change)
    with refuses(PackError, path, f"row_operators.{at}", field, reason):
        open_pack(folder)


@pytest.mark.skipif(host_target().block == 1, reason="no blocked layout here")
def test_weights_that_differ_by_row_are_refused(tmp_path: Path) -> None:
    nodes = "a = Mul(x, w) s = Tanh(a) y = Mul(a, s)"
    port = "float[1,32,32,5]"
    onnx.save(
        parsed(f"m ({port} x) => ({port} y) {{ {nodes} }}", {"w": (32, 1, 1)}), tmp_path / "m"
    )
    folder = compile_onnx(tmp_path / "m", tmp_path / "packs" / "m")
    path = edit(folder, of_row("weights", 0, "shape", [1, 32, 1]))
    with refuses(PackError, path, "row_operators.0.elementwise.reads", "differs by row"):
        open_pack(folder)


def test_joined_pieces_are_checked(sound: Pack, folder: Path) -> None:
    alternative = {"first_piece": 0, "end_piece": 1, "joined": [{"graph": 0, "n_chunks": 1}]}
    alternative["joined"][0]["elementwise"] = {"program": 99}  # type: ignore[index]
    path = edit(folder, put("alternatives", [alternative]))
    with refuses(PackError, path, "alternatives.0.joined.0.elementwise.program", "99 is out"):
        open_pack(folder)


@examples(6, many=3000, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(mutations=MUTATIONS)
def test_mutated_programs_are_refused_or_a_device_decides_about_them(
    mutations: list[tuple[str, int, Any]], folder: Path, sound: Pack
) -> None:
    def change(document: Document) -> None:
        items = (*document["pieces"], *document.get("row_operators", ()))
        used = [item["elementwise"] for item in items if "elementwise" in item]
        for mutation in mutations:
            mutate([document["programs"], used], *mutation)

    shutil.copy(sound.folder / "manifest.json", folder)
    edit(folder, change)
    if attempt(folder):
        for are_sessions in (False, True):
            choose = partial(chosen, are_sessions=are_sessions)
            with_chains(Program.as_compiled(open_pack(folder)), choose)
