"""Operators on bytes: 8-bit integers, signed or not, that stand for numbers by a scale and a zero point.

Each is an operator on the numbers, whose reader reads it, with the scales beside its operands: ONNX's own,
and those that ONNX Runtime's optimiser makes of nodes between DequantizeLinear and QuantizeLinear.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Generic, NamedTuple, TypeVar

from models.network.node import NamedTensor, Node, NodeReader, UnsuitedError
from models.network.operators import (
    convolution,
    elements,
    matrix,
    movement,
    normalisation,
    pooling,
)
from models.network.operators.convolution import Convolution
from models.network.operators.elements import Combine, Map
from models.network.operators.matrix import MatrixProduct
from models.network.operators.movement import Movement
from models.network.operators.normalisation import Softmax
from models.network.operators.pooling import Pooling, Reduction
from models.network.windows import SAME, Windows

BYTE_TYPES = ("int8", "uint8")
#: What ONNX has no operator for: bytes, and what each of them becomes, in unsigned order.
TABLE = "table of bytes"


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


class _Form(NamedTuple):
    """What is ``operator`` on numbers: where it has its operands, and scales of these and of the result.

    A zero point is behind its scale.
    """

    operator: str
    operands: tuple[int, ...]
    scales: tuple[int, ...]


_FORMS = {
    "MaxPool": _Form("MaxPool", (0,), ()),
    "NhwcMaxPool": _Form("MaxPool", (0,), ()),
    "QGemm": _Form("Gemm", (0, 3, 6), (1, 4, 7)),
    "QLinearAdd": _Form("Add", (0, 3), (1, 4, 6)),
    "QLinearAveragePool": _Form("AveragePool", (0,), (1, 3)),
    "QLinearConv": _Form("Conv", (0, 3, 8), (1, 4, 6)),
    "QLinearGlobalAveragePool": _Form("GlobalAveragePool", (0,), (1, 3)),
    "QLinearLeakyRelu": _Form("LeakyRelu", (0,), (1, 3)),
    "QLinearMul": _Form("Mul", (0, 3), (1, 4, 6)),
    "QLinearSigmoid": _Form("Sigmoid", (0,), (1, 3)),
    "QLinearSoftmax": _Form("Softmax", (0,), (1, 3)),
}
#: Inputs that are scales, by operator without its domain; that of the result is last.
SCALES: Mapping[str, tuple[int, ...]] = {
    "DequantizeLinear": (1,),
    "QuantizeLinear": (1,),
    **{name: form.scales for name, form in _FORMS.items()},
}
#: Channels lie last, whatever attributes say.
_LAST = ("com.microsoft.NhwcMaxPool", "com.microsoft.QGemm")
_OF_NUMBERS: Mapping[str, Callable[[NodeReader], Any]] = {
    **convolution.READERS,
    **elements.READERS,
    **matrix.READERS,
    **movement.READERS,
    **normalisation.READERS,
    **pooling.READERS,
}


class _AsNumbers(NodeReader):
    """Reads a node on bytes as one of ``form`` on numbers, of an image with channels in front."""

    def __init__(self, read: NodeReader, form: _Form, last: bool) -> None:
        inputs = tuple(read.node.inputs[at] if read.has(at) else "" for at in form.operands)
        opset = read.attribute("opset", read.node.opset)
        node = replace(read.node, operator=form.operator, inputs=inputs, opset=opset)
        super().__init__(node, read.known)
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


def on_bytes(read: NodeReader) -> OnBytes[Any]:
    """An operator of ``_FORMS``, or QLinearConcat."""
    form = _form(read.node)
    last = bool(read.attribute("channels_last", read.node.operator in _LAST))
    on_numbers = _OF_NUMBERS[form.operator](_AsNumbers(read, form, last))
    scales = tuple(_quantisation(read, position) for position in form.scales)
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


def _form(node: Node) -> _Form:
    name, count = node.operator.rpartition(".")[2], len(node.inputs)
    if name == "QLinearConcat":
        return _Form("Concat", tuple(range(2, count, 3)), (*range(3, count, 3), 0))
    return _FORMS[name]


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
    of_bytes = read.value(0).dtype in BYTE_TYPES
    return on_bytes(read) if of_bytes else pooling.pool("largest")(read)


def convert(read: NodeReader) -> Conversion:
    """QuantizeLinear and DequantizeLinear with one scale."""
    x, scaling = read.value(0), _quantisation(read, 1)
    quantises = x.dtype not in BYTE_TYPES
    if quantises:
        read.floats(0)
    if math.prod(scaling.scale.shape) > 1:
        raise UnsuitedError("a scale for each channel")
    dtype = scaling.dtype if quantises else "float32"
    return Conversion(
        x=x, y=NamedTensor(name=read.output, dtype=dtype, shape=x.shape), scaling=scaling
    )


def look_up(read: NodeReader) -> LookUp:
    """A table of bytes."""
    x, table = read.value(0), read.value(1)
    return LookUp(
        x=x, y=NamedTensor(name=read.output, dtype=table.dtype, shape=x.shape), table=table
    )


#: MaxPool is here for floats, too.
READERS: dict[str, Callable[[NodeReader], Conversion | LookUp | OnBytes[Any] | Pooling]] = {
    **{f"com.microsoft.{name}": on_bytes for name in (*_FORMS, "QLinearConcat")},
    "DequantizeLinear": convert,
    "MaxPool": max_pool,
    "QLinearConv": on_bytes,
    "QuantizeLinear": convert,
    TABLE: look_up,
    "com.microsoft.DequantizeLinear": convert,
    "com.microsoft.QuantizeLinear": convert,
}
