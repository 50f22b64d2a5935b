"""Every kernel compiles for the GPUs that matter, and fits them: no spills, little shared memory."""

import pytest

from tests.examples import over
from tests.pipeline.devices.cuda.conftest import missing
from tests.pipeline.devices.cuda.host.build import KERNELS, MODULES, compiler_missing, kernel_names
from tests.pipeline.devices.cuda.kernels import nvrtc

#: Jetson Xavier: no kernel depends on the GPU it is compiled for, and this one has the fewest instructions.
OLDEST = "sm_72"
#: Jetson Orin, H100 and H200.
ARCHITECTURES = [
    OLDEST,
    *(pytest.param(name, marks=pytest.mark.slow) for name in ("sm_87", "sm_90")),
]
#: Three blocks of 128 threads, or their like, on a multiprocessor of 65536 registers. What launch
#: bounds ask for beyond that, the compiler keeps to by spilling, which is looked for as well.
MOST_REGISTERS = 168
MOST_SHARED_BYTES = 48 << 10


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("module", MODULES)
def test_kernels_compile_and_fit(module: str, architecture: str) -> None:
    if nvrtc.library_path() is None:
        missing("nvidia-cuda-nvrtc-cu12")
    found = nvrtc.usage(module, architecture)
    assert found
    for name, used in found.items():
        assert used.spill_bytes == 0, (name, used)
        assert used.stack_bytes == 0, (name, used)
        assert used.registers <= MOST_REGISTERS, (name, used)
        assert used.shared_bytes <= MOST_SHARED_BYTES, (name, used)


@over("module", MODULES)
def test_both_compilers_see_the_same_kernels(module: str) -> None:
    if nvrtc.library_path() is None:
        missing("nvidia-cuda-nvrtc-cu12")
    if compiler_missing():
        missing("g++")
    found = nvrtc.usage(module, OLDEST)
    assert set(found) == set(kernel_names(KERNELS / f"{module}.cu"))
