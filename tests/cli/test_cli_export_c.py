"""``layerstream export-c``: what it writes and says, and what it refuses."""

from pathlib import Path

import pytest

from models.packs.pack import Pack
from tests.models.nets import parsed, written
from tests.server.support import BAD, Cli


def test_files_and_figures(tiny_pack: Pack, cli: Cli, tmp_path: Path) -> None:
    folder = tmp_path / "c"
    words = ("export-c", tiny_pack.folder, "-o", folder, "--name", "net")
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
    said = cli("export-c", tiny_pack.folder, "-o", weights, *options).out
    assert "8.0 KiB for weights" not in said  # of filters, no more than fit
    assert "tiny_run(tiny_read read, void *context, const float *image, float *logits)" in said
    assert f"cc -std=c99 -O2 -c {weights}/tiny.c" in said
    assert (weights / "tiny.weights").stat().st_size > found["weight_bytes"]


def test_the_arena_holds_ports_as_plans_do(tiny_pack: Pack, cli: Cli, tmp_path: Path) -> None:
    words = ("export-c", tiny_pack.folder, "-o", tmp_path / "c", "--io", "arena", "--json")
    arena = cli(*words).document["arena_bytes"]
    assert arena == cli("inspect", tiny_pack.folder, "--json").document["arena_bytes"]


def test_a_name_is_made_an_identifier(cli: Cli, tmp_path: Path) -> None:
    model = parsed("a (float[1,4] x) => (float y) { y = Relu(x) }")
    source = written(model, tmp_path / "m.onnx")
    assert cli("compile", source, "-o", tmp_path / "3d.net-v2").code == 0
    said = cli("export-c", tmp_path / "3d.net-v2", "-o", tmp_path / "c").out
    assert "begin with 'n3d_net_v2', for '3d.net-v2'" in said


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--name", "3d"), ("--name", "'3d'", "a letter")),
        (("--name", "math"), ("--name", "math.h is a header of C")),
        (("--buffer", "8KiB"), ("--buffer", "constant weights")),
        (("--weights", "callback", "--buffer", "64B"), ("one filter", "the buffer has 64")),
        (("--weights", "flash"), ("--weights", "'flash'")),
    ],
)
def test_bad_options(
    options: tuple[str, ...], said: tuple[str, ...], tiny_pack: Pack, cli: Cli, tmp_path: Path
) -> None:
    cli("export-c", tiny_pack.folder, "-o", tmp_path / "c", *options).refuses(BAD, *said)
    assert not (tmp_path / "c").exists()


def test_bad_input(tiny_pack: Pack, cli: Cli, tmp_path: Path) -> None:
    cli("export-c", tmp_path, "-o", tmp_path / "c").refuses(BAD, str(tmp_path), "no pack in it")
    (tmp_path / "c").mkdir()
    refused = cli("export-c", tiny_pack.folder, "-o", tmp_path / "c")
    refused.refuses(BAD, str(tmp_path / "c"), "exists", "--force")
    assert cli("export-c", tiny_pack.folder, "-o", tmp_path / "c", "--force").code == 0
    model = parsed("s (float[1,4] x) => (float y) { y = Sin(x) }")
    source = written(model, tmp_path / "s.onnx")
    assert cli("compile", source, "-o", tmp_path / "s").code == 0
    cli("export-c", tmp_path / "s", "-o", tmp_path / "s.c").refuses(
        BAD, "Sin", "cannot be exported"
    )
    assert not (tmp_path / "s.c").exists()
