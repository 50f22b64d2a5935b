"""``layerstream export-c``: what it writes and says, and what it refuses."""

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from models import photographs
from models.graphs.graph import Graph
from models.packs.pack import Pack
from tests.models.nets import parsed, written
from tests.server.support import BAD, Cli


def test_files_and_figures(tiny_onnx: Path, cli: Cli, tmp_path: Path) -> None:
    folder = tmp_path / "c"
    words = ("export-c", tiny_onnx, "-o", folder, "--name", "net")
    found = cli(*words, "--json").document
    assert sorted(path.name for path in folder.iterdir()) == ["net.c", "net.h"]
    assert {Path(name).name: n for name, n in found["files"].items()} == {
        path.name: path.stat().st_size for path in folder.iterdir()
    }
    assert found["function"] == "int net_run(const float *image, float *logits)"
    assert f"#define NET_ARENA_BYTES {found['arena_bytes']} " in (folder / "net.h").read_text()
    assert found["buffer_bytes"] == 0
    weights = tmp_path / "w"
    options = ("--weights", "callback", "--buffer", "8KiB")
    said = cli("export-c", tiny_onnx, "-o", weights, *options).out
    assert "8.0 KiB for weights" not in said  # of filters, no more than fit
    assert "tiny_run(tiny_read read, void *context, const float *image, float *logits)" in said
    assert f"cc -std=c99 -O2 -c {weights}/tiny.c" in said
    assert (weights / "tiny.weights").stat().st_size > found["weight_bytes"]


def test_the_arena_holds_ports_as_plans_do(
    tiny_onnx: Path, tiny_pack: Pack, cli: Cli, tmp_path: Path
) -> None:
    words = ("export-c", tiny_onnx, "-o", tmp_path / "c", "--io", "arena", "--json")
    arena = cli(*words).document["arena_bytes"]
    assert arena == cli("inspect", tiny_pack.folder, "--json").document["arena_bytes"]


def test_a_name_is_made_an_identifier(cli: Cli, tmp_path: Path) -> None:
    model = parsed("a (float[1,4] x) => (float y) { y = Relu(x) }")
    source = written(model, tmp_path / "3d.net-v2.onnx")
    said = cli("export-c", source, "-o", tmp_path / "c").out
    assert "begin with 'n3d_net_v2', for '3d.net-v2'" in said


_PICTURE = photographs.FOLDER / "astronaut.jpg"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--name", "3d"), ("--name", "'3d'", "a letter")),
        (("--name", "math"), ("--name", "math.h is a header of C")),
        (("--buffer", "8KiB"), ("--buffer", "constant weights")),
        (("--weights", "callback", "--buffer", "64B"), ("one filter", "the buffer has 64")),
        (("--weights", "flash"), ("--weights", "'flash'")),
        (("--precision", "int8"), ("--precision int8", "--calibrate DIR")),
        (("--shape", "x"), ("--shape", "'x'")),
        (("--batch", "2"), ("--batch 2 changes nothing",)),
    ],
)
def test_bad_options(
    options: tuple[str, ...], said: tuple[str, ...], tiny_onnx: Path, cli: Cli, tmp_path: Path
) -> None:
    cli("export-c", tiny_onnx, "-o", tmp_path / "c", *options).refuses(BAD, *said)
    assert not (tmp_path / "c").exists()


def test_a_pack_is_refused_with_what_to_export_instead(
    tiny_pack: Pack, cli: Cli, tmp_path: Path
) -> None:
    refused = cli("export-c", tiny_pack.folder, "-o", tmp_path / "c")
    refused.refuses(BAD, str(tiny_pack.folder), "a pack", "layerstream export-c tiny.onnx -o DIR")
    assert not (tmp_path / "c").exists()


def test_bytes_of_pictures(cli: Cli, tmp_path: Path) -> None:
    """Calibrated, with the recipe that lies beside the file; what is odd is said."""
    model = parsed(
        "q (float[1,3,16,16] x) => (float y) { a = Conv(x, w)\n b = Relu(a)\n y = Conv(b, v) }",
        {"w": (8, 3, 3, 3), "v": (8, 8, 3, 3)},
    )
    source = written(model, tmp_path / "q.onnx")
    (tmp_path / "q.preprocess.toml").write_text("size = [16, 16]\nmean = [128.0]\nstd = [64.0]\n")
    (tmp_path / "pictures").mkdir()
    shutil.copy(_PICTURE, tmp_path / "pictures")
    words = ("--precision", "int8", "--calibrate", tmp_path / "pictures", "--io-bytes", "--json")
    result = cli("export-c", source, "-o", tmp_path / "c", *words)
    assert result.code == 0
    assert "1 picture" in result.err
    assert "uint8_t *x" in result.document["function"]


def test_a_graph_that_answers_otherwise_is_not_written(
    tiny_onnx: Path, cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def damaged(graph: Graph) -> Graph:
        weights = {name: 2 * np.asarray(array) for name, array in graph.constants.items()}
        return replace(graph, constants=weights)

    monkeypatch.setattr("models.compiler.passes.steps.with_less_kept", damaged)
    words = ("export-c", tiny_onnx, "-o", tmp_path / "c")
    cli(*words).refuses(BAD, "the graph that becomes C answers otherwise than ONNX Runtime")
    assert not (tmp_path / "c").exists()
    assert cli(*words, "--no-check").code == 0


def test_bad_input(tiny_onnx: Path, cli: Cli, tmp_path: Path) -> None:
    cli("export-c", tmp_path, "-o", tmp_path / "c").refuses(BAD, str(tmp_path), "no pack in it")
    none = tmp_path / "none.onnx"
    cli("export-c", none, "-o", tmp_path / "c").refuses(BAD, str(none), "No such file")
    (tmp_path / "c").mkdir()
    refused = cli("export-c", tiny_onnx, "-o", tmp_path / "c")
    refused.refuses(BAD, str(tmp_path / "c"), "exists", "--force")
    assert cli("export-c", tiny_onnx, "-o", tmp_path / "c", "--force").code == 0
    model = parsed("s (float[1,4] x) => (float y) { y = Sin(x) }")
    source = written(model, tmp_path / "s.onnx")
    cli("export-c", source, "-o", tmp_path / "s.c").refuses(BAD, "Sin", "cannot be exported")
    assert not (tmp_path / "s.c").exists()
