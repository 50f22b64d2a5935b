"""What is around the kernels: weights by callback, ports, names, errors, files."""

import shutil
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import onnx
import pytest

from models.compiler.for_c import GraphForC
from pipeline.export_c.export import ExportOptions, export_c, write_export
from pipeline.export_c.network.network import ExportError
from pipeline.export_c.writing.c_text import comment, identifier
from tests.examples import over
from tests.models.compiler.test_resident import branches
from tests.models.nets import answers, inputs_for, parsed
from tests.pipeline.export_c.compiled import Compiled, agree, for_c, needs_compiler

OK, NO_POINTER, READ_FAILED, WRONG_WEIGHTS = range(4)
IMAGE = {"image": (1, 3, 8, 8)}


@needs_compiler
def test_a_callback_brings_the_same_bits(
    tiny_graph: GraphForC, tiny_onnx: Path, tmp_path: Path
) -> None:
    inputs = inputs_for(IMAGE)
    constant = Compiled.of(tiny_graph, tmp_path / "const")
    _, expected = constant.run(inputs)
    agree(expected, answers(tiny_onnx, inputs))
    for buffer_bytes, ports in ((3000, "caller"), (None, "arena")):
        folder = tmp_path / str(buffer_bytes)
        compiled = Compiled.of(
            tiny_graph, folder, weights="callback", ports=ports, buffer_bytes=buffer_bytes
        )
        for _ in range(2):  # a run leaves nothing that the next one would see
            status, outputs = compiled.run(inputs)
            assert status == OK
            np.testing.assert_array_equal(outputs["logits"], expected["logits"])
        exported = compiled.exported
        assert exported.buffer_bytes <= (buffer_bytes or 1 << 20)
        assert max(length for _, length in compiled.reads) <= exported.buffer_bytes
        assert compiled.check() == OK


