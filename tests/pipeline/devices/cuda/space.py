"""Where the tests of kernels put tensors, and what runs launches on them: this host, or a GPU.

With LAYERSTREAM_KERNELS=gpu tensors lie in managed memory, which has one address for both sides, and each
launch is waited for.
"""

import ctypes
import os
import weakref
from functools import cache
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from pipeline.devices.cuda.call import Arguments, KernelLaunch, Resolve
from pipeline.devices.cuda.driver import Driver
from tests.pipeline.devices.cuda.host.build import HostKernels

ON_GPU = os.environ.get("LAYERSTREAM_KERNELS") == "gpu"


class Kernels(Protocol):
    """Runs a launch to its end, on addresses of this process."""

    def launch(self, call: KernelLaunch, resolve: Resolve) -> None: ...


@cache
def gpu() -> Driver:
    """The GPU of this machine."""
    from pipeline.devices.cuda.cupy_driver import CupyDriver

    return CupyDriver()


class GpuKernels:
    """Launches on the GPU, one after the other."""

    def __init__(self) -> None:
        self._stream = gpu().create_stream()

    def launch(self, call: KernelLaunch, resolve: Resolve) -> None:
        arguments = Arguments(call.arguments, resolve)
        if call.module == "cublas":
            gpu().multiply(call, arguments, self._stream)
        else:
            function = gpu().function(call.module, call.function)
            gpu().launch(function, call, arguments, self._stream)
        gpu().synchronize_stream(self._stream)


@cache
def some_kernels() -> Kernels:
    """What runs launches here."""
    return GpuKernels() if ON_GPU else HostKernels()


def space(n_bytes: int) -> NDArray[np.uint8]:
    """Return memory that kernels and NumPy share, at a multiple of 256 bytes."""
    if not ON_GPU:
        whole = np.empty(n_bytes + 256, np.uint8)
        return whole[-whole.ctypes.data % 256 :][:n_bytes]
    address = gpu().allocate_managed(max(n_bytes, 1))
    held = (ctypes.c_uint8 * n_bytes).from_address(address)
    weakref.finalize(held, gpu().free, address)
    return np.ctypeslib.as_array(held)


def placed(array: NDArray[Any]) -> NDArray[Any]:
    """Return a copy of ``array`` where kernels find it."""
    copy = space(array.nbytes).view(array.dtype).reshape(array.shape)
    copy[...] = array
    return copy
