"""``--device cuda``: without CuPy or a GPU one line; on a fake GPU the answers of the CPU."""

import sys
from pathlib import Path
from shutil import copytree

import numpy as np
import pytest

from models.compiler import CompileOptions, compile_onnx
from models.packs.target import named_target
from pipeline.devices.find import device_measure
from tests.pipeline.devices.cuda.computing import compute
from tests.pipeline.devices.cuda.fake_driver import FakeDriver
from tests.pipeline.devices.cuda.host.build import HostKernels, compiler_missing
from tests.server.conftest import SettingsFactory
from tests.server.support import (
    BAD,
    FAILED,
    Cli,
    Packs,
    arrays,
    close,
    error,
    inputs_for,
    serving,
)

DEVICE = ("--device", "cuda")


@pytest.fixture(scope="module")
def compiled_for_cuda(packs: Packs, tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = named_target("cuda-sm72")
    options = CompileOptions(chunk_bytes=16 << 10, target=target, measure=device_measure(target))
    folder = tmp_path_factory.mktemp("cuda") / "tiny"
    compile_onnx(packs.sources["tiny"], folder, options)
    return folder


@pytest.fixture
def for_cuda(compiled_for_cuda: Path, tmp_path: Path) -> Path:
    return Path(copytree(compiled_for_cuda, tmp_path / "packs" / "tiny"))


@pytest.fixture
def tensor(tmp_path: Path) -> Path:
    path = tmp_path / "x.npy"
    np.save(path, inputs_for("tiny")["image"])
    return path


@pytest.fixture
def fake_gpu(monkeypatch: pytest.MonkeyPatch) -> FakeDriver:
    """A GPU of capability 7.2 whose kernels run on the host."""
    if compiler_missing():
        pytest.skip("g++ is not installed")
    driver = FakeDriver(compute=compute(HostKernels()))
    monkeypatch.setattr("pipeline.devices.cuda.cupy_driver.CupyDriver", lambda number: driver)
    return driver


@pytest.mark.parametrize(
    "command",
    [
        ("serve", "--repository", "{folder}", "--budget", "64MiB", "--port", "0"),
        ("run", "{pack}", "--input", "{tensor}"),
        ("profile", "{pack}"),
        ("plan", "{pack}", "--budget", "64MiB"),
        ("simulate", "{pack}"),
        ("bench", "pipeline", "{pack}"),
    ],
)
def test_without_cupy_every_command_says_so_in_one_line(
    cli: Cli,
    for_cuda: Path,
    tensor: Path,
    monkeypatch: pytest.MonkeyPatch,
    command: tuple[str, ...],
) -> None:
    monkeypatch.setitem(sys.modules, "cupy", None)
    names = {"folder": for_cuda.parent, "pack": for_cuda, "tensor": tensor}
    result = cli(*(part.format(**names) for part in command), *DEVICE)
    assert result.code == FAILED
    assert "CuPy is not installed" in result.err
    assert result.err.count("\n") == 1


def test_names_of_devices_are_checked(cli: Cli, for_cuda: Path, tensor: Path) -> None:
    for options in (
        ("--device", "tpu"),
        ("--device", "cuda:x"),
        ("--memory-kind", "shared"),
        ("--precision", "int8"),
    ):
        result = cli("run", for_cuda, "--input", tensor, *options)
        assert result.code == BAD
        assert options[1] in result.err


def test_kernels_are_shown_without_a_gpu(cli: Cli, packs: Packs, for_cuda: Path) -> None:
    shown = cli("inspect", for_cuda, *DEVICE, "--json").document
    assert shown["layers_on_cpu"] == 0
    assert all(row["kernels"] for row in shown["layer_table"])
    said = cli("inspect", for_cuda, *DEVICE).out
    assert "convolve" in said
    commands = [line for line in said.splitlines() if line.startswith("  layerstream")]
    assert len(commands) == 2
    assert all(line.endswith("--device cuda") for line in commands)
    result = cli("inspect", packs.repository / "tiny", *DEVICE)
    assert result.code == BAD
    assert "--target cuda" in result.err


@pytest.mark.usefixtures("fake_gpu")
def test_answers_of_the_gpu_are_those_of_the_cpu(
    cli: Cli, packs: Packs, for_cuda: Path, tensor: Path, tmp_path: Path
) -> None:
    here, there = tmp_path / "cpu.npy", tmp_path / "cuda.npy"
    on_cpu = cli("run", packs.repository / "tiny", "--input", tensor, "--output", here)
    assert on_cpu.code == 0
    for kind in ("copied", "mapped", "managed"):
        options = ("--output", there, "--memory-kind", kind)
        assert cli("run", for_cuda, "--input", tensor, *DEVICE, *options).code == 0
        np.testing.assert_allclose(np.load(there), np.load(here), rtol=1e-4, atol=1e-5)


@pytest.mark.slow
@pytest.mark.usefixtures("fake_gpu")
def test_a_profile_and_plans_on_the_gpu(cli: Cli, for_cuda: Path) -> None:
    profile = cli("profile", for_cuda, *DEVICE, "--iterations", 1, "--json").document
    assert profile["tuning"]["memory_kind"]
    assert "sm_72" in profile["machine"]["gpu"]
    plan = cli("plan", for_cuda, *DEVICE, "--weights", "60%", "--json").document
    assert plan["packs"][0]["delay_ms"] > 0
    result = cli("plan", for_cuda, "--budget", "64MiB")
    assert result.code == BAD  # the pack is not for this CPU
    assert "cuda-sm72" in result.err


@pytest.mark.usefixtures("fake_gpu")
def test_a_pack_for_another_capability_is_refused_or_recompiled(
    cli: Cli, packs: Packs, tensor: Path, tmp_path: Path
) -> None:
    pack = tmp_path / "other" / "tiny"
    source = packs.sources["tiny"]
    assert cli("compile", source, "-o", pack, "--target", "cuda-sm90").code == 0
    result = cli("run", pack, "--input", tensor, *DEVICE)
    assert result.code == BAD
    for part in ("cuda-sm90", "cuda-sm72", "--recompile"):
        assert part in result.err
    assert cli("run", pack, "--input", tensor, *DEVICE, "--recompile").code == 0


@pytest.mark.usefixtures("fake_gpu")
def test_what_the_device_can_do_is_shown(cli: Cli, tmp_path: Path) -> None:
    shown = cli("device", "cuda", "--folder", tmp_path, "--json").document
    assert shown["memory_kinds"] == {"copied": "", "mapped": "", "managed": ""}
    assert shown["target"] == "cuda-sm72"
    assert "works" in cli("device", "cuda", "--folder", tmp_path).out
    assert cli("device", "cpu", "--json").document["gpu"] == ""
    result = cli("device", "cuda", "--folder", tmp_path / "nowhere")
    assert (result.code, result.err.count("\n")) == (BAD, 1)


async def test_a_service_on_the_gpu_answers_and_outlives_a_fault(
    settings: SettingsFactory, packs: Packs, fake_gpu: FakeDriver, for_cuda: Path
) -> None:
    inputs = inputs_for("tiny")
    changes = {"repository": for_cuda.parent, "models": ("tiny",), "device": "cuda"}
    async with serving(settings(models_budget=16 << 20, **changes)) as service:
        for _ in range(3):
            answer = await service.infer("tiny", inputs)
            assert answer.status_code == 200
            close(arrays(answer), packs.expected("tiny", inputs))
        used = await service.metric("layerstream_device_memory_bytes", state="used")
        assert used == fake_gpu.used_bytes
        kernel = [item.name for item in fake_gpu.log if item.kind == "launch"][-1]
        fake_gpu.fail[f"run {kernel}"] = 700
        error(await service.infer("tiny", inputs), 500, "lost until a restart")
        error(await service.infer("tiny", inputs), 503, "lost until a restart")
        assert (await service.client.get("/v2/health/live")).status_code == 200
        assert await service.metric("layerstream_device_lost") == 1
        assert (await service.client.get("/v2/health/ready")).status_code == 503