@needs_compiler
def test_wrong_weights_are_found(tiny_graph: GraphForC, tmp_path: Path) -> None:
    inputs = inputs_for(IMAGE)
    compiled = Compiled.of(tiny_graph, tmp_path / "c", weights="callback")
    whole = bytes(compiled.weights)
    for at in (0, 4, 8, 16):  # magic, version, size, checksum
        compiled.weights[at] ^= 1
        assert compiled.run(inputs)[0] == WRONG_WEIGHTS
        compiled.weights[:] = whole
    compiled.weights[len(whole) // 2] ^= 1
    assert compiled.check() == WRONG_WEIGHTS
    compiled.weights[:] = whole[:-1]
    assert compiled.check() == READ_FAILED
    compiled.weights[:] = whole
    compiled.fails = True
    assert compiled.run(inputs)[0] == READ_FAILED
    compiled.fails = False
    assert compiled.run(inputs)[0] == OK
    assert compiled.call("run", None, None) == NO_POINTER


@needs_compiler
def test_names_of_strangers(tmp_path: Path) -> None:
    """Keywords, names of our own, capitals, and texts that end a comment."""
    model = parsed(
        "odd (float[1,4] w0, float[1,4] int) => (float relu, float arena, float Arena) "
        "{ relu = Add(w0, int)\n arena = Sub(w0, int)\n Arena = Mul(w0, int) }"
    )
    model.graph.node[0].name = "*/ # \\"
    compiled = Compiled.of(for_c(model, tmp_path), tmp_path / "c", prefix="odd_1")
    inputs = inputs_for({"w0": (1, 4), "int": (1, 4)})
    _, outputs = compiled.run(inputs)
    agree(outputs, answers(tmp_path / "source.onnx", inputs))


@over(
    "text, expected",
    [
        ("a", "a"),
        ("3d-net", "n3d_net"),
        ("--", "network"),
        ("for", "for_"),
        ("ü", "network"),
        ("w3", "w3_"),
        ("Math", "Math_"),
    ],
)
def test_identifiers(text: str, expected: str) -> None:
    assert identifier(text) == expected
    again = identifier(text, {expected.upper()})
    assert again.upper() != expected.upper()


def test_comments_stay_comments() -> None:
    assert comment("a */ b\n/* \\ ü") == "a * / b?/ * / ?"


def test_what_cannot_be_exported_is_named(tmp_path: Path) -> None:
    model = parsed("e (float[1,4] x) => (float y) { z = Relu(x)\n y = Sin(z) }")
    model.graph.node[1].name = "strange"
    with pytest.raises(ExportError, match=r"exported to C: Sin \(1, the first 'strange'\)"):
        export_c(for_c(model, tmp_path), ExportOptions())


def test_a_refusal_names_the_node_of_the_file(tmp_path: Path) -> None:
    """ONNX Runtime makes a product of a sum, between reshapes, under names of its own."""
    text = "f (float[1,4,64] x) => (float[1,4,32] y) { p = MatMul(x, w)\n y = Add(p, b) }"
    model = parsed(text, {"w": (64, 32), "b": (32,)})
    for node in model.graph.node:
        node.name = f"/head/{node.op_type}"
    with pytest.raises(ExportError, match=r"weights node '/head/(MatMul|Add)' needs"):
        export_c(for_c(model, tmp_path), ExportOptions(weights="callback", buffer_bytes=8))


def test_a_graph_inside_is_refused_though_it_alone_reads_a_value(tmp_path: Path) -> None:
    model, _ = branches()
    with pytest.raises(ExportError, match=r"node 'b' \(If\): a graph inside"):
        export_c(for_c(model, tmp_path), ExportOptions())


def test_integers_are_refused(tmp_path: Path) -> None:
    model = parsed("i (int64[1,4] x) => (int64[1,4] y) { y = Neg(x) }")
    with pytest.raises(ExportError, match="'x' is int64"):
        export_c(for_c(model, tmp_path), ExportOptions())


def test_a_small_buffer_says_what_it_takes(tiny_graph: GraphForC) -> None:
    with pytest.raises(ExportError, match="has 2000 bytes, the smallest that works 2560"):
        export_c(tiny_graph, ExportOptions(weights="callback", buffer_bytes=2000))
    for fewer in (0, 1):
        options = ExportOptions(weights="callback", buffer_bytes=2560 - fewer)
        with pytest.raises(ExportError) if fewer else nullcontext():
            export_c(tiny_graph, options)


def test_a_folder_is_replaced_whole_or_not_at_all(
    tiny_graph: GraphForC, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "new" / "c"
    write_export(export_c(tiny_graph, ExportOptions()), folder)
    with pytest.raises(ExportError, match="--force"):
        write_export(export_c(tiny_graph, ExportOptions()), folder)
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    full = export_c(tiny_graph, ExportOptions(prefix="other"))

    def fail(_: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("os.fsync", fail)
        with pytest.raises(ExportError, match="No space left"):
            write_export(full, folder, force=True)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    assert [path.name for path in folder.parent.iterdir()] == ["c"]
    write_export(export_c(tiny_graph, ExportOptions(prefix="other")), folder, force=True)
    assert sorted(path.name for path in folder.iterdir()) == ["other.c", "other.h"]
    for mine in ("mine.txt", "main.c"):
        (folder / mine).write_text("")
        for force in (True, False):
            with pytest.raises(ExportError, match=f"'{mine}'"):
                write_export(full, folder, force=force)
        (folder / mine).unlink()
    shutil.rmtree(folder)
    folder.write_text("")
    with pytest.raises(ExportError, match="no folder"):
        write_export(full, folder, force=True)


def test_a_folder_by_any_name_and_never_a_folder_in_it(
    tiny_graph: GraphForC, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, link = tmp_path / "c", tmp_path / "link"
    folder.mkdir()
    link.symlink_to(folder)
    made = export_c(tiny_graph, ExportOptions(prefix="net"))
    write_export(made, link, force=True)
    assert link.is_symlink()
    monkeypatch.chdir(folder)
    write_export(export_c(tiny_graph, ExportOptions(prefix="net")), Path(), force=True)
    assert sorted(path.name for path in folder.iterdir()) == ["net.c", "net.h"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["c", "link"]
    (folder / "net.c").unlink()
    (folder / "net.c").mkdir()
    with pytest.raises(ExportError, match=r"'net\.c/', which no export wrote"):
        write_export(made, folder, force=True)


def test_a_model_of_nothing_but_constants(tmp_path: Path) -> None:
    model: onnx.ModelProto = parsed("c (float[1,4] x) => (float[1,4] y) { y = Identity(x) }")
    compiled = export_c(for_c(model, tmp_path), ExportOptions())
    assert compiled.memory.arena_bytes == 0
