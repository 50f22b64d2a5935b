"""Found by trying: which memory kinds work here, and which algorithm is fastest for each convolution.

The choice is by geometry, whatever number of filters a launch computes: chunks of a layer take
one algorithm, and must have the bits of the whole layer. Our own kernels do by construction. The
library's are compared: a chunk has the first filters of the whole layer and must give its first channels.
"""

import mmap
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path
from queue import Empty, SimpleQueue
from statistics import median
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from loader.errors import LoaderError
from loader.readers.files import open_reader
from loader.readers.interface import Reader
from models.graphs.reader import graph_from
from models.network.fields import Array
from pipeline.devices.base import DeviceError, DeviceLostError, Done, Launch
from pipeline.devices.cuda.call import DevicePointer, LaunchProgram
from pipeline.devices.cuda.driver import Driver
from pipeline.devices.cuda.kernel import CudaKernel
from pipeline.devices.cuda.lowering import NotCoveredError, geometries, lower
from pipeline.devices.cuda.memory_kinds import DeviceArray
from pipeline.devices.cuda.operators.convolutions.algorithms import Algorithm
from pipeline.devices.cuda.operators.copies import copy_bytes
from pipeline.devices.cuda.scope import ConvolutionSettings
from pipeline.devices.device_memory import Memory, Use
from pipeline.devices.names import Kind


class TrialDevice(Protocol):
    """A device whose memory kinds and algorithms are compared (device.py says what each member does)."""

    driver: Driver
    kernel_stream: int
    settings: ConvolutionSettings

    def allocate(self, use: Use, n_bytes: int, slots: int = 1) -> Memory: ...

    def shared(self, kind: Kind, n_bytes: int, slots: int = 1) -> Memory: ...

    def copy(self, source: memoryview, target: Memory, offset: int, done: Done) -> None: ...


# Which memory kinds work here, found by trying: the disk writes, a kernel reads, the bytes are compared.
#
# Boards differ in what O_DIRECT may write to and in what kernels see afterwards; their names do not show
# it.

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
    faults: dict[Kind, str] = {}
    with closing(open_reader(file)) as reader:
        expected = np.empty(n_bytes + _PAGE_BYTES, np.uint8)
        aligned = expected[-expected.ctypes.data % _PAGE_BYTES :][:n_bytes]
        reader.read_into(0, aligned.data)
        for kind, allocate in tries.items():
            try:
                same = np.array_equal(_through(device, kind, allocate, reader), aligned)
                faults[kind] = "" if same else "kernels see other bytes than the disk wrote"
            except DeviceLostError:
                raise
            except (DeviceError, LoaderError, OSError) as exc:
                faults[kind] = str(exc)
    return faults


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


# Which algorithm is fastest for each convolution, measured on the device.

_RUNS = 5
# Memory that is not there for weights: the transformed filters and a slab of tiles of wide 3x3 layers.
_MOST_SCRATCH_BYTES = 16 << 20
# The largest pieces of a geometry: the whole layers.
_TIMED_PIECES = 2


def fastest_algorithms(device: TrialDevice, graphs: Sequence[bytes]) -> dict[str, str]:
    """Return the fastest algorithm of each geometry of convolutions in ``graphs``, serialised pieces.

    Raises:
        DeviceError: a kernel fails.
    """
    settings = replace(device.settings, algorithms={}, libraries=device.driver.has_cublas)
    pieces: dict[str, list[bytes]] = {}
    candidates: dict[str, tuple[str, ...]] = {}
    for graph in graphs:
        for key, algorithms in _geometries(graph, settings).items():
            pieces.setdefault(key, []).append(graph)
            candidates[key] = algorithms
    return {
        key: _fastest(device, settings, key, pieces[key], candidates[key]) for key in candidates
    }


def _geometries(graph: bytes, settings: ConvolutionSettings) -> Mapping[str, tuple[str, ...]]:
    try:
        return geometries(graph, settings)
    except NotCoveredError:
        return {}


