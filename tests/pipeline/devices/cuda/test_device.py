"""The CUDA device on the fake driver: memory kinds, named errors, nothing left behind."""

import threading
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from loader.errors import LoaderError
from pipeline.devices.base import DeviceError, DeviceLostError, Tuning
from pipeline.devices.cpu import CpuDevice
from pipeline.devices.cuda.call import Arguments, DevicePointer, KernelLaunch, LaunchProgram
from pipeline.devices.cuda.device import CudaDevice, Waiter
from pipeline.devices.cuda.driver import (
    CudaCallError,
    CudaLostError,
    CudaMemoryError,
    Properties,
    error_of,
)
from pipeline.devices.cuda.kernel import CudaKernel
from pipeline.devices.cuda.operators.copies import copy_bytes
from pipeline.devices.cuda.trials import probe_file_mapping, probe_kinds
from pipeline.devices.device_memory import Use
from pipeline.schedule.architectures import ARCHITECTURES
from tests.examples import over
from tests.pipeline.devices.cuda.computing import compute
from tests.pipeline.devices.cuda.fake_driver import XAVIER, FakeDriver, Operation
from tests.pipeline.devices.cuda.host.build import HostKernels

DISCRETE = replace(XAVIER, integrated=False, concurrent_managed=True, capability=(9, 0))


@pytest.fixture
def driver() -> FakeDriver:
    return FakeDriver()


@pytest.fixture
def device(driver: FakeDriver) -> Iterator[CudaDevice]:
    with closing(CudaDevice(driver, CpuDevice())) as made:
        yield made
    assert (driver.used_bytes, driver.held) == (0, 0)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "weights.bin"
    path.write_bytes(np.random.default_rng(0).bytes(3 * 4096 + 100))
    return path


@pytest.mark.parametrize(("known", "managed"), [(XAVIER, ""), (DISCRETE, "share the memory")])
def test_every_kind_that_works_is_found(
    host_kernels: HostKernels, file: Path, known: Properties, managed: str
) -> None:
    driver = FakeDriver(known=known, compute=compute(host_kernels))
    with closing(CudaDevice(driver, CpuDevice())) as device:
        found = probe_kinds(device, file)
    assert (found["copied"], found["mapped"]) == ("", "")
    assert managed in found["managed"]
    assert bool(managed) == bool(found["managed"])
    assert (driver.used_bytes, driver.held) == (0, 0)


def test_a_kind_that_does_not_work_says_why(file: Path) -> None:
    driver = FakeDriver()  # its kernels do nothing, so no kernel sees what the disk wrote
    driver.fail["register"] = 801
    with closing(CudaDevice(driver, CpuDevice())) as device:
        found = probe_kinds(device, file)
    assert "register" in found["copied"]
    assert found["mapped"] == found["managed"] == "kernels see other bytes than the disk wrote"
    assert (driver.used_bytes, driver.held) == (0, 0)


def test_mapped_files_are_tried(device: CudaDevice, driver: FakeDriver, file: Path) -> None:
    assert probe_file_mapping(device, file) == ""
    driver.fail["register"] = 801
    assert "register" in probe_file_mapping(device, file)


def test_a_file_that_is_too_small_or_gone_is_named(device: CudaDevice, tmp_path: Path) -> None:
    (tmp_path / "small").write_bytes(b"x")
    with pytest.raises(LoaderError, match="small: smaller than a page"):
        probe_kinds(device, tmp_path / "small")


def test_managed_memory_is_the_cpus_only_while_lent(driver: FakeDriver) -> None:
    with closing(CudaDevice(driver, CpuDevice(), "managed")) as device:
        architecture = device.adapt(ARCHITECTURES["2s-md"])
        slots = architecture.slots
        assert slots == 2
        memory = device.allocate("shared", 2 * 8192, slots)
        for offset in (0, 8192):
            memory.lend(offset, 4096)
            memory.host(offset, 4096)[:] = bytes(4096)
            memory.reclaim(offset, 4096)
        memory.close()
        attached = [
            (operation.event, operation.stream)
            for operation in driver.log
            if operation.kind == "attach"
        ]
        first, second = attached[0][0], attached[2][0]
        stream = device.kernel_stream
        assert attached == [(first, 0), (first, stream), (second, 0), (second, stream)]
        assert first != second


def test_managed_memory_that_both_may_touch_is_one_ring() -> None:
    driver = FakeDriver(known=replace(XAVIER, concurrent_managed=True))
    with closing(CudaDevice(driver, CpuDevice(), "managed")) as device:
        assert device.adapt(ARCHITECTURES["2s-md"]) is ARCHITECTURES["2s-md"]
        memory = device.allocate("shared", 5 * 4096)
        memory.lend(4096, 4096)
        memory.reclaim(4096, 4096)
        memory.close()
    assert not [operation for operation in driver.log if operation.kind == "attach"]


def test_kinds_choose_the_pipeline_of_auto() -> None:
    for known, kind, stages in (
        (XAVIER, None, 2),
        (DISCRETE, None, 3),
        (XAVIER, "copied", 3),
        (DISCRETE, "mapped", 2),
    ):
        driver = FakeDriver(known=known)
        with closing(CudaDevice(driver, CpuDevice(), kind)) as device:  # type: ignore[arg-type]
            assert len(device.adapt(ARCHITECTURES["auto"]).stages) == stages
            assert device.adapt(ARCHITECTURES["async"]) is ARCHITECTURES["async"]
            assert device.adapt(ARCHITECTURES["pre"]) is ARCHITECTURES["pre"]


