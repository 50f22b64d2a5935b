"""The driver through CuPy: which calls it makes, and what it says where there is nothing to call."""

import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from pipeline.devices.base import DeviceError
from pipeline.devices.cuda.call import Arguments, DevicePointer, KernelLaunch, source
from pipeline.devices.cuda.cupy_driver import CupyDriver, available_bytes
from pipeline.devices.cuda.driver import CudaCallError, CudaLostError, CudaMissingError
from tests.pipeline.devices.cuda.host.build import MODULES


class CudaApiError(RuntimeError):
    """As CuPy's errors of the runtime and the driver."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


class CompileError(Exception):
    """As CuPy's error of NVRTC."""


class Library(ModuleType):
    """Records its calls; each returns what ``answers`` has for its name, or raises it."""

    CUDARuntimeError = CUDADriverError = CudaApiError
    eventBlockingSync = 1  # noqa: N815  CuPy's name

    def __init__(self, name: str, calls: list[tuple[str, tuple[Any, ...]]]) -> None:
        super().__init__(name)
        self.answers: dict[str, Any] = {}
        self.recorded = calls

    def __getattr__(self, name: str) -> Any:
        if name.startswith(("cudaDevAttr", "__")):
            if name.startswith("__"):
                raise AttributeError(name)
            return name

        def call(*arguments: Any) -> Any:
            self.recorded.append((name, arguments))
            answer = self.answers.get(name)
            if isinstance(answer, Exception):
                raise answer
            return answer(*arguments) if callable(answer) else answer

        return call


class Attributes:
    devicePointer = 0xD000  # noqa: N815  CuPy's name


class Function:
    ptr = 77


class Stream:
    """As CuPy's: the one that a thread is in is its current stream."""

    current = 0

    def __init__(self, non_blocking: bool) -> None:
        assert non_blocking
        self.ptr = 5

    def __enter__(self) -> None:
        Stream.current = self.ptr

    def __exit__(self, *_: object) -> None:
        Stream.current = 0


class Cublas(Library):
    """As CuPy's: every call sets the stream of its handle to the current one of the thread."""

    CUBLASError = type("CUBLASError", (RuntimeError,), {})

    def sgemm(self, *arguments: Any) -> None:
        answer = self.answers.get("sgemm")
        if isinstance(answer, Exception):
            raise answer
        self.recorded.append(("sgemm", (Stream.current, *arguments)))


class RawModule:
    """As CuPy's: compiles and has functions."""

    broken = False

    def __init__(self, code: str, options: tuple[str, ...], backend: str) -> None:
        assert "__global__" in code
        assert "#include" not in code
        assert backend == "nvrtc"

    def compile(self) -> None:
        if RawModule.broken:
            raise CompileError("error: identifier")

    def get_function(self, name: str) -> Any:
        kernel = ModuleType(name)
        kernel.kernel = Function()  # type: ignore[attr-defined]
        return kernel


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> Library:
    """Stand in for the parts of CuPy that the driver uses: runtime and driver API are one library."""
    calls: list[tuple[str, tuple[Any, ...]]] = []
    api = Library("api", calls)
    api.answers |= {
        "getDeviceCount": 2,
        "runtimeGetVersion": 12090,
        "driverGetVersion": 12040,
        "malloc": 0xA000,
        "mallocManaged": 0xB000,
        "eventCreateWithFlags": 6,
        "eventElapsedTime": 1.5,
        "memGetInfo": (10, 100),
        "pointerGetAttributes": Attributes(),
        "deviceGetAttribute": 1,
        "getDeviceProperties": {
            "name": b"Xavier",
            "major": 7,
            "minor": 2,
            "multiProcessorCount": 8,
        },
    }
    cupy = ModuleType("cupy")
    compiler = ModuleType("compiler")
    compiler.CompileException = CompileError  # type: ignore[attr-defined]
    cuda = ModuleType("cuda")
    cuda.compiler, cuda.Stream = compiler, Stream  # type: ignore[attr-defined]
    cupy.cuda, cupy.RawModule = cuda, RawModule  # type: ignore[attr-defined]
    package = ModuleType("cupy_backends.cuda.api")
    package.driver = package.runtime = api  # type: ignore[attr-defined]
    for name, module in {
        "cupy": cupy,
        "cupy_backends": ModuleType("cupy_backends"),
        "cupy_backends.cuda": ModuleType("cupy_backends.cuda"),
        "cupy_backends.cuda.api": package,
    }.items():
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setitem(sys.modules, "cupy_backends.cuda.libs", None)
    return api