def _fastest(
    device: TrialDevice,
    settings: ConvolutionSettings,
    key: str,
    graphs: Sequence[bytes],
    names: Sequence[str],
) -> str:
    """Return the fastest of the algorithms ``names``, the first where none can be measured."""
    seconds: dict[str, float] = {}
    with ExitStack() as stack:
        pieces = [_Piece(graph) for graph in graphs]
        pieces.sort(key=lambda piece: -piece.n_bytes)
        operands = _Operands(device, pieces, stack)
        for name in names:
            chosen = replace(settings, algorithms={key: name})
            programs = [lower(piece.graph, chosen) for piece in pieces]
            if any(program.inner_bytes > _MOST_SCRATCH_BYTES for program in programs):
                continue
            if Algorithm.parse(name).is_library and not operands.same_bits(programs):
                continue
            timed = list(zip(pieces, programs, strict=True))[:_TIMED_PIECES]
            seconds[name] = sum(operands.seconds(*each) for each in timed)
    return min(seconds, key=seconds.__getitem__, default=names[0])


class _Piece:
    """A serialised piece and the sizes of its ports."""

    def __init__(self, graph: bytes) -> None:
        self.graph = graph
        piece = graph_from(graph)
        self.inputs = [_array(piece.array(name)) for name in piece.inputs]
        self.outputs = [_array(piece.array(name)) for name in piece.outputs]
        self.n_bytes = sum(array.n_bytes for array in (*self.inputs, *self.outputs))


def _array(array: Array) -> DeviceArray:
    return DeviceArray(0, array.dtype, array.shape)


class _Operands:
    """Memory that the pieces of a geometry share: every port begins where that of the others does."""

    def __init__(self, device: TrialDevice, pieces: Sequence[_Piece], stack: ExitStack) -> None:
        self._device = device
        self._pieces = pieces
        self._inputs = self._memories([piece.inputs for piece in pieces], stack)
        self._outputs = self._memories([piece.outputs for piece in pieces], stack)
        draw = np.random.default_rng(0)
        for memory in self._inputs:
            memory.write(0, draw.standard_normal(memory.n_bytes // 4, np.float32))

    def _memories(self, ports: Sequence[Sequence[DeviceArray]], stack: ExitStack) -> list[Memory]:
        count = max(map(len, ports))
        sizes = [
            max(arrays[index].n_bytes for arrays in ports if index < len(arrays))
            for index in range(count)
        ]
        allocate = self._device.allocate
        return [stack.enter_context(closing(allocate("own", size))) for size in sizes]

    def same_bits(self, programs: Sequence[LaunchProgram]) -> bool:
        """Return whether each piece gives the first bytes of the largest one of its kind."""
        largest: dict[int, NDArray[np.uint8]] = {}
        for piece, program in zip(self._pieces, programs, strict=True):
            self.seconds(piece, program)
            whole = piece.outputs[0]
            result = self._outputs[0].read(0, "uint8", (whole.n_bytes,))
            known = largest.setdefault(len(piece.inputs), result)
            if not np.array_equal(known[: len(result)], result):
                return False
        return True

    def seconds(self, piece: _Piece, program: LaunchProgram) -> float:
        """Return how long a program runs: the middle one of several times."""
        device = self._device
        with closing(device.allocate("scratch", program.inner_bytes)) as scratch:
            kernel = CudaKernel(device.driver, device.kernel_stream, program)
            inputs = _placed(self._inputs, piece.inputs)
            launch = kernel.bind(inputs, _placed(self._outputs, piece.outputs), scratch)
            launch()  # the first one loads the code
            return median(_timed(device, launch) for _ in range(_RUNS))


def _placed(memories: Sequence[Memory], arrays: Sequence[DeviceArray]) -> list[DeviceArray]:
    return [
        memory.array(0, array.dtype, array.shape)
        for memory, array in zip(memories, arrays, strict=False)
    ]


def _timed(device: TrialDevice, launch: Launch) -> float:
    driver, stream = device.driver, device.kernel_stream
    start, end = driver.create_event(), driver.create_event()
    try:
        driver.record(start, stream)
        launch()
        driver.record(end, stream)
        driver.synchronize(end)
        return driver.elapsed(start, end)
    finally:
        driver.destroy_event(start)
        driver.destroy_event(end)
