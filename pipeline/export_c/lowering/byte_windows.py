"""Convolutions, products and pools of bytes: the same bits as ONNX Runtime's."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from models.network.node import NodeReader, Shape, UnsuitedError, Value
from models.network.operators import Convolution
from models.network.windows import SAME, Windows
from pipeline.export_c.lowering.builder import Builder
from pipeline.export_c.lowering.convolution import add_layer, geometry
from pipeline.export_c.lowering.layers import Layer, layout_of
from pipeline.export_c.lowering.steps import Pointer, Record
from pipeline.export_c.network.quantised import CONVOLUTION, PRODUCT
from pipeline.export_c.network.scales import FLIPS, of_bytes, scaled, signed

#: Inputs that are the bias and the scale of the result; of both operators 1 and 4 are the other scales.
_OF_CONVOLUTION = (8, 6)
_OF_PRODUCT = (6, 7)
_POOL_LAST = "com.microsoft.NhwcMaxPool"


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


def max_pool(to: Builder, read: NodeReader) -> None:
    """MaxPool of bytes, with channels last (NhwcMaxPool) or in front."""
    x = of_bytes(read.value(0))
    fields, result = _windows(read, last=read.node.operator == _POOL_LAST)
    y = read.made(x, result)
    record, flip = Record("window", fields), FLIPS[x.dtype]
    to.step(y, "largest_bytes", Pointer(x.name), to.make(y), record, flip)


def average_pool(to: Builder, read: NodeReader) -> None:
    """QLinearAveragePool, with channels last or in front: sums and quotients of floats."""
    x, given, result = read.value(0), scaled(read, 1), scaled(read, 3)
    fields, shape = _windows(read, last=bool(read.attribute("channels_last", 0)))
    scales: dict[str, int | float | tuple[int, ...]] = {
        "counts_padding": int(read.attribute("count_include_pad", 0)),
        "x_scale": given.one,
        "y_scale": result.one,
        "x_zero": given.zero,
        "x_flip": given.flip,
        "y_zero": result.plain_zero,
        "y_flip": result.flip,
    }
    y, record = result.made(read, shape), Record("window_averages", {**fields, **scales})
    to.step(y, "average_windows_of_bytes", Pointer(x.name), to.make(y), record)


def _windows(read: NodeReader, *, last: bool) -> tuple[dict[str, int], Shape]:
    """Return the fields of a pool's windows, and the shape of its result; ``last``: channels lie last."""
    shape = read.value(0).shape
    if len(shape) != 4:
        raise UnsuitedError(f"an input of {len(shape)} dimensions; 4 can be exported")
    size = shape[1:3] if last else shape[2:]
    kernel, strides = read.attribute("kernel_shape"), read.attribute("strides", ())
    if str(read.attribute("auto_pad", "")).startswith("SAME") and any(
        n < stride for n, stride in zip(kernel, strides, strict=False)
    ):
        # ONNX Runtime shifts its windows, of bytes alone, where the standard pads by nothing.
        raise UnsuitedError(
            f"auto_pad with strides {list(strides)} beyond a kernel of {list(kernel)}"
        )
    windows = read.windows(kernel, size)
    result = (shape[0], *windows.result, shape[3]) if last else (*shape[:2], *windows.result)
    # Channels in front are images of one channel each.
    batch, channels = (shape[0], shape[3]) if last else (math.prod(shape[:2]), 1)
    plain = [(batch, channels, *sides) for sides in (size, windows.result)]
    return geometry(plain[0], plain[1], windows, channels), result


def global_average_pool(to: Builder, read: NodeReader) -> None:
    """QLinearGlobalAveragePool, with channels last or in front."""
    last, x = bool(read.attribute("channels_last", 0)), read.value(0)
    given, result = scaled(read, 1), scaled(read, 3)
    batch, *rest = x.shape
    channels, pixels = (rest[-1], rest[:-1]) if last else (rest[0], rest[1:])
    ones, count = [1] * len(pixels), math.prod(pixels)
    y = result.made(read, (batch, *ones, channels) if last else (batch, channels, *ones))
    scale = np.float32(given.one) / (np.float32(result.one) * np.float32(count))
    fields: dict[str, int | float | tuple[int, ...]] = {
        "batch": batch,
        "channels": channels,
        "plane": count,
        "scale": float(scale),
        "pixel": channels if last else 1,
        "channel": 1 if last else count,
        "x_zero": given.zero,
        "x_flip": given.flip,
        "y_zero": result.zero,
        "y_flip": result.flip,
    }
    to.step(y, "average_bytes", Pointer(x.name), to.make(y), Record("averages", fields))


OPERATORS: dict[str, Callable[[Builder, NodeReader], None]] = {
    "QLinearConv": convolution,
    PRODUCT: product,
    CONVOLUTION: convolution,
    _POOL_LAST: max_pool,
    "MaxPool": max_pool,
    "com.microsoft.QLinearAveragePool": average_pool,
    "com.microsoft.QLinearGlobalAveragePool": global_average_pool,
}
