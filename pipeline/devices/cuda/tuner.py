"""Which algorithm is fastest for each convolution, measured on the device.

The choice is by geometry, which does not know how many filters a launch computes: chunks of a layer take
one algorithm, and must have the bits of the whole layer. Our own kernels do by construction. The
library's are compared: a chunk has the first filters of the whole layer and must give its first channels.
"""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from statistics import median

import numpy as np
import onnx
from numpy.typing import NDArray

from pipeline.devices.base import Launch
from pipeline.devices.cuda.call import LaunchProgram
from pipeline.devices.cuda.kernel import CudaKernel
from pipeline.devices.cuda.lowering import ConvolutionSettings, NotCoveredError, geometries, lower
from pipeline.devices.cuda.memory_kinds import DeviceArray
from pipeline.devices.cuda.operators.convolutions.algorithms import Algorithm
from pipeline.devices.cuda.trial import TrialDevice
from pipeline.devices.memory import Memory

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
        model = onnx.load_model_from_string(graph)
        self.inputs = [_array(port) for port in model.graph.input]
        self.outputs = [_array(port) for port in model.graph.output]
        self.n_bytes = sum(array.n_bytes for array in (*self.inputs, *self.outputs))


def _array(port: onnx.ValueInfoProto) -> DeviceArray:
    kind = port.type.tensor_type
    dtype = onnx.helper.tensor_dtype_to_np_dtype(kind.elem_type).name
    return DeviceArray(0, dtype, tuple(dim.dim_value for dim in kind.shape.dim))


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
