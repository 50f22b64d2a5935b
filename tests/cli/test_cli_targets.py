"""``layerstream compile --target``: packs for GPUs, made and shown on a machine without one."""

from pathlib import Path

import pytest

from models.packs.target import host_target
from tests.server.support import BAD, Cli, Packs


@pytest.fixture
def for_cuda(cli: Cli, packs: Packs, tmp_path: Path) -> Path:
    destination = tmp_path / "gpu"
    options = ("--chunk", "16KiB", "--target", "cuda-sm72")
    assert cli("compile", packs.sources["tiny"], "-o", destination, *options).code == 0
    return destination


def test_pack_for_cuda_is_compiled_and_shown(cli: Cli, for_cuda: Path) -> None:
    shown = cli("inspect", for_cuda, "--layers", "--json").document
    assert shown["target"] == {
        "isa": "cuda-sm72",
        "block": 1,
        "onnxruntime": host_target().onnxruntime,
    }
    assert "Conv+Relu" in {layer["operator"] for layer in shown["layer_table"]}
    assert "cuda-sm72" in cli("inspect", for_cuda).out


def test_pack_for_cuda_is_not_run_on_the_cpu(cli: Cli, for_cuda: Path) -> None:
    result = cli("run", for_cuda)
    assert result.code == BAD
    for part in ("cuda-sm72", host_target().isa, f"-o {for_cuda} --target {host_target().isa}"):
        assert part in result.err


@pytest.mark.parametrize("name", ["cpu", host_target().isa])
def test_this_machine_is_the_default(cli: Cli, packs: Packs, tmp_path: Path, name: str) -> None:
    one, other = (
        cli("compile", packs.sources["tiny"], "-o", tmp_path / folder / "m", "--json", *options)
        for folder, options in (("default", ()), ("named", ("--target", name)))
    )
    assert {**one.document, "folder": ""} == {**other.document, "folder": ""}


def test_unknown_target_is_bad_usage(cli: Cli, packs: Packs, tmp_path: Path) -> None:
    source, output = packs.sources["tiny"], tmp_path / "m"
    result = cli("compile", source, "-o", output, "--target", "cuda-sm5")
    assert result.code == BAD
    assert "cuda-sm5" in result.err
    assert "cuda-sm70 to cuda-sm129" in result.err
    assert not output.exists()
