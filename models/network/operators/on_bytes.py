"""Operators on bytes: 8-bit integers, signed or not, that stand for numbers by a scale and a zero point.

Each is an operator on the numbers, whose reader reads it, with the scales beside its operands: ONNX's own,
and those that ONNX Runtime's optimiser makes of nodes between DequantizeLinear and QuantizeLinear.
"""

import math
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

from models.network.node import NamedTensor, NodeReader, UnsuitedError
from models.network.operators.convolution import Convolution
from models.network.operators.elements import Combine, Map
from models.network.operators.matrix import MatrixProduct
from models.network.operators.movement import Movement
from models.network.operators.normalisation import Softmax
from models.network.operators.pooling import Pooling, Reduction, pool
from models.network.records import OperatorRecord, Reader
from models.network.windows import SAME, Windows

BYTE_TYPES = ("int8", "uint8")
# As ONNX numbers element types; 0: that of the scale, or of the zero point.
_FLOATS, _BYTES = (0, 1), (0, 2, 3)


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantisation:
    """How bytes stand for numbers: ``scale`` times (byte - ``zero``); one for all, or for each filter."""

    scale: NamedTensor
    zero: NamedTensor

    @property
    def dtype(self) -> str:
        """Of the bytes."""
        return self.zero.dtype


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversion:
    """``x`` as ``y``: floats as bytes, or bytes as the floats that they stand for."""

    x: NamedTensor
    y: NamedTensor
    scaling: Quantisation


@dataclass(frozen=True, slots=True, kw_only=True)
class LookUp:
    """What each byte of ``x`` is in ``table``."""

    x: NamedTensor
    y: NamedTensor
    table: NamedTensor


#: What there is on bytes.
Numbers = TypeVar("Numbers", Combine, Convolution, Map, Movement, Pooling, Reduction, Softmax)


@dataclass(frozen=True, slots=True, kw_only=True)
class OnBytes(Generic[Numbers]):
    """``operator`` on the numbers that bytes stand for; ``y``: the bytes that it makes, as they lie.

    Its shapes have channels in front; ``last``: they lie last. ``scales``: of its operands but a bias, then
    of ``y``; none where bytes are only compared. A matrix product is a convolution of a row of pixels;
    ``by_inputs``: whose weights lie as [channels, filters].
    """

    operator: Numbers
    y: NamedTensor
    scales: tuple[Quantisation, ...]
    last: bool = False
    by_inputs: bool = False


class _AsNumbers(NodeReader):
    """Reads a node on bytes as one of ``record`` on numbers, of an image with channels in front."""

    def __init__(self, read: NodeReader, record: OperatorRecord, last: bool) -> None:
        names = read.node.inputs
        operands = read.record.positions(len(names), "data", "weight", "bias")
        node = replace(
            read.node,
            operator=record.name,
            inputs=tuple(names[position] for position in operands),
            opset=read.attribute("opset", read.node.opset),
        )
        super().__init__(node, read.known, record)
        self._last = last

    def floats(self, position: int) -> NamedTensor:
        """Return a required input of bytes, or a bias."""
        tensor = self.value(position)
        if tensor.dtype not in (*BYTE_TYPES, "int32"):
            raise UnsuitedError(f"input {position} is {tensor.dtype}, not int8 or uint8")
        if self._last and position == 0:
            batch, *size, channels = tensor.shape
            return tensor.shaped((batch, channels, *size))
        return tensor


def on_bytes(record: OperatorRecord) -> Reader:
    """Return the reader of operators that are ``record`` on numbers."""
    assert record.read is not None, record.name
    plain = record.read
    return lambda read: _on_bytes(read, record, plain)


def _on_bytes(read: NodeReader, record: OperatorRecord, plain: Reader) -> OnBytes[Any]:
    last = bool(read.attribute("channels_last", read.record.channels_last))
    on_numbers = plain(_AsNumbers(read, record, last))
    count = max(len(read.node.inputs), len(read.record.operands))
    scales = tuple(_quantisation(read, position) for position in read.record.scales(count))
    result = on_numbers.ys[0] if isinstance(on_numbers, Movement) else on_numbers.y
    y = NamedTensor(
        name=result.name,
        dtype=scales[-1].dtype if scales else result.dtype,
        shape=(*result.shape[:1], *result.shape[2:], *result.shape[1:2]) if last else result.shape,
    )
    if isinstance(on_numbers, Pooling):
        _check_padding(read, on_numbers.windows)
    by_inputs = isinstance(on_numbers, MatrixProduct) and not on_numbers.turned[1]
    operator = _of_pixels(on_numbers) if isinstance(on_numbers, MatrixProduct) else on_numbers
    return OnBytes(operator=operator, y=y, scales=scales, last=last, by_inputs=by_inputs)


def _quantisation(read: NodeReader, position: int) -> Quantisation:
    """Return what the inputs ``position`` (scale) and the next (zero point) say."""
    scale, zero = read.floats(position), read.value(position + 1)
    if zero.dtype not in BYTE_TYPES:
        raise UnsuitedError(f"zero points are {zero.dtype}, not int8 or uint8")
    return Quantisation(scale=scale, zero=zero)


def _check_padding(read: NodeReader, windows: Windows) -> None:
    """Check that pads are those of the standard: ONNX Runtime shifts windows, of bytes alone."""
    kernel, strides = list(windows.kernel), list(windows.strides)
    beyond = any(stride > size for size, stride in zip(kernel, strides, strict=True))
    if beyond and str(read.attribute("auto_pad", "")).startswith("SAME"):
        raise UnsuitedError(f"auto_pad with strides {strides} beyond a kernel of {kernel}")


def _of_pixels(product: MatrixProduct) -> Convolution:
    """Return ``product`` as the convolution of a row of pixels."""
    if product.turned[0] or product.scale != 1:
        raise UnsuitedError("alpha or transA")
    size = (1, product.rows)
    return Convolution(
        x=product.a.shaped((1, product.depth, *size)),
        weight=product.b.shaped((product.columns, product.depth, 1, 1)),
        bias=product.addend,
        y=product.y.shaped((1, product.columns, *size)),
        windows=Windows((SAME, SAME), size, size),
    )


def max_pool(read: NodeReader) -> Pooling | OnBytes[Any]:
    """MaxPool, of floats or of bytes."""
    largest = pool("largest")
    of_bytes = read.value(0).dtype in BYTE_TYPES
    return _on_bytes(read, read.record, largest) if of_bytes else largest(read)


def convert(read: NodeReader) -> Conversion:
    """QuantizeLinear and DequantizeLinear with one scale."""
    x, scaling = read.value(0), _quantisation(read, 1)
    quantises = x.dtype not in BYTE_TYPES
    if quantises:
        read.floats(0)
    read.require("output_dtype", *(_BYTES if quantises else _FLOATS))
    read.require("precision", *_FLOATS)
    if math.prod(scaling.scale.shape) > 1:
        raise UnsuitedError("a scale for each channel")
    dtype = scaling.dtype if quantises else "float32"
    return Conversion(
        x=x, y=NamedTensor(name=read.output, dtype=dtype, shape=x.shape), scaling=scaling
    )


def look_up(read: NodeReader) -> LookUp:
    """Bytes, and what each of them becomes, in unsigned order: ONNX has no such operator."""
    x, table = read.value(0), read.value(1)
    return LookUp(
        x=x, y=NamedTensor(name=read.output, dtype=table.dtype, shape=x.shape), table=table
    )
