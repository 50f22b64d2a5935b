"""Which device computes, by the name that users give."""

import re
from typing import get_args

from pipeline.devices.base import Device
from pipeline.devices.cpu import CpuDevice
from pipeline.devices.cuda.choices import Kind, Precision

KINDS = get_args(Kind)
PRECISIONS = get_args(Precision)

_NAME = re.compile(r"cpu|cuda(?::([0-9]{1,3}))?")


def check_name(name: str) -> str:
    """Return ``name``.

    Raises:
        ValueError: it is no device's.
    """
    if not _NAME.fullmatch(name):
        raise ValueError(f"unknown device {name!r}; there are cpu, cuda, cuda:0, cuda:1, ...")
    return name


def open_device(
    name: str = "cpu",
    threads: int | None = None,
    kind: Kind | None = None,
    precision: Precision = "fp32",
) -> Device:
    """Return the device called ``name``; ``threads`` are those of the CPU.

    ``kind`` (None: what a profile or the device suggests) and ``precision`` are for CUDA.

    Raises:
        ValueError: there is no such name. CudaMissingError: there is no such device, or no CuPy.
    """
    match = _NAME.fullmatch(check_name(name))
    assert match is not None
    cpu = CpuDevice(threads)
    if name == "cpu":
        return cpu
    from pipeline.devices.cuda.cupy_driver import CupyDriver
    from pipeline.devices.cuda.device import CudaDevice

    return CudaDevice(CupyDriver(int(match[1] or 0)), cpu, kind, precision)