def test_calls_are_made_as_cuda_wants_them(library: Library) -> None:
    driver = CupyDriver(1)
    # Each thread that calls makes the device current, and its context for the driver's own API.
    assert [call for call in library.recorded if call[0] in ("setDevice", "free")] == [
        ("setDevice", (1,)),
        ("free", (0,)),
    ]
    library.recorded.clear()
    assert driver.register(0x4000, 8192) == 0xD000
    stream, event = driver.create_stream(), driver.create_event()
    driver.copy(0xA000, 0x4000, 8192, stream)
    driver.record(event, stream)
    driver.synchronize(event)
    assert driver.elapsed(event, event) == pytest.approx(1.5e-3)
    assert library.recorded == [
        ("hostRegister", (0x4000, 8192, 3)),
        ("pointerGetAttributes", (0x4000,)),
        ("eventCreateWithFlags", (1,)),
        ("memcpyAsync", (0xA000, 0x4000, 8192, 4, stream)),
        ("eventRecord", (event, stream)),
        ("eventSynchronize", (event,)),
        ("eventElapsedTime", (event, event)),
    ]


def test_a_launch_passes_grid_block_stream_and_arguments(library: Library) -> None:
    driver = CupyDriver()
    call = KernelLaunch("strided", "copy_bytes", (3, 2, 1), 64, (DevicePointer("input"), 4))
    function = driver.function("strided", "copy_bytes")
    assert function == driver.function("strided", "copy_bytes") == Function.ptr
    arguments = Arguments(call.arguments, lambda pointer: 0xA000)
    library.recorded.clear()
    driver.launch(function, call, arguments, 5)
    expected = (77, 3, 2, 1, 64, 1, 1, 0, 5, arguments.address, 0)
    assert library.recorded == [("launchKernel", expected)]


def test_the_library_works_in_the_stream_it_is_told(
    library: Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not CupyDriver().has_cublas
    cublas = Cublas("cublas", library.recorded)
    cublas.answers["create"] = 9
    libs = ModuleType("cupy_backends.cuda.libs")
    libs.cublas = cublas  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "cupy_backends.cuda.libs", libs)
    driver = CupyDriver()
    assert driver.has_cublas
    stream = driver.create_stream()
    numbers = (
        0,
        0,
        4,
        3,
        2,
        1.0,
        DevicePointer("input"),
        4,
        DevicePointer("input"),
        2,
        0.0,
        DevicePointer("output"),
        4,
    )
    call = KernelLaunch("cublas", "sgemm", (0, 0, 0), 0, numbers)
    driver.multiply(call, Arguments(numbers, lambda pointer: 0xA000), stream)
    [(name, arguments)] = [item for item in library.recorded if item[0] == "sgemm"]
    assert (name, arguments[:7]) == ("sgemm", (stream, 9, 0, 0, 4, 3, 2))
    cublas.answers["sgemm"] = Cublas.CUBLASError("CUBLAS_STATUS_EXECUTION_FAILED")
    with pytest.raises(CudaCallError, match="EXECUTION_FAILED"):
        driver.multiply(call, Arguments(numbers, lambda pointer: 0xA000), stream)
    cublas.answers["create"] = ImportError("no libcublasLt.so.12")
    assert not CupyDriver().has_cublas  # CuPy 14 looks for the library when it is called


def test_a_stream_is_waited_for_by_an_event_and_not_by_spinning(library: Library) -> None:
    driver = CupyDriver()
    library.recorded.clear()
    driver.synchronize_stream(5)
    names = [name for name, _ in library.recorded if name not in ("setDevice", "free")]
    assert names == ["eventCreateWithFlags", "eventRecord", "eventSynchronize", "eventDestroy"]


