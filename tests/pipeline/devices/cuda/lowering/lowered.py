"""Pieces lowered and run on the host build of the kernels, to compare with ONNX Runtime."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper

from models.runtime.sessions import open_piece
from pipeline.devices.cuda.call import DevicePointer, LaunchProgram
from pipeline.devices.cuda.lowering import lower
from pipeline.devices.cuda.scope import ConvolutionSettings
from tests.pipeline.devices.cuda.space import placed, some_kernels, space
from tests.pipeline.devices.nodes import piece

Array = NDArray[Any]

_GUARD = 256
_PATTERN = 0xFF  # NaN as a float: a kernel that reads what was not written is found, too


class _Memory:
    """Bytes with a guard zone on both sides."""

    def __init__(self, n_bytes: int, misaligned: int = 0) -> None:
        self._begin = _GUARD + misaligned
        self._end = self._begin + n_bytes
        self._bytes = space(self._end + _GUARD)
        self._bytes[:] = _PATTERN

    @property
    def address(self) -> int:
        return int(self._bytes.ctypes.data) + self._begin

    def array(self, like: Array) -> Array:
        return self._bytes[self._begin : self._end].view(like.dtype).reshape(like.shape)

    def check(self) -> None:
        assert (self._bytes[: self._begin] == _PATTERN).all(), "written before a tensor"
        assert (self._bytes[self._end :] == _PATTERN).all(), "written behind a tensor"


def execute(
    program: LaunchProgram,
    inputs: Sequence[Array],
    expected: Sequence[Array],
    over: int | None = None,
) -> list[Array]:
    """Run ``program``; return its outputs, of the shapes and dtypes of ``expected``.

    No tensor is written beyond its end, no input or constant is changed, and offsets that are multiples of
    4 bytes and of an element are enough. The first output lies in the memory of input ``over``, if given.
    """
    given = [placed(array) for array in inputs]
    constants = [placed(array) for array in program.constants]
    outputs = [
        _Memory(array.nbytes, misaligned=max(4, array.itemsize) * (i + 1))
        for i, array in enumerate(expected)
    ]
    inner = _Memory(program.inner_bytes)
    if over is not None:
        outputs[0].array(inputs[over])[...] = inputs[over]

    def resolve(pointer: DevicePointer) -> int:
        if pointer.space == "input" and pointer.index == over:
            return outputs[0].address + pointer.offset
        places = {
            "input": lambda: given[pointer.index].ctypes.data,
            "constant": lambda: constants[pointer.index].ctypes.data,
            "output": lambda: outputs[pointer.index].address,
            "inner": lambda: inner.address,
        }
        return int(places[pointer.space]()) + pointer.offset

    for call in program.calls:
        some_kernels().launch(call, resolve)
    for memory in (*outputs, inner):
        memory.check()
    for before, after in zip((*inputs, *program.constants), (*given, *constants), strict=True):
        np.testing.assert_array_equal(before, after)
    return [memory.array(like) for memory, like in zip(outputs, expected, strict=True)]


def reference(graph: bytes, inputs: Sequence[Array]) -> list[Array]:
    """Return what ONNX Runtime makes of ``inputs``, those of the piece in order."""
    session = open_piece(graph)
    names = [port.name for port in session.get_inputs()]
    found: list[Array] = session.run(None, dict(zip(names, inputs, strict=True)))
    return found


def same(
    graph: bytes, inputs: Sequence[Array], settings: ConvolutionSettings | None = None
) -> LaunchProgram:
    """Assert that a piece gives what ONNX Runtime gives; return its launches."""
    expected = reference(graph, inputs)
    program = lower(_with_ports(graph, expected), settings or ConvolutionSettings())
    results = execute(program, inputs, expected)
    for result, wanted in zip(results, expected, strict=True):
        np.testing.assert_allclose(result, wanted, rtol=2e-4, atol=2e-5)
    return program


def _with_ports(graph: bytes, outputs: Sequence[Array]) -> bytes:
    """Return a piece whose outputs have shapes, as those of packs do."""
    model = onnx.load_model_from_string(graph)
    for port, array in zip(model.graph.output, outputs, strict=True):
        dtype = helper.np_dtype_to_tensor_dtype(array.dtype)
        port.CopyFrom(helper.make_tensor_value_info(port.name, dtype, array.shape))
    return bytes(model.SerializeToString())


def agree(
    operator: str,
    inputs: Sequence[Array | None],
    attributes: Mapping[str, Any] | None = None,
    **options: Any,
) -> LaunchProgram:
    """Assert that a node gives what ONNX Runtime gives; options as of ``nodes.piece``."""
    graph = piece(operator, inputs, attributes or {}, **options)
    wanted = [port.name for port in open_piece(graph).get_inputs()]
    fed = [inputs[int(name[1:])] for name in wanted]
    return same(graph, [np.asarray(array) for array in fed if array is not None])
