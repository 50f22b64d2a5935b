"""Convolutions and products of bytes: the same bits as ONNX Runtime's."""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from models.network.node import NodeReader, Shape, UnsuitedError, Value
from models.network.operators import Convolution
from models.network.windows import SAME, Windows
from pipeline.export_c.lowering.builder import Builder
from pipeline.export_c.lowering.convolution import add_layer
from pipeline.export_c.lowering.layers import Layer, layout_of
from pipeline.export_c.network.quantised import CONVOLUTION, PRODUCT
from pipeline.export_c.network.scales import scaled, signed

#: Inputs that are the bias and the scale of the result; of both operators 1 and 4 are the other scales.
_OF_CONVOLUTION = (8, 6)
_OF_PRODUCT = (6, 7)


def convolution(to: Builder, read: NodeReader) -> None:
    """QLinearConv, with channels last or in front."""
    last, x, weight = bool(read.attribute("channels_last", 0)), read.value(0), read.constant(3)
    if len(x.shape) != 4:
        raise UnsuitedError(f"an input of {len(x.shape)} dimensions; 4 can be exported")
    plain = x.shaped((x.shape[0], x.shape[3], *x.shape[1:3])) if last else x
    groups, filters = int(read.attribute("group", 1)), len(weight)
    if plain.shape[1] != weight.shape[1] * groups or filters % groups:
        raise UnsuitedError(f"a weight {list(weight.shape)} in {groups} groups on {list(x.shape)}")
    windows = read.windows(weight.shape[2:], plain.shape[2:])
    size = windows.result
    result = (x.shape[0], *size, filters) if last else (x.shape[0], filters, *size)
    rows = np.moveaxis(weight, 1, -1)
    _add(to, read, _operator(read, plain, weight, windows, groups), rows, result)


def product(to: Builder, read: NodeReader) -> None:
    """QGemm: a convolution of one pixel, in a row of them."""
    x, matrix = read.value(0), _matrix(read, 3)
    if len(x.shape) != 2 or x.shape[1] != matrix.shape[1]:
        raise UnsuitedError(f"a matrix {list(matrix.shape)} on {list(x.shape)}")
    size = (1, x.shape[0])
    windows = Windows((SAME, SAME), size, size, (0, 0))
    kernels = matrix.reshape(*matrix.shape, 1, 1)
    operator = _operator(read, x.shaped((1, x.shape[1], *size)), kernels, windows, 1)
    _add(to, read, operator, matrix, (x.shape[0], len(matrix)))


def _matrix(read: NodeReader, position: int) -> NDArray[Any]:
    """Return the constant matrix by outputs."""
    if read.attribute("alpha", 1.0) != 1.0 or read.attribute("transA", 0):
        raise UnsuitedError("alpha or transA")
    matrix = read.constant(position)
    return np.ascontiguousarray(matrix if read.attribute("transB", 0) else matrix.T)


def _operator(
    read: NodeReader, x: Value, weight: NDArray[Any], windows: Windows, groups: int
) -> Convolution:
    kernels = Value(name=read.name(3), dtype=weight.dtype.name, shape=weight.shape)
    y = x.shaped((x.shape[0], len(weight), *windows.result), read.output)
    return Convolution(x=x, weight=kernels, y=y, windows=windows, groups=groups)


def _add(
    to: Builder, read: NodeReader, operator: Convolution, rows: NDArray[Any], result: Shape
) -> None:
    """Add ``operator``, whose output has the shape ``result``; ``rows``: its weights by filters."""
    is_product = read.node.operator == PRODUCT
    last = is_product or bool(read.attribute("channels_last", 0))
    bias, scale = _OF_PRODUCT if is_product else _OF_CONVOLUTION
    if not read.has(scale):
        raise UnsuitedError("a result that is not quantised")
    made, size = scaled(read, scale), operator.windows
    layer = Layer(
        operator=operator,
        weight=np.ascontiguousarray(signed(rows)),
        bias=_bias(read, bias, len(rows)),
        x=layout_of(size.size, operator.x.shape[1], last=last),
        y=layout_of(size.result, len(rows), last=last),
        scales=(scaled(read, 1), scaled(read, 4), made),
    )
    add_layer(to, layer, made.made(read, result))


def _bias(read: NodeReader, position: int, filters: int) -> NDArray[Any] | None:
    """Return a number for each filter, of whatever broadcasts to one row of the result."""
    if not read.has(position):
        return None
    bias = read.constant(position)
    try:
        return np.broadcast_to(bias, (1, filters)).reshape(-1)
    except ValueError:
        raise UnsuitedError(f"a bias {list(bias.shape)} of {filters} filters") from None


OPERATORS: dict[str, Callable[[Builder, NodeReader], None]] = {
    "QLinearConv": convolution,
    PRODUCT: product,
    CONVOLUTION: convolution,
}
