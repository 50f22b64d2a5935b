"""What ``compile --store`` and its neighbours say of weights that are stored in fewer bytes."""

from pathlib import Path

import pytest

from tests.models.nets import gemm, residual, written
from tests.server.support import BAD, Cli


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return written(residual(), tmp_path / "net.onnx")


def test_compile_says_what_it_saves_and_what_it_costs(
    cli: Cli, source: Path, tmp_path: Path
) -> None:
    made = cli("compile", source, "-o", tmp_path / "net", "--store", "int8")
    assert made.code == 0
    assert "in the file as int8" in made.out
    assert "stored as int8: outputs differ from ONNX Runtime's by up to" in made.err
    assert "on drawn numbers, not pictures" in made.err


def test_inspect_says_how_each_layer_is_stored(cli: Cli, source: Path, tmp_path: Path) -> None:
    cli("compile", source, "-o", tmp_path / "net", "--store", "fp16")
    shown = cli("inspect", tmp_path / "net", "--layers").out
    assert "stored" in shown
    assert "as fp16" in shown
    assert "float16" in shown
    document = cli("inspect", tmp_path / "net", "--layers", "--json").document
    assert document["store"] == "fp16"
    assert document["file_bytes"] < 0.65 * document["expanded_bytes"]
    large = [row for row in document["layer_table"] if row["weight_bytes"] > 100_000]
    assert {row["stored"] for row in large} == {"float16"}
    assert all(row["file_bytes"] < 0.6 * row["weight_bytes"] for row in large)


def test_a_plain_pack_says_nothing_of_it(cli: Cli, source: Path, tmp_path: Path) -> None:
    cli("compile", source, "-o", tmp_path / "net")
    assert "stored" not in cli("inspect", tmp_path / "net", "--layers").out


def test_lossless_differs_in_nothing(cli: Cli, source: Path, tmp_path: Path) -> None:
    made = cli("compile", source, "-o", tmp_path / "net", "--store", "lossless")
    assert made.code == 0
    assert made.err == ""


def test_what_cannot_be_stored_or_run_so_is_refused(cli: Cli, tmp_path: Path) -> None:
    source = written(gemm(), tmp_path / "net.onnx")
    asked = ("compile", source, "-o", tmp_path / "net")
    cli(*asked, "--store", "int4").refuses(BAD, "--store", "'int4'", "fp16", "lossless")
    cli(*asked, "--store", "int8", "--target", "cuda-sm72").refuses(BAD, "--store int8", "GPU")


def test_a_paced_disk_brings_nothing_and_lossless_weights_expand_all_the_same(
    cli: Cli, source: Path, tmp_path: Path
) -> None:
    pack = tmp_path / "net"
    cli("compile", source, "-o", pack, "--store", "lossless")
    paced = ("--pace", "1GB/s", "--iterations", "1", "--no-peers")
    assert cli("bench", "pipeline", pack, "--architectures", "2s", *paced).code == 0


def test_a_profile_measures_what_expands_and_plans_use_it(
    cli: Cli, source: Path, tmp_path: Path
) -> None:
    pack = tmp_path / "net"
    cli("compile", source, "-o", pack, "--store", "int8")
    assert cli("profile", pack, "--iterations", "1").code == 0
    simulated = cli("simulate", pack, "--architectures", "2s,auto", "--json")
    assert simulated.code == 0
    planned = cli("plan", pack, "--budget", "8MiB", "--json")
    assert planned.code == 0
