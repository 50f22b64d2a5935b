"""What CUDA reports, as errors with names: which leave the device usable, and which do not."""

from pipeline.devices.base import (
    DeviceError,
    DeviceLostError,
    DeviceMemoryError,
    KernelError,
)

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
