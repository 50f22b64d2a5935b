"""The few CUDA calls that the device needs: on a GPU CuPy makes them (cupy_driver.py), in tests a fake one.

Addresses, streams, events and functions are numbers that only the driver understands. Every call may
raise the errors of errors.py; one of a kernel that was launched before may come from any later call.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import NamedTuple

from pipeline.devices.base import (
    DeviceError,
    DeviceLostError,
    DeviceMemoryError,
    KernelError,
)
from pipeline.devices.cuda.call import Arguments, KernelLaunch

# What CUDA reports, as errors with names: which leave the device usable, and which do not.

_OUT_OF_MEMORY = 2
# After these every further call of the process fails: the context is lost with all its memory
# (CUDA runtime API, "CUDA error types").
_STICKY = frozenset(
    {
        214,  # uncorrectable ECC error
        220,  # uncorrectable NVLink error
        700,  # illegal address
        702,  # launch timeout
        709,  # context is destroyed
        710,  # assert
        714,  # hardware stack error
        715,  # illegal instruction
        716,  # misaligned address
        717,  # invalid address space
        718,  # invalid program counter
        719,  # launch failure
        999,  # unknown
    }
)


class CudaMissingError(DeviceError):
    """There is no GPU that this process can use; the message says what is missing."""


class CudaMemoryError(DeviceMemoryError):
    """The device has less free memory than was asked for; the message has the figures."""


class CudaCallError(KernelError):
    """A call or kernel failed; the device goes on."""


class CudaLostError(DeviceLostError):
    """A kernel left the CUDA context unusable: only a new process can use the device again."""


def error_of(status: int, message: str) -> DeviceError:
    """Return the error for ``status``, a number of the CUDA runtime or driver (they are the same)."""
    if status == _OUT_OF_MEMORY:
        return CudaMemoryError(f"out of device memory ({message})")
    if status in _STICKY:
        return CudaLostError(f"the CUDA device is lost until a restart: {message}")
    return CudaCallError(message)


# What a driver does.


@dataclass(frozen=True)
class Properties:
    """What the driver says of the device. Versions as CUDA numbers them: 12090 is 12.9.

    ``integrated``: it shares the memory of the CPU. ``concurrent_managed``: the CPU may touch managed
    memory while kernels run. ``can_map``, ``can_register``: kernels can use host memory that is page-locked
    when it is allocated, or later.
    """

    name: str
    capability: tuple[int, int]
    multiprocessors: int
    integrated: bool
    concurrent_managed: bool
    can_map: bool
    can_register: bool
    has_managed: bool
    driver_version: int
    runtime_version: int

    @property
    def description(self) -> str:
        """What a profile is tied to: another device or driver may be faster or slower."""
        major, minor = self.capability
        return f"{self.name} (sm_{major}{minor}, driver {version(self.driver_version)})"


def version(number: int) -> str:
    """Return a CUDA version in words: 12090 is 12.9."""
    return f"{number // 1000}.{number % 1000 // 10}"


class Stretches(NamedTuple):
    """``number`` stretches of ``n_bytes``: the first at ``address``, each ``pitch`` behind another."""

    address: int
    pitch: int
    n_bytes: int
    number: int


class Driver(ABC):
    """One device. Its methods may be called from several threads at once."""

    @abstractmethod
    def properties(self) -> Properties: ...

    @abstractmethod
    def memory_info(self) -> tuple[int, int]:
        """Return free and total bytes of device memory, all processes considered."""

    @abstractmethod
    def allocate(self, n_bytes: int) -> int:
        """Return the address of new device memory."""

    @abstractmethod
    def free(self, address: int) -> None: ...

    @abstractmethod
    def allocate_managed(self, n_bytes: int) -> int:
        """Return the address of memory that both sides use; ``free`` gives it back."""

    @abstractmethod
    def attach(self, address: int, stream: int | None) -> None:
        """Give managed memory to the kernels of ``stream``, or (None) to the CPU, in stream order.

        Only whole allocations. For None, return when the CPU may touch it.
        """

    @abstractmethod
    def register(self, address: int, n_bytes: int) -> int:
        """Lock pages of the process for the device; return where kernels find them."""

    @abstractmethod
    def unregister(self, address: int) -> None: ...

    @abstractmethod
    def create_stream(self) -> int:
        """Return a stream that does not wait for the legacy default stream."""

    @abstractmethod
    def destroy_stream(self, stream: int) -> None: ...

    @abstractmethod
    def synchronize_stream(self, stream: int) -> None:
        """Sleep until everything enqueued so far has ended."""

    @abstractmethod
    def create_event(self) -> int:
        """Return an event with a time whose waiters sleep instead of spinning."""

    @abstractmethod
    def destroy_event(self, event: int) -> None: ...

    @abstractmethod
    def record(self, event: int, stream: int) -> None:
        """Set ``event`` when ``stream`` has come here."""

    @abstractmethod
    def synchronize(self, event: int) -> None:
        """Sleep until ``event``, as recorded last, is set."""

    @abstractmethod
    def elapsed(self, start: int, end: int) -> float:
        """Return the seconds between two events that are set."""

    @abstractmethod
    def copy(self, target: int, source: int, n_bytes: int, stream: int) -> None:
        """Enqueue a copy between any two addresses; host memory must stay until it has ended."""

    @abstractmethod
    def copy_rows(
        self, target: Stretches, source: Stretches, stream: int, from_host: bool = False
    ) -> None:
        """Enqueue a copy between stretches of device memory, as many and as long as each other.

        ``from_host``: ``source`` is memory of the host, which must stay until the copy has ended.
        """

    @abstractmethod
    def fill_rows(self, target: Stretches, bits: int, stream: int) -> None:
        """Enqueue that every 32 bits of ``target`` become ``bits``."""

    @abstractmethod
    def function(self, module: str, name: str) -> int:
        """Return function ``name`` of kernels/``module``.cu, compiled for this device.

        Raises:
            DeviceError: it does not compile.
        """

    @abstractmethod
    def launch(self, function: int, call: KernelLaunch, arguments: Arguments, stream: int) -> None:
        """Enqueue ``call`` of ``function``; ``arguments`` are read before this returns."""

    @abstractmethod
    def multiply(self, call: KernelLaunch, arguments: Arguments, stream: int) -> None:
        """Enqueue ``call`` of cuBLAS.

        Raises:
            DeviceError: the library is not there.
        """

    @property
    def has_cublas(self) -> bool:
        return False
