"""Pools of bytes: the same bits as ONNX Runtime's."""

from collections.abc import Callable

import numpy as np

from pipeline.export_c.lowering.convolution import geometry
from pipeline.export_c.lowering.node import Operation, Shape, items
from pipeline.export_c.lowering.scales import FLIPS, scaled
from pipeline.export_c.lowering.steps import Record, Value

_LAST = "com.microsoft.NhwcMaxPool"


def max_pool(operation: Operation) -> None:
    """MaxPool of bytes, with channels last (NhwcMaxPool) or in front."""
    dtype = operation.array(0).dtype
    if dtype not in FLIPS:
        operation.refuse(f"{dtype}; int8 and uint8 can be exported")
    fields, result = _windows(operation, last=operation.node.operator == _LAST)
    made = operation.make(result, dtype)
    record = Record("window", fields)
    operation.step("largest_bytes", Value(operation.name(0)), Value(made), record, FLIPS[dtype])


def average_pool(operation: Operation) -> None:
    """QLinearAveragePool, with channels last or in front: sums and quotients of floats."""
    given, to = scaled(operation, 1), scaled(operation, 3)
    fields, result = _windows(operation, last=bool(operation.attribute("channels_last", 0)))
    made = operation.make(result, to.dtype)
    scales: dict[str, int | float | tuple[int, ...]] = {
        "counts_padding": int(operation.attribute("count_include_pad", 0)),
        "x_scale": given.one,
        "y_scale": to.one,
        "x_zero": given.zero,
        "x_flip": given.flip,
        "y_zero": to.plain_zero,
        "y_flip": to.flip,
    }
    record = Record("window_averages", {**fields, **scales})
    operation.step("average_windows_of_bytes", Value(operation.name(0)), Value(made), record)


def _windows(operation: Operation, *, last: bool) -> tuple[dict[str, int], Shape]:
    """Return the fields of a pool's windows, and the shape of its result; ``last``: channels lie last."""
    shape = operation.shape(0)
    if len(shape) != 4:
        operation.refuse(f"an input of {len(shape)} dimensions; 4 can be exported")
    size = shape[1:3] if last else shape[2:]
    kernel, strides = operation.attribute("kernel_shape"), operation.attribute("strides", ())
    if str(operation.attribute("auto_pad", "")).startswith("SAME") and any(
        n < stride for n, stride in zip(kernel, strides, strict=False)
    ):
        # ONNX Runtime shifts its windows, of bytes alone, where the standard pads by nothing.
        operation.refuse(f"auto_pad with strides {list(strides)} beyond a kernel of {list(kernel)}")
    frame = operation.window(kernel, size)
    result = (shape[0], *frame.result, shape[3]) if last else (*shape[:2], *frame.result)
    # Channels in front are images of one channel each.
    batch, channels = (shape[0], shape[3]) if last else (items(shape[:2]), 1)
    return geometry((batch, channels, *size), frame, channels, channels), result


def global_average_pool(operation: Operation) -> None:
    """QLinearGlobalAveragePool, with channels last or in front."""
    last, shape = bool(operation.attribute("channels_last", 0)), operation.shape(0)
    given, to = scaled(operation, 1), scaled(operation, 3)
    channels, pixels = (shape[-1], shape[1:-1]) if last else (shape[1], shape[2:])
    ones = [1] * len(pixels)
    made = operation.make(
        (shape[0], *ones, channels) if last else (shape[0], channels, *ones), to.dtype
    )
    count = items(pixels)
    scale = np.float32(given.one) / (np.float32(to.one) * np.float32(count))
    fields: dict[str, int | float | tuple[int, ...]] = {
        "batch": shape[0],
        "channels": channels,
        "plane": count,
        "scale": float(scale),
        "pixel": channels if last else 1,
        "channel": 1 if last else count,
        "x_zero": given.zero,
        "x_flip": given.flip,
        "y_zero": to.zero,
        "y_flip": to.flip,
    }
    operation.step(
        "average_bytes", Value(operation.name(0)), Value(made), Record("averages", fields)
    )


OPERATORS: dict[str, Callable[[Operation], None]] = {
    _LAST: max_pool,
    "com.microsoft.QLinearAveragePool": average_pool,
    "com.microsoft.QLinearGlobalAveragePool": global_average_pool,
}
