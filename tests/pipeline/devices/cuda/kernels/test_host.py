"""The host build: threads, barriers and warps as on a GPU, and errors where a GPU would go wrong."""

from pathlib import Path

import numpy as np
import pytest

from pipeline.devices.cuda.call import Argument, DevicePointer, KernelLaunch
from tests.examples import over
from tests.pipeline.devices.cuda.conftest import missing
from tests.pipeline.devices.cuda.guarded_memory import Array, HostMemory
from tests.pipeline.devices.cuda.host.build import (
    HostKernels,
    LaunchError,
    compiler_missing,
    kernel_names,
)
from tests.pipeline.devices.cuda.space import ON_GPU

pytestmark = pytest.mark.skipif(ON_GPU, reason="the host build is no matter of a GPU")

SOURCE = """
struct Sizes { int count, step; };

#define KERNEL(name, ...) extern "C" __global__ void __launch_bounds__(1024, 1) name(__VA_ARGS__)

KERNEL(where, float* y) {
    const int block = (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
    y[block * blockDim.x + threadIdx.x] = block + threadIdx.x / 1000.0f;
}

KERNEL(scaled, const float* x, float* y, Sizes sizes, float factor) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < sizes.count) y[i] = x[i * sizes.step] * factor;
}

KERNEL(turned, float* y, int times) {
    __shared__ float shown[1024];
    for (int i = 0; i < times; ++i) {
        shown[threadIdx.x] = y[threadIdx.x];
        __syncthreads();
        y[threadIdx.x] = shown[(threadIdx.x + 1) % blockDim.x];
        __syncthreads();
    }
}

KERNEL(lanes, float* y) {
    float* mine = y + threadIdx.x * 4;
    const float value = threadIdx.x;
    mine[0] = __shfl_xor_sync(0xffffffffu, value, 5);
    mine[1] = __shfl_down_sync(0xffffffffu, value, 3);
    mine[2] = __shfl_up_sync(0xffffffffu, value, 3);
    mine[3] = __shfl_sync(0xffffffffu, value, 7);
}

KERNEL(some_leave, float* y) {
    if (threadIdx.x > 3) return;
    __syncthreads();
}

KERNEL(two_barriers, float* y) {
    if (threadIdx.x > 3) {
        __syncthreads();
    } else {
        __syncthreads();
    }
}

KERNEL(lane_leaves, float* y) {
    if (threadIdx.x == 3) return;
    __syncwarp();
}

KERNEL(misaligned, const float* x, float* y) {
    *reinterpret_cast<float4*>(y) = *reinterpret_cast<const float4*>(x + 1);
}

KERNEL(long_misaligned, const float* x, float* y) {
    *reinterpret_cast<long long*>(y) = *reinterpret_cast<const long long*>(x + 1);
}
"""
X, Y = DevicePointer("input"), DevicePointer("output")


@pytest.fixture(scope="module")
def probes(tmp_path_factory: pytest.TempPathFactory) -> HostKernels:
    if compiler_missing():
        missing("g++")
    folder = tmp_path_factory.mktemp("kernels")
    (folder / "probe.cu").write_text(SOURCE)
    return HostKernels(folder)


def launch(
    probes: HostKernels,
    function: str,
    *arguments: Argument,
    grid: tuple[int, int, int] = (1, 1, 1),
    block: int = 64,
    size: int = 64,
) -> Array:
    memory = HostMemory([np.arange(64, dtype=np.float32)], [(size,)])
    memory.outputs[0][:] = np.arange(size)
    memory.run(probes, [KernelLaunch("probe", function, grid, block, arguments)])
    return memory.outputs[0]


def test_kernels_are_found_behind_macros(tmp_path: Path) -> None:
    if compiler_missing():
        missing("g++")
    (tmp_path / "probe.cu").write_text(SOURCE)
    names = ["where", "scaled", "turned", "lanes", "some_leave", "two_barriers", "lane_leaves"]
    assert kernel_names(tmp_path / "probe.cu") == [*names, "misaligned", "long_misaligned"]


def test_all_threads_of_all_blocks_run(probes: HostKernels) -> None:
    result = launch(probes, "where", Y, grid=(2, 3, 4), block=10, size=240)
    expected = [block + thread / 1000 for block in range(24) for thread in range(10)]
    np.testing.assert_allclose(result, expected, rtol=1e-6)


def test_arguments_arrive(probes: HostKernels) -> None:
    result = launch(probes, "scaled", X, Y, (20, 3), 0.5)
    np.testing.assert_array_equal(result[:20], np.arange(20) * 1.5)
    np.testing.assert_array_equal(result[20:], np.arange(20, 64))


@over("block", [1, 31, 64, 1024])
def test_barriers_part_what_threads_do(probes: HostKernels, block: int) -> None:
    result = launch(probes, "turned", Y, 5, block=block, size=block)
    np.testing.assert_array_equal(result, np.roll(np.arange(block), -5))


def test_lanes_see_each_other(probes: HostKernels) -> None:
    result = launch(probes, "lanes", Y, size=256).reshape(64, 4)
    thread = np.arange(64)
    lane, warp = thread % 32, thread // 32 * 32
    np.testing.assert_array_equal(result[:, 0], thread ^ 5)
    np.testing.assert_array_equal(result[:, 1], np.where(lane < 29, thread + 3, thread))
    np.testing.assert_array_equal(result[:, 2], np.where(lane > 2, thread - 3, thread))
    np.testing.assert_array_equal(result[:, 3], warp + 7)


@over(
    "function, arguments, message",
    [
        ("some_leave", (Y,), "while a barrier waits"),
        ("two_barriers", (Y,), "different barriers"),
        ("lane_leaves", (Y,), "ended while its warp waits"),
        ("misaligned", (X, Y), "where it must not"),
        ("long_misaligned", (X, Y), "where it must not"),
        ("scaled", (X, Y, (64, 2), 1.0), "where it must not"),
        ("scaled", (X, Y, (64, 2), 1), "takes pps2;f, not pps2;i"),
        ("scaled", (X, Y, (64, 2, 1), 1.0), "takes pps2;f, not pps3;f"),
        ("scaled", (X, Y, (64, 2)), "takes pps2;f, not pps2;"),
    ],
)
def test_wrong_launches_fail(
    probes: HostKernels, function: str, arguments: tuple[Argument, ...], message: str
) -> None:
    with pytest.raises(LaunchError, match=message):
        launch(probes, function, *arguments)
    test_barriers_part_what_threads_do(probes=probes)


def test_a_block_has_at_most_1024_threads(probes: HostKernels) -> None:
    with pytest.raises(LaunchError, match="1 to 1024"):
        launch(probes, "where", Y, block=1025)
