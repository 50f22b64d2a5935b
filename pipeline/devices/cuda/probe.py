"""Which memory kinds work here, found by trying: the disk writes, a kernel reads, the bytes are compared.

Boards differ in what O_DIRECT may write to and in what kernels see afterwards; their names tell little.
"""

import mmap
from collections.abc import Callable
from contextlib import ExitStack, closing
from pathlib import Path
from queue import Empty, SimpleQueue

import numpy as np
from numpy.typing import NDArray

from loader.errors import LoaderError
from loader.readers.files import open_reader
from loader.readers.interface import Reader
from pipeline.devices.base import DeviceError, DeviceLostError
from pipeline.devices.cuda.call import DevicePointer, LaunchProgram
from pipeline.devices.cuda.choices import Kind
from pipeline.devices.cuda.kernel import CudaKernel
from pipeline.devices.cuda.operators.movement import copy_bytes
from pipeline.devices.cuda.trial import TrialDevice
from pipeline.devices.memory import Memory

_MOST_BYTES = 1 << 20
_PAGE_BYTES = 4096
_SECONDS = 10.0


def probe_kinds(device: TrialDevice, file: Path) -> dict[Kind, str]:
    """Return why each kind does not work here, empty where it does.

    Args:
        device: has no kernel running.
        file: what is read, its first MiB at most; a page at least.

    Raises:
        LoaderError: the file cannot be read at all. DeviceLostError: the device did not survive.
    """
    n_bytes = min(file.stat().st_size, _MOST_BYTES) // _PAGE_BYTES * _PAGE_BYTES
    if not n_bytes:
        raise LoaderError(f"{file}: smaller than a page")
    tries: dict[Kind, Callable[[], Memory]] = {
        "copied": lambda: device.allocate("staging", n_bytes),
        "mapped": lambda: device.shared("mapped", n_bytes),
        "managed": lambda: device.shared("managed", n_bytes),
    }
    found: dict[Kind, str] = {}
    with closing(open_reader(file)) as reader:
        expected = np.empty(n_bytes + _PAGE_BYTES, np.uint8)
        aligned = expected[-expected.ctypes.data % _PAGE_BYTES :][:n_bytes]
        reader.read_into(0, aligned.data)
        for kind, allocate in tries.items():
            try:
                same = np.array_equal(_through(device, kind, allocate, reader), aligned)
                found[kind] = "" if same else "kernels see other bytes than the disk wrote"
            except DeviceLostError:
                raise
            except (DeviceError, LoaderError, OSError) as exc:
                found[kind] = str(exc)
    return found


def probe_file_mapping(device: TrialDevice, file: Path) -> str:
    """Return why the driver does not page-lock a mapped file, empty where it does.

    No memory kind builds on it: what lies in the page cache is not what streaming is about.

    Raises:
        OSError: the file cannot be mapped.
    """
    with file.open("rb") as opened, mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_COPY) as pages:
        address = int(np.frombuffer(pages, np.uint8).ctypes.data)
        try:
            device.driver.register(address, len(pages))
        except DeviceLostError:
            raise
        except DeviceError as exc:
            return str(exc)
        device.driver.unregister(address)
    return ""


def _through(
    device: TrialDevice, kind: Kind, allocate: Callable[[], Memory], reader: Reader
) -> NDArray[np.uint8]:
    """Return what a kernel copies of the bytes that the disk wrote to memory of ``kind``."""
    with ExitStack() as stack:
        memory = stack.enter_context(closing(allocate()))
        n_bytes = memory.n_bytes
        memory.lend(0, n_bytes)
        reader.read_into(0, memory.host(0, n_bytes))
        memory.reclaim(0, n_bytes)
        source = memory
        if kind == "copied":
            source = stack.enter_context(closing(device.allocate("own", n_bytes)))
            _copy(device, memory, source)
        result = stack.enter_context(closing(device.allocate("own", n_bytes)))
        kernel = CudaKernel(device.driver, device.kernel_stream, _copying(n_bytes))
        shape = (n_bytes,)
        kernel.bind([source.array(0, "uint8", shape)], [result.array(0, "uint8", shape)])()
        return result.read(0, "uint8", shape)


def _copying(n_bytes: int) -> LaunchProgram:
    """Return the kernel that copies ``n_bytes`` from its input to its output."""
    return LaunchProgram((copy_bytes(DevicePointer("input"), DevicePointer("output"), n_bytes),), 0)


def _copy(device: TrialDevice, source: Memory, target: Memory) -> None:
    """Copy all of ``source`` by the copy stage and wait.

    Raises:
        DeviceError: it failed, or did not end.
    """
    ended: SimpleQueue[Exception | None] = SimpleQueue()
    device.copy(source.host(0, source.n_bytes), target, 0, lambda error, seconds: ended.put(error))
    try:
        error = ended.get(timeout=_SECONDS)
    except Empty:
        raise DeviceError(f"a copy did not end in {_SECONDS:.0f} s") from None
    if error is not None:
        raise error