def test_properties_come_from_probes(library: Library) -> None:
    known = CupyDriver().properties()
    assert (known.name, known.capability, known.multiprocessors) == ("Xavier", (7, 2), 8)
    assert known.integrated
    assert known.can_register
    assert known.description == "Xavier (sm_72, driver 12.4)"


@pytest.mark.parametrize(
    ("status", "kind"), [(1, CudaCallError), (700, CudaLostError), (719, CudaLostError)]
)
def test_errors_have_names(library: Library, status: int, kind: type[DeviceError]) -> None:
    driver = CupyDriver()
    library.answers["eventSynchronize"] = CudaApiError(status, "cudaErrorSomething: text")
    with pytest.raises(kind, match="cudaErrorSomething"):
        driver.synchronize(6)


def test_an_integrated_device_counts_the_page_cache_as_free(
    library: Library, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "meminfo").write_text("MemTotal: 99 kB\nMemAvailable:  40 kB\n")
    assert available_bytes(tmp_path / "meminfo") == 40 << 10
    assert available_bytes(tmp_path / "nothing") == 0
    monkeypatch.setattr("pipeline.devices.cuda.cupy_driver.available_bytes", lambda: 60)
    assert CupyDriver().memory_info() == (60, 100)
    library.answers["deviceGetAttribute"] = 0
    assert CupyDriver().memory_info() == (10, 100)


def test_kernels_that_do_not_compile_are_named(
    library: Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(RawModule, "broken", True)
    with pytest.raises(DeviceError, match=r"softmax\.cu does not compile.*identifier"):
        CupyDriver().function("softmax", "softmax")


def no_driver(api: Library) -> None:
    api.answers["getDeviceCount"] = CudaApiError(35, "cudaErrorInsufficientDriver")
    api.answers["driverGetVersion"] = 0


def old_driver(api: Library) -> None:
    api.answers["getDeviceCount"] = CudaApiError(35, "cudaErrorInsufficientDriver")
    api.answers["driverGetVersion"] = 11040


def nothing(api: Library) -> None:
    no_driver(api)
    for name in ("driverGetVersion", "runtimeGetVersion"):  # as CuPy 13 has it
        api.answers[name] = CudaApiError(35, "cudaErrorInsufficientDriver")


def no_device(api: Library) -> None:
    api.answers["getDeviceCount"] = CudaApiError(100, "cudaErrorNoDevice: no CUDA-capable device")


@pytest.mark.parametrize(
    ("change", "number", "message"),
    [
        (no_driver, 0, r"no NVIDIA driver .* CUDA 12\.9 runtime"),
        (nothing, 0, r"no NVIDIA driver \(libcuda"),
        (old_driver, 0, r"driver is for CUDA 11\.4, older than the runtime's 12\.9"),
        (no_device, 0, "no CUDA device: .*cudaErrorNoDevice"),
        (lambda api: None, 2, "no CUDA device 2: there are 2, the first is 0"),
    ],
)
def test_what_is_missing_is_said_in_one_line(
    library: Library,
    change: Callable[[Library], None],
    number: int,
    message: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    change(library)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    with pytest.raises(CudaMissingError, match=message) as caught:
        CupyDriver(number)
    assert "\n" not in str(caught.value)


def test_devices_that_are_hidden_are_no_mystery(
    library: Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    no_device(library)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    with pytest.raises(CudaMissingError, match="CUDA_VISIBLE_DEVICES hides all of them"):
        CupyDriver()


def test_without_cupy_the_message_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cupy", None)
    with pytest.raises(CudaMissingError, match=r"CuPy is not installed.*\.\[cuda\]"):
        CupyDriver()


def test_sources_have_every_header_once() -> None:
    assert MODULES
    for name in MODULES:
        text = source(name)
        assert "#include" not in text
        assert "#pragma once" not in text
    with pytest.raises(FileNotFoundError):
        source("nothing")
