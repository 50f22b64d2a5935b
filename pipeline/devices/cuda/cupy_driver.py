"""The driver on a GPU, through CuPy: the only module that imports it.

CuPy's pools are not used: they free without knowing events. Nor are its streams: plain handles do.
"""

import ctypes
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from pipeline.devices.base import DeviceError
from pipeline.devices.cuda.call import Arguments, Call
from pipeline.devices.cuda.driver import Driver, Properties, version
from pipeline.devices.cuda.errors import CudaMissingError, error_of
from pipeline.devices.cuda.sources import OPTIONS, source

T = TypeVar("T")

# cudaHostRegisterPortable | cudaHostRegisterMapped; cudaMemcpyDefault: the addresses tell the direction.
_REGISTER = 1 | 2
_DEFAULT = 4
# CUmemAttach_flags: to the CPU, to one stream (cuda.h; CuPy has no call that attaches).
_ATTACH_HOST, _ATTACH_SINGLE = 2, 4


class CupyDriver(Driver):
    """Device ``number`` of those that CUDA_VISIBLE_DEVICES leaves.

    Raises:
        CudaMissingError: CuPy, the driver or the device is missing, or the driver is too old.
    """

    def __init__(self, number: int = 0) -> None:
        cupy = _import_cupy()
        from cupy_backends.cuda.api import driver, runtime

        self._cupy, self._driver, self._runtime = cupy, driver, runtime
        self._number = number
        self._local = threading.local()
        self._modules: dict[str, Any] = {}
        self._functions: dict[tuple[str, str], Any] = {}
        self._lock = threading.Lock()
        self._handles: dict[int, int] = {}
        _check_count(runtime, number)
        self._integrated = self.properties().integrated
        self._cublas = _import_cublas()

    def _do(self, what: str, action: Callable[[], T]) -> T:
        """Run ``action`` with this device current on the calling thread."""
        try:
            if not getattr(self._local, "current", False):
                self._runtime.setDevice(self._number)
                self._runtime.free(0)  # makes the context current for calls of the driver's own API
                self._local.current = True
            return action()
        except (self._runtime.CUDARuntimeError, self._driver.CUDADriverError) as exc:
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
        def attach() -> None:
            flags = _ATTACH_HOST if stream is None else _ATTACH_SINGLE
            library = ctypes.CDLL("libcuda.so.1")
            status = library.cuStreamAttachMemAsync(
                ctypes.c_void_p(stream or 0),
                ctypes.c_uint64(address),
                ctypes.c_size_t(0),
                ctypes.c_uint(flags),
            )
            if status:
                raise error_of(status, f"attach managed memory: error {status}")
            if stream is None:
                self._runtime.streamSynchronize(0)

        self._do("attach managed memory", attach)

    def register(self, address: int, n_bytes: int) -> int:
        def register() -> int:
            self._runtime.hostRegister(address, n_bytes, _REGISTER)
            return int(self._runtime.pointerGetAttributes(address).devicePointer)

        return self._do(f"page-lock {n_bytes} bytes", register)

    def unregister(self, address: int) -> None:
        self._do("unlock pages", lambda: self._runtime.hostUnregister(address))

    def create_stream(self) -> int:
        flags = self._runtime.streamNonBlocking
        return self._do("stream", lambda: int(self._runtime.streamCreateWithFlags(flags)))

    def destroy_stream(self, stream: int) -> None:
        handle = self._handles.pop(stream, None)
        if handle is not None:
            self._do("cuBLAS", lambda: self._cublas.destroy(handle))
        self._do("stream", lambda: self._runtime.streamDestroy(stream))

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
                made = self._cupy.RawModule(code=source(module), options=OPTIONS, backend="nvrtc")
                made.compile()
            except self._cupy.cuda.compiler.CompileException as exc:
                raise DeviceError(f"kernels/{module}.cu does not compile: {exc}") from exc
            self._modules[module] = made
        return self._modules[module]

    def launch(self, function: int, call: Call, arguments: Arguments, stream: int) -> None:
        self._do(
            call.function,
            lambda: self._driver.launchKernel(
                function, *call.grid, call.block, 1, 1, 0, stream, arguments.address, 0
            ),
        )

    @property
    def has_cublas(self) -> bool:
        return self._cublas is not None

    def multiply(self, call: Call, arguments: Arguments, stream: int) -> None:
        if self._cublas is None:
            raise DeviceError("cuBLAS is not installed")
        transa, transb, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc = arguments.values
        one, other = ctypes.c_float(alpha), ctypes.c_float(beta)
        self._do(
            "cuBLAS",
            lambda: self._cublas.sgemm(
                self._handle(stream), transa, transb, m, n, k, ctypes.addressof(one), a, lda, b, ldb,
                ctypes.addressof(other), c, ldc,
            ),
        )  # fmt: skip

    def _handle(self, stream: int) -> int:
        """Return cuBLAS's handle for ``stream``; only its one launching thread asks."""
        if stream not in self._handles:
            handle = self._cublas.create()
            self._cublas.setStream(handle, stream)
            self._handles[stream] = handle
        return self._handles[stream]


def available_bytes(file: Path = Path("/proc/meminfo")) -> int:
    """Return the memory that the system could give to new allocations; 0 where it does not say."""
    try:
        lines = file.read_text("ascii").splitlines()
    except OSError:
        return 0
    found = (line.split()[1] for line in lines if line.startswith("MemAvailable:"))
    return 1024 * int(next(found, 0))


def _import_cupy() -> Any:
    try:
        import cupy
    except ImportError as exc:
        raise CudaMissingError(
            f"CuPy is not installed ({exc}); install layerstream[cuda], or cupy-cuda11x on JetPack 5"
        ) from exc
    return cupy


def _import_cublas() -> Any:
    """Return CuPy's cuBLAS, or None where its library is missing: our own kernels do without."""
    try:
        from cupy_backends.cuda.libs import cublas
    except ImportError:
        return None
    return cublas


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


def _why_none(runtime: Any, exc: Any) -> str:
    """Say in one line why CUDA has no device: no driver at all, one that is too old, or no GPU."""
    needed = runtime.runtimeGetVersion()
    try:
        found = runtime.driverGetVersion()
    except runtime.CUDARuntimeError:
        found = 0
    if not found:
        return f"no NVIDIA driver (libcuda.so.1) for the CUDA {version(needed)} runtime"
    if found < needed // 1000 * 1000:
        return f"the NVIDIA driver is for CUDA {version(found)}, older than the runtime's {version(needed)}"
    if os.environ.get("CUDA_VISIBLE_DEVICES") in ("", "-1"):
        return "no CUDA device: CUDA_VISIBLE_DEVICES hides all of them"
    return f"no CUDA device: {exc}"
