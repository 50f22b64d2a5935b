"""Pools of bytes: the same bits as ONNX Runtime's."""

import math
from collections.abc import Callable

import numpy as np

from models.network.node import NodeReader, Shape, UnsuitedError
from pipeline.export_c.lowering.builder import Builder
from pipeline.export_c.lowering.convolution import geometry
from pipeline.export_c.lowering.steps import Pointer, Record
from pipeline.export_c.network.scales import FLIPS, of_bytes, scaled

_LAST = "com.microsoft.NhwcMaxPool"


def max_pool(to: Builder, read: NodeReader) -> None:
    """MaxPool of bytes, with channels last (NhwcMaxPool) or in front."""
    x = of_bytes(read.value(0))
    fields, result = _windows(read, last=read.node.operator == _LAST)
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
    _LAST: max_pool,
    "MaxPool": max_pool,
    "com.microsoft.QLinearAveragePool": average_pool,
    "com.microsoft.QLinearGlobalAveragePool": global_average_pool,
}
