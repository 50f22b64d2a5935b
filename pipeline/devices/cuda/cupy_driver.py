"""The driver on a GPU, through CuPy: the only module that imports it.

CuPy's pools are not used: they free without knowing events. Nor are its streams: plain handles do.
"""

import ctypes
import os
import threading
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from pipeline.devices.base import DeviceError
from pipeline.devices.cuda.call import OPTIONS, Arguments, KernelLaunch, source
from pipeline.devices.cuda.driver import (
    CudaCallError,
    CudaMissingError,
    Driver,
    Properties,
    Stretches,
    error_of,
    version,
)

T = TypeVar("T")

# cudaHostRegisterPortable | cudaHostRegisterMapped; cudaMemcpyDefault: the addresses give the direction.
_REGISTER = 1 | 2
_DEFAULT = 4
# CUmemAttach_flags: to the CPU, to one stream (cuda.h; CuPy has no call that attaches).
_ATTACH_HOST, _ATTACH_SINGLE = 2, 4
# CU_MEMORYTYPE_HOST, CU_MEMORYTYPE_DEVICE.
_HOST_MEMORY, _DEVICE_MEMORY = 1, 2


class _Copy2D(ctypes.Structure):
    """CUDA_MEMCPY2D of the driver."""

    _fields_ = (
        ("srcXInBytes", ctypes.c_size_t),
        ("srcY", ctypes.c_size_t),
        ("srcMemoryType", ctypes.c_uint),
        ("srcHost", ctypes.c_void_p),
        ("srcDevice", ctypes.c_uint64),
        ("srcArray", ctypes.c_void_p),
        ("srcPitch", ctypes.c_size_t),
        ("dstXInBytes", ctypes.c_size_t),
        ("dstY", ctypes.c_size_t),
        ("dstMemoryType", ctypes.c_uint),
        ("dstHost", ctypes.c_void_p),
        ("dstDevice", ctypes.c_uint64),
        ("dstArray", ctypes.c_void_p),
        ("dstPitch", ctypes.c_size_t),
        ("WidthInBytes", ctypes.c_size_t),
        ("Height", ctypes.c_size_t),
    )


