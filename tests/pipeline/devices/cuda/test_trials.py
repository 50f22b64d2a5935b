"""Algorithms and memory kinds by measurement: whatever is chosen, all architectures give the same bits."""

from contextlib import closing

import numpy as np
import pytest

from models.packs.pack import Pack
from models.records import plain, read_json, to_json
from pipeline.devices.cpu import CpuDevice
from pipeline.devices.cuda.call import Arguments, KernelLaunch
from pipeline.devices.cuda.device import CudaDevice
from pipeline.devices.cuda.operators.convolutions.algorithms import Algorithm
from pipeline.devices.cuda.trials import fastest_algorithms
from pipeline.fitting.fit import fit
from pipeline.fitting.wanted import Wanted
from pipeline.measuring.profiling import profile_pack
from pipeline.planning.make import make_plan
from pipeline.profiles.profile import Profile
from pipeline.program.prepare import prepare
from pipeline.schedule.architectures import ARCHITECTURES
from tests.pipeline.devices.cuda.computing import compute
from tests.pipeline.devices.cuda.fake_driver import FakeDriver
from tests.pipeline.devices.cuda.host.build import HostKernels
from tests.pipeline.devices.cuda.test_cuda_networks import (
    Tensor,
    answer,
    device_on,
    expected,
    image,
    pack,
    source,
)

__all__ = ["expected", "image", "pack", "source"]  # fixtures


class Clock(FakeDriver):
    """A program takes as long as its kernels: ``fast`` names those that take less than others."""

    fast = ""

    def elapsed(self, start: int, end: int) -> float:
        names = [operation.name for operation in self.log if operation.kind == "launch"]
        return 1.0 if self.fast and self.fast in names[-1] else 2.0


@pytest.mark.slow
@pytest.mark.parametrize("fast", ["reduce_splits", "transform_output", "bias_activate", ""])
def test_the_fastest_is_chosen_and_bits_stay_those_of_pre(
    host_kernels: HostKernels, pack: Pack, image: Tensor, expected: Tensor, fast: str
) -> None:
    driver = Clock(compute=compute(host_kernels))
    driver.fast = fast
    with closing(CudaDevice(driver, CpuDevice())) as device:
        [tuning, *_] = device.tunings(pack.graphs, pack.weights_path)
        kinds = {Algorithm.parse(name).kind for name in tuning.algorithms.values()}
        if fast == "transform_output":
            assert "winograd" in kinds
        elif fast == "reduce_splits":
            assert "split" in kinds
        device.tune(tuning)
        fitted = prepare(pack, device)
        results = [
            answer(pack, make_plan(fitted, device.adapt(ARCHITECTURES[name])), device, image)
            for name in ("pre", "async")
        ]
    assert all(np.array_equal(result, results[0]) for result in results)
    assert np.abs(results[0] - expected).max() <= 1e-4 * np.abs(expected).max()


class Fickle(FakeDriver):
    """Its library gives other bits where there are fewer filters, as cuBLAS may."""

    def multiply(self, call: KernelLaunch, arguments: Arguments, stream: int) -> None:
        super().multiply(call, arguments, stream)
        sizes, result = arguments.values[2:5], arguments.values[11]

        def run() -> None:
            import ctypes

            first = ctypes.c_float.from_address(result)
            first.value += 1e-3 * (sizes[0] + sizes[1])

        from tests.pipeline.devices.cuda.fake_driver import Operation

        self.enqueue(Operation("launch", "rounding", stream, run=run))

    def elapsed(self, start: int, end: int) -> float:
        names = [operation.name for operation in self.log if operation.kind == "launch"]
        return 1.0 if "bias_activate" in names[-1] or "rounding" in names[-1] else 2.0


def test_a_library_whose_bits_depend_on_the_filters_is_not_taken(
    host_kernels: HostKernels, pack: Pack
) -> None:
    driver = Fickle(compute=compute(host_kernels))
    with closing(CudaDevice(driver, CpuDevice())) as device:
        chosen = fastest_algorithms(device, pack.graphs)
    several = [name for name in chosen.values() if Algorithm.parse(name).is_library]
    assert chosen
    assert len(several) < len(chosen)


@pytest.mark.slow
def test_a_profile_on_the_device_plans_auto(
    host_kernels: HostKernels, pack: Pack, image: Tensor
) -> None:
    driver = FakeDriver(compute=compute(host_kernels))
    with device_on(driver) as device:
        profile = profile_pack(pack, device, iterations=1)
        assert profile.tuning.memory_kind in ("copied", "mapped", "managed")
        assert profile.tuning.memory_kind == device.kind
        assert profile.machine.gpu == device.gpu
        assert read_json(Profile, to_json(plain(profile))) == profile
        limit = 4 * pack.manifest.largest_chunk_bytes
        fitted = prepare(pack, device)
        plans = [
            fit(fitted, device.adapt(ARCHITECTURES[name]), wanted, profile).plan
            for name, wanted in (
                ("pre", Wanted()),
                ("auto", Wanted(weight_bytes=limit)),
                ("async-md", Wanted()),
                ("2s-md", Wanted()),
            )
        ]
        results = [answer(pack, plan, device, image) for plan in plans]
    assert all(np.array_equal(result, results[0]) for result in results)