def test_a_profile_chooses_the_kind_unless_the_user_did(driver: FakeDriver) -> None:
    for asked, expected in ((None, "managed"), ("copied", "copied")):
        with closing(CudaDevice(driver, CpuDevice(), asked)) as device:  # type: ignore[arg-type]
            device.tune(Tuning(memory_kind="managed", precision="fp32", algorithms={"k": "direct"}))
            assert device.kind == expected
            assert device.settings.algorithms == {"k": "direct"}
            device.tune(Tuning(precision="fp16", algorithms={"other": "half"}))
            assert device.settings.algorithms == {"k": "direct"}


def test_too_little_device_memory_is_refused_with_figures(driver: FakeDriver) -> None:
    driver = FakeDriver(memory_bytes=1 << 20)
    with closing(CudaDevice(driver, CpuDevice())) as device:
        with pytest.raises(CudaMemoryError, match=r"2097152 bytes.*1048576 of .*1048576"):
            device.allocate("own", 2 << 20)
        sizes: dict[Use, int] = {
            "staging": 0,
            "shared": 300_000,
            "own": 700_000,
            "scratch": 100_000,
        }
        with pytest.raises(CudaMemoryError, match=r"needs 1100000 bytes.*1048576 of 1048576"):
            device.check(sizes)
        device.check({**sizes, "own": 600_000})
    driver = FakeDriver(known=DISCRETE, memory_bytes=1 << 20)
    with closing(CudaDevice(driver, CpuDevice())) as device:
        device.check({**sizes, "staging": 1 << 30, "shared": 1 << 30})  # the host's, here
        with pytest.raises(CudaMemoryError, match="needs 1100000 bytes"):
            device.check({**sizes, "scratch": 400_000})


@over(
    "status, kind",
    [(2, CudaMemoryError), (700, CudaLostError), (719, CudaLostError), (1, CudaCallError)],
)
def test_statuses_have_names(status: int, kind: type[DeviceError]) -> None:
    assert type(error_of(status, "what happened")) is kind
    assert "what happened" in str(error_of(status, "what happened"))


def test_a_lost_device_says_so_to_everyone(driver: FakeDriver) -> None:
    device = CudaDevice(driver, CpuDevice())
    memory = device.allocate("own", 4096)
    driver.fail["run copy"] = 700
    with pytest.raises(DeviceLostError, match="until a restart"):
        memory.write(0, np.zeros(16, np.uint8))
    with pytest.raises(DeviceLostError):
        device.allocate("own", 4096)
    device.close()  # and does not hang


def test_scratch_that_is_too_small_is_refused(device: CudaDevice) -> None:
    call = copy_bytes(DevicePointer("input"), DevicePointer("inner"), 4096)
    kernel = CudaKernel(device.driver, device.kernel_stream, LaunchProgram((call,), 4096))
    memory = device.allocate("own", 4096)
    array = memory.array(0, "uint8", (4096,))
    small = device.allocate("scratch", 256)
    for scratch in (None, small):
        with pytest.raises(DeviceError, match="4096 bytes of scratch"):
            kernel.bind([array], [], scratch)
    small.close()
    memory.close()


def test_callbacks_come_in_order_with_errors(driver: FakeDriver) -> None:
    stream = driver.create_stream()
    waiter = Waiter(driver, stream, "test")
    ended: list[tuple[int, bool]] = []
    for number in range(20):
        waiter.after(
            lambda: driver.enqueue(Operation("launch", "touch", stream)),
            lambda error, seconds, number=number: ended.append((number, error is None)),  # type: ignore[misc]
        )
    driver.fail["touch"] = 1
    with pytest.raises(CudaCallError):
        waiter.after(
            lambda: driver.enqueue(Operation("launch", "touch", stream)),
            lambda error, seconds: ended.append((99, False)),
        )
    waiter.close()
    assert ended == [(number, True) for number in range(20)]
    driver.drain()
    driver.destroy_stream(stream)
    assert driver.held == 0


def test_nothing_is_enqueued_where_no_thread_could_wait_for_it(
    driver: FakeDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is in a stream cannot be revoked: its memory would be closed while it is written."""
    waiter, calls = Waiter(driver, driver.create_stream(), "test"), list[str]()

    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        with pytest.raises(RuntimeError, match="new thread"):
            waiter.after(lambda: calls.append("enqueued"), lambda *_: calls.append("done"))
    assert calls == []
    waiter.after(lambda: calls.append("enqueued"), lambda *_: calls.append("done"))
    waiter.close()
    assert calls == ["enqueued", "done"]


def test_arguments_are_where_the_driver_wants_them() -> None:
    call = KernelLaunch(
        "m", "f", (1, 1, 1), 32, (DevicePointer("input", 0, 8), None, 7, 0.5, (1, 2, 3))
    )
    arguments = Arguments(call.arguments, lambda pointer: 1000 + pointer.offset)
    assert arguments.values == [1008, 0, 7, 0.5, (1, 2, 3)]