class CupyDriver(Driver):
    """Device ``number`` of those that CUDA_VISIBLE_DEVICES leaves.

    Raises:
        CudaMissingError: CuPy, the driver or the device is missing, or the driver is too old.
    """

    def __init__(self, number: int = 0) -> None:
        cupy = _import_cupy()
        from cupy_backends.cuda.api import driver, runtime

        self._cupy, self._driver, self._runtime = cupy, driver, runtime
        self._errors = (runtime.CUDARuntimeError, driver.CUDADriverError)
        self._number = number
        self._local = threading.local()
        self._modules: dict[str, Any] = {}
        self._functions: dict[tuple[str, str], Any] = {}
        self._lock = threading.Lock()
        self._streams: dict[int, Any] = {}
        _check_count(runtime, number)
        self._integrated = self.properties().integrated
        self._cublas, self._handle = self._do("cuBLAS", _open_cublas)

    def _do(self, what: str, action: Callable[[], T]) -> T:
        """Run ``action`` with this device current on the calling thread."""
        try:
            if not getattr(self._local, "current", False):
                self._runtime.setDevice(self._number)
                self._runtime.free(0)  # makes the context current for calls of the driver's own API
                self._local.current = True
            return action()
        except self._errors as exc:
            raise error_of(int(exc.status), f"{what}: {exc}") from exc

    def properties(self) -> Properties:
        runtime = self._runtime

        def attribute(name: str) -> int:
            return int(
                runtime.deviceGetAttribute(getattr(runtime, f"cudaDevAttr{name}"), self._number)
            )

        def read() -> Properties:
            known = runtime.getDeviceProperties(self._number)
            return Properties(
                name=known["name"].decode(),
                capability=(known["major"], known["minor"]),
                multiprocessors=known["multiProcessorCount"],
                integrated=bool(attribute("Integrated")),
                concurrent_managed=bool(attribute("ConcurrentManagedAccess")),
                can_map=bool(attribute("CanMapHostMemory")),
                can_register=bool(attribute("HostRegisterSupported")),
                has_managed=bool(attribute("ManagedMemory")),
                driver_version=runtime.driverGetVersion(),
                runtime_version=runtime.runtimeGetVersion(),
            )

        return self._do("properties", read)

    def memory_info(self) -> tuple[int, int]:
        free, total = self._do("memory", self._runtime.memGetInfo)
        if self._integrated:
            # There the runtime counts the page cache as used, which the system gives back when asked
            # (NVIDIA, "CUDA for Tegra", Estimating Total Allocatable Device Memory).
            free = min(max(free, available_bytes()), total)
        return int(free), int(total)

    def allocate(self, n_bytes: int) -> int:
        return self._do(f"{n_bytes} bytes", lambda: int(self._runtime.malloc(n_bytes)))

    def free(self, address: int) -> None:
        self._do("free", lambda: self._runtime.free(address))

    def allocate_managed(self, n_bytes: int) -> int:
        return self._do(f"{n_bytes} bytes", lambda: int(self._runtime.mallocManaged(n_bytes)))

    def attach(self, address: int, stream: int | None) -> None:
        self._call(
            "cuStreamAttachMemAsync",
            ctypes.c_void_p(stream or 0),
            ctypes.c_uint64(address),
            ctypes.c_size_t(0),
            ctypes.c_uint(_ATTACH_HOST if stream is None else _ATTACH_SINGLE),
        )
        if stream is None:
            self._do("attach managed memory", lambda: self._runtime.streamSynchronize(0))

    def register(self, address: int, n_bytes: int) -> int:
        def register() -> int:
            self._runtime.hostRegister(address, n_bytes, _REGISTER)
            return int(self._runtime.pointerGetAttributes(address).devicePointer)

        return self._do(f"page-lock {n_bytes} bytes", register)

    def unregister(self, address: int) -> None:
        self._do("unlock pages", lambda: self._runtime.hostUnregister(address))

    def create_stream(self) -> int:
        stream = self._do("stream", lambda: self._cupy.cuda.Stream(non_blocking=True))
        self._streams[int(stream.ptr)] = stream
        return int(stream.ptr)

    def destroy_stream(self, stream: int) -> None:
        del self._streams[stream]  # CuPy's object destroys it

    def synchronize_stream(self, stream: int) -> None:
        event = self.create_event()  # streamSynchronize itself would spin
        try:
            self.record(event, stream)
            self.synchronize(event)
        finally:
            self.destroy_event(event)

    def create_event(self) -> int:
        flags = self._runtime.eventBlockingSync
        return self._do("event", lambda: int(self._runtime.eventCreateWithFlags(flags)))

    def destroy_event(self, event: int) -> None:
        self._do("event", lambda: self._runtime.eventDestroy(event))

    def record(self, event: int, stream: int) -> None:
        self._do("record", lambda: self._runtime.eventRecord(event, stream))

    def synchronize(self, event: int) -> None:
        self._do("kernels or copies before it", lambda: self._runtime.eventSynchronize(event))

    def elapsed(self, start: int, end: int) -> float:
        milliseconds = self._do("time", lambda: self._runtime.eventElapsedTime(start, end))
        return float(milliseconds) / 1e3

    def copy(self, target: int, source: int, n_bytes: int, stream: int) -> None:
        self._do(
            "copy", lambda: self._runtime.memcpyAsync(target, source, n_bytes, _DEFAULT, stream)
        )

    def copy_rows(
        self, target: Stretches, source: Stretches, stream: int, from_host: bool = False
    ) -> None:
        copy = _Copy2D(
            srcMemoryType=_HOST_MEMORY if from_host else _DEVICE_MEMORY,
            srcHost=source.address if from_host else 0,
            srcDevice=0 if from_host else source.address,
            srcPitch=source.pitch,
            dstMemoryType=_DEVICE_MEMORY,
            dstDevice=target.address,
            dstPitch=target.pitch,
            WidthInBytes=target.n_bytes,
            Height=target.number,
        )
        self._call("cuMemcpy2DAsync_v2", ctypes.byref(copy), ctypes.c_void_p(stream))

    def fill_rows(self, target: Stretches, bits: int, stream: int) -> None:
        self._call(
            "cuMemsetD2D32Async",
            ctypes.c_uint64(target.address),
            ctypes.c_size_t(target.pitch),
            ctypes.c_uint(bits),
            ctypes.c_size_t(target.n_bytes // 4),
            ctypes.c_size_t(target.number),
            ctypes.c_void_p(stream),
        )

    def _call(self, name: str, *arguments: Any) -> None:
        """Call a function of the driver that CuPy does not have."""

        def call() -> None:
            status = getattr(_libcuda(), name)(*arguments)
            if status:
                raise error_of(status, f"{name}: error {status}")

        self._do(name, call)

    def function(self, module: str, name: str) -> int:
        with self._lock:
            if (module, name) not in self._functions:
                self._functions[module, name] = self._do(
                    f"{module}.cu", lambda: self._compiled(module).get_function(name).kernel
                )
            return int(self._functions[module, name].ptr)

    def _compiled(self, module: str) -> Any:
        """Return ``module`` compiled for this device; CuPy keeps the result on disk by content."""
        if module not in self._modules:
            try:
                compiled = self._cupy.RawModule(
                    code=source(module), options=OPTIONS, backend="nvrtc"
                )
                compiled.compile()
            except self._errors:
                raise  # CUDA's own, which have statuses
            except (
                self._cupy.cuda.compiler.CompileException,
                RuntimeError,
                ImportError,
                OSError,
            ) as exc:
                # Also a toolkit that is missing, and a cache that cannot be written.
                raise DeviceError(f"kernels/{module}.cu does not compile: {exc}") from exc
            self._modules[module] = compiled
        return self._modules[module]

    def launch(self, function: int, call: KernelLaunch, arguments: Arguments, stream: int) -> None:
        self._do(
            call.function,
            lambda: self._driver.launchKernel(
                function, *call.grid, call.block, 1, 1, 0, stream, arguments.address, 0
            ),
        )

    @property
    def has_cublas(self) -> bool:
        return self._cublas is not None

    def multiply(self, call: KernelLaunch, arguments: Arguments, stream: int) -> None:
        if self._cublas is None:
            raise DeviceError("cuBLAS is not installed")
        transa, transb, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc = arguments.values
        one, other = ctypes.c_float(alpha), ctypes.c_float(beta)

        def multiply() -> None:
            # CuPy sets the handle's stream to the current one of the thread at every call.
            with self._streams[stream]:
                self._cublas.sgemm(
                    self._handle, transa, transb, m, n, k, ctypes.addressof(one), a, lda, b, ldb,
                    ctypes.addressof(other), c, ldc,
                )  # fmt: skip

        with self._lock:  # one handle for all threads
            try:
                self._do("cuBLAS", multiply)
            except self._cublas.CUBLASError as exc:
                raise CudaCallError(f"cuBLAS: {exc}") from exc


@cache
def _libcuda() -> ctypes.CDLL:
    return ctypes.CDLL("libcuda.so.1")


def available_bytes(file: Path = Path("/proc/meminfo")) -> int:
    """Return the memory that the system could give to new allocations; 0 where it does not say."""
    try:
        lines = file.read_text("ascii").splitlines()
    except OSError:
        return 0
    kilobytes = (line.split()[1] for line in lines if line.startswith("MemAvailable:"))
    return 1024 * int(next(kilobytes, 0))


def _import_cupy() -> Any:
    try:
        import cupy
    except ImportError as exc:
        reason = next(iter(str(exc).split("\n")), "")
        raise CudaMissingError(
            f"CuPy is not installed ({reason}); `pip install '.[cuda]'` in a clone "
            "of Layerstream brings it, on JetPack 5 `pip install cupy-cuda11x`"
        ) from exc
    return cupy


def _open_cublas() -> tuple[Any, int]:
    """Return CuPy's cuBLAS and a handle, or None where it is missing: our own kernels do without.

    CuPy 14 looks for the library only when it is first called.
    """
    try:
        from cupy_backends.cuda.libs import cublas
    except ImportError:
        return None, 0
    try:
        return cublas, cublas.create()
    except (ImportError, cublas.CUBLASError):
        return None, 0


def _check_count(runtime: Any, number: int) -> None:
    """Check that device ``number`` is there.

    Raises:
        CudaMissingError: it is not; the message says what is.
    """
    try:
        count = runtime.getDeviceCount()
    except runtime.CUDARuntimeError as exc:
        raise CudaMissingError(_why_none(runtime, exc)) from exc
    if not 0 <= number < count:
        have = f"there are {count}, the first is 0" if count else "there is none"
        raise CudaMissingError(f"no CUDA device {number}: {have} (CUDA_VISIBLE_DEVICES counts)")


def _version_of(runtime: Any, asked: Callable[[], int]) -> int:
    """Return a version; 0 where there is nothing that could say."""
    try:
        return int(asked())
    except runtime.CUDARuntimeError:
        return 0


def _why_none(runtime: Any, exc: Any) -> str:
    """Say in one line why CUDA has no device: no driver at all, one that is too old, or no GPU."""
    needed = _version_of(runtime, runtime.runtimeGetVersion)
    supported = _version_of(runtime, runtime.driverGetVersion)
    if not supported:
        wanted = f" for the CUDA {version(needed)} runtime" if needed else ""
        return f"no NVIDIA driver (libcuda.so.1){wanted}"
    if supported < needed // 1000 * 1000:
        newest = f"the NVIDIA driver is for CUDA {version(supported)}"
        return f"{newest}, older than the runtime's {version(needed)}"
    if os.environ.get("CUDA_VISIBLE_DEVICES") in ("", "-1"):
        return "no CUDA device: CUDA_VISIBLE_DEVICES hides all of them"
    return f"no CUDA device: {exc}"
