"""What only a GPU can show: memory by the driver's own count, faults of kernels, several processes."""

import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from models.packs.pack import Pack
from pipeline.devices.base import DeviceLostError
from pipeline.devices.cpu import CpuDevice
from pipeline.devices.cuda.call import Arguments, KernelLaunch
from pipeline.devices.cuda.cupy_driver import CupyDriver
from pipeline.devices.cuda.device import CudaDevice
from pipeline.devices.cuda.driver import CudaMemoryError
from pipeline.devices.cuda.trials import probe_kinds
from pipeline.planning.make import make_plan
from pipeline.program.program import Program
from pipeline.schedule.architectures import ARCHITECTURES
from tests.pipeline.devices.cuda.test_cuda_networks import (
    compiled,
    engine_of,
    expected,
    image,
    network,
    pack,
    source,
)

pytestmark = pytest.mark.gpu

__all__ = ["compiled", "expected", "image", "network", "pack", "source"]  # fixtures

# So many that a leak of a page each would show; `make bench-gpu` runs 10,000.
_SWEEPS = 2_000
# What the driver and the allocators of both sides keep for themselves.
_SLACK_BYTES = 8 << 20


@pytest.fixture(scope="module")
def device() -> Iterator[CudaDevice]:
    from pipeline.devices.cuda.cupy_driver import CupyDriver

    with closing(CudaDevice(CupyDriver(), CpuDevice())) as made:
        yield made


def used(device: CudaDevice) -> int:
    free, total = device.driver.memory_info()
    return total - free


def host_bytes() -> int:
    return int(Path("/proc/self/statm").read_text("ascii").split()[1]) * 4096


def test_some_kind_of_memory_works(device: CudaDevice, pack: Pack) -> None:
    found = probe_kinds(device, pack.weights_path)
    print(found)
    assert found["copied"] == ""


@pytest.mark.parametrize("name", ["async", "2s"])
def test_memory_is_as_planned_and_does_not_grow(
    device: CudaDevice, pack: Pack, image: NDArray[np.float32], name: str
) -> None:
    plan = make_plan(Program.as_compiled(pack), device.adapt(ARCHITECTURES[name]))
    before = used(device)
    with engine_of(pack, plan, device) as (engine, _):
        result = first = engine.run({"image": image})[0]["logits"]
        planned = plan.total_bytes - plan.staging_bytes
        assert used(device) - before <= planned + _SLACK_BYTES
        device_before, host_before = used(device), host_bytes()
        for _ in range(_SWEEPS):
            result = engine.run({"image": image})[0]["logits"]
        assert used(device) - device_before == 0
        assert host_bytes() - host_before < _SLACK_BYTES
        assert np.array_equal(result, first)
    assert used(device) <= before + _SLACK_BYTES


def test_more_than_the_device_has_is_refused_with_figures(device: CudaDevice) -> None:
    free, _ = device.driver.memory_info()
    with pytest.raises(CudaMemoryError, match="of the device's"):
        device.allocate("own", 2 * free)
    device.allocate("own", 1 << 20).close()  # and the device goes on


def fault() -> None:
    """Write to no address; say what waiting for that says, twice."""
    driver = CupyDriver()
    stream = driver.create_stream()
    call = KernelLaunch("strided", "copy_bytes", (1, 1, 1), 256, (16, 32, 16))
    arguments = Arguments((None, None, 16), lambda pointer: 0)
    driver.launch(driver.function("strided", "copy_bytes"), call, arguments, stream)
    for _ in range(2):
        try:
            driver.synchronize_stream(stream)
        except DeviceLostError as exc:
            print("lost:", exc)
    print("alive")


def test_a_kernel_that_faults_is_named_and_the_process_lives() -> None:
    program = f"from {__name__} import fault; fault()"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=True
    )
    lines = done.stdout.splitlines()
    assert lines[-1] == "alive"
    assert len([line for line in lines if line.startswith("lost:")]) == 2


@pytest.mark.parametrize("tool", ["memcheck", "racecheck"])
def test_kernels_are_clean_under_the_sanitizer(tool: str) -> None:
    sanitizer = shutil.which("compute-sanitizer")
    if sanitizer is None:
        pytest.skip("compute-sanitizer is not installed")
    done = subprocess.run(
        [
            *(sanitizer, "--tool", tool, "--error-exitcode", "9"),
            *(sys.executable, "-m", "tests.pipeline.devices.cuda.one_of_each"),
        ],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    assert "programs agree" in done.stdout


def test_two_processes_share_the_device(device: CudaDevice) -> None:
    text = (
        "from pipeline.devices.cuda.cupy_driver import CupyDriver\n"
        "driver = CupyDriver()\n"
        "address = driver.allocate(256 << 20)\n"
        "print(driver.memory_info()[0])\n"
    )
    before = device.driver.memory_info()[0]
    done = subprocess.run(
        [sys.executable, "-c", text], capture_output=True, text=True, timeout=120, check=True
    )
    assert int(done.stdout) < before
