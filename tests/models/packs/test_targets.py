"""What packs can be compiled for, and which of them run where."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from models.compiler import CompileOptions, compile_onnx
from models.errors import ModelError, PackError
from models.packs.pack import Pack, open_pack, read_pack
from models.packs.target import cuda_target, host_target, named_target
from tests.examples import over
from tests.models.nets import CHUNK_BYTES
from tests.models.packs.test_pack import edit, put
from tests.models.refusal import refuses


@pytest.fixture(scope="module")
def cuda_pack(tiny_onnx: Path, tmp_path_factory: pytest.TempPathFactory) -> Pack:
    options = CompileOptions(chunk_bytes=CHUNK_BYTES, target=named_target("cuda-sm72"))
    return read_pack(compile_onnx(tiny_onnx, tmp_path_factory.mktemp("cuda") / "tiny", options))


@pytest.fixture
def cuda_folder(cuda_pack: Pack, tmp_path: Path) -> Path:
    """A copy of ``cuda_pack`` that the test may damage."""
    return Path(shutil.copytree(cuda_pack.folder, tmp_path / "gpu" / "1"))


def test_this_machine_has_two_names() -> None:
    assert named_target("cpu") == named_target(host_target().isa) == host_target()
    assert host_target().capability is None


@given(st.integers(70, 129))
def test_a_cuda_target_is_named_by_its_capability(capability: int) -> None:
    target = named_target(f"cuda-sm{capability}")
    assert target == cuda_target(capability)
    assert (target.capability, target.block) == (capability, 1)
    assert target.onnxruntime == host_target().onnxruntime


NO_TARGETS = (
    "",
    "CPU",
    "gpu",
    "cuda",
    "cuda-72",
    "cuda-sm7.2",
    "cuda-sm",
    "cuda-sm69",
    "cuda-sm130",
)


@over("name", [*NO_TARGETS, "cuda-sm072", "sparc-vis\n", " cpu", "cuda-sm72a"])
def test_other_names_are_refused_with_those_there_are(name: str) -> None:
    with refuses(ModelError, "cpu", host_target().isa, "cuda-sm70 to cuda-sm129", "cuda-sm72"):
        named_target(name)


def test_another_capability_will_do_only_where_kernels_are_compiled_again() -> None:
    host, xavier, orin = host_target(), cuda_target(72), cuda_target(87)
    assert xavier.runs_on(xavier)
    assert not xavier.runs_on(orin)
    assert xavier.runs_on(orin, recompile=True)
    for one, other in ((host, orin), (orin, host)):
        assert not one.runs_on(other)
        assert not one.runs_on(other, recompile=True)


def test_pack_says_its_target(cuda_pack: Pack) -> None:
    assert cuda_pack.manifest.target == replace(cuda_target(72), exact_weights=0)
    assert open_pack(cuda_pack.folder, cuda_target(72)) == cuda_pack


def test_pack_for_cuda_is_refused_on_the_cpu_with_the_command(cuda_pack: Pack) -> None:
    folder, isa = cuda_pack.folder, host_target().isa
    command = f"layerstream compile tiny.onnx -o {folder.parent} --target {isa}"
    with refuses(PackError, folder / "manifest.json", "cuda-sm72", f"device is {isa}", command):
        open_pack(folder)
    with refuses(PackError, command):
        open_pack(folder, recompile=True)


def test_pack_for_the_cpu_is_refused_on_cuda_with_the_command(tiny_pack: Pack) -> None:
    folder = tiny_pack.folder
    command = f"layerstream compile tiny.onnx -o {folder.parent} --target cuda-sm87"
    for recompile in (False, True):
        with refuses(PackError, folder, host_target().isa, "device is cuda-sm87", command):
            open_pack(folder, cuda_target(87), recompile=recompile)


def test_pack_for_another_capability_is_refused_or_recompiled(cuda_pack: Pack) -> None:
    orin = cuda_target(87)
    with refuses(
        PackError,
        cuda_pack.folder,
        "compiled for cuda-sm72, the device is cuda-sm87",
        "compile again with --target cuda-sm87, or use --recompile",
    ):
        open_pack(cuda_pack.folder, orin)
    assert open_pack(cuda_pack.folder, orin, recompile=True) == cuda_pack


def test_pack_with_another_block_is_not_recompiled(cuda_folder: Path) -> None:
    path = edit(cuda_folder, put("target", "block", 16))
    with refuses(PackError, path, "target"):
        open_pack(cuda_folder, cuda_target(87), recompile=True)


def test_every_target_can_be_read_and_damage_is_found(cuda_folder: Path, tiny_pack: Pack) -> None:
    assert read_pack(tiny_pack.folder) == tiny_pack
    edit(cuda_folder, put("target", "isa", "riscv64-v"))
    assert read_pack(cuda_folder).manifest.target.isa == "riscv64-v"
    path = edit(cuda_folder, put("pieces", 0, "graph", 99))
    with refuses(PackError, path, "pieces.0.graph"):
        read_pack(cuda_folder)


def test_capabilities_differ_in_nothing_but_the_name(
    cuda_pack: Pack, tiny_onnx: Path, tmp_path: Path
) -> None:
    options = CompileOptions(chunk_bytes=CHUNK_BYTES, target=cuda_target(90))
    other = read_pack(compile_onnx(tiny_onnx, tmp_path / "tiny", options))
    assert other.graphs == cuda_pack.graphs
    renamed = replace(cuda_pack.manifest, target=replace(cuda_target(90), exact_weights=0))
    assert other.manifest == renamed
