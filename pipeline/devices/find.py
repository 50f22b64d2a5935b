"""Devices by the names that users give: which one computes, and what pieces become on it."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from models.packs.target import Target
from pipeline.devices.names import Kind, Precision, gpu_number

if TYPE_CHECKING:
    from pipeline.devices.base import Device


def open_device(
    name: str = "cpu",
    threads: int | None = None,
    kind: Kind | None = None,
    precision: Precision = "fp32",
) -> "Device":
    """Return the device called ``name``; ``threads`` are those of the CPU.

    ``kind`` (None: what a profile or the device suggests) and ``precision`` are for CUDA.

    Raises:
        ValueError: there is no such name. CudaMissingError: there is no such device, or no CuPy.
    """
    from pipeline.devices.cpu import CpuDevice

    number = gpu_number(name)
    cpu = CpuDevice(threads)
    if number is None:
        return cpu
    from pipeline.devices.cuda.cupy_driver import CupyDriver
    from pipeline.devices.cuda.device import CudaDevice

    return CudaDevice(CupyDriver(number), cpu, kind, precision)


# What pieces become on the device that they are compiled for, without that device.

# Devices with more multiprocessors split sums further, which takes scratch: from a Jetson to a data centre.
_MULTIPROCESSORS = (8, 16, 32, 64, 132, 192)


@dataclass(frozen=True)
class Kernels:
    """The launches of a piece by name; ``reason``: why it runs on the CPU instead, else empty."""

    names: tuple[str, ...]
    reason: str = ""


def device_measure(target: Target) -> Callable[[bytes, bool], int | None] | None:
    """Return what measures the scratch of a serialised piece on ``target``, bytes; None of a CPU.

    It returns None for a piece that no kernel of the device covers, and which runs on the CPU there, too.
    """
    return None if target.capability is None else cuda_scratch


def cuda_kernels(graph: bytes) -> Kernels:
    """Return what a serialised piece becomes on a CUDA device as small as a Jetson's."""
    # onnx: not for the service
    from pipeline.devices.cuda.lowering import NotCoveredError, describe
    from pipeline.devices.cuda.scope import ConvolutionSettings

    try:
        return Kernels(tuple(describe(graph, ConvolutionSettings(_MULTIPROCESSORS[0]))))
    except NotCoveredError as exc:
        return Kernels((), str(exc))


def cuda_scratch(graph: bytes, on_rows: bool) -> int | None:
    """Return a bound on the scratch of a serialised piece on any CUDA device; None: it runs on the CPU.

    ``on_rows``: by the algorithms that row operators take, whose own graphs need no scratch.
    """
    from pipeline.devices.cuda.lowering import NotCoveredError, is_sized, lower
    from pipeline.devices.cuda.scope import ConvolutionSettings

    if not is_sized(graph):
        return 0  # a row operator
    try:
        each = (ConvolutionSettings(count, scratch=not on_rows) for count in _MULTIPROCESSORS)
        return max(lower(graph, settings).inner_bytes for settings in each)
    except NotCoveredError:
        return None
