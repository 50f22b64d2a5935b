"""Convolutions, products and pools of bytes: the same bits as ONNX Runtime's."""

import math

import numpy as np

from models.network.node import UnsuitedError
from models.network.operators.reading import Convolution, OnBytes, Pooling, Reduction
from pipeline.export_c.lowering.builder import StepBuilder
from pipeline.export_c.lowering.convolution import add_layer, geometry
from pipeline.export_c.lowering.layers import LoweredLayer, layout_of
from pipeline.export_c.lowering.steps import StructConstant, ValuePointer
from pipeline.export_c.network.scales import FLIPS


def convolution(to: StepBuilder, of: OnBytes[Convolution]) -> None:
    """Add a convolution, with channels last or in front."""
    operator, filters, plane = of.operator, of.operator.filters, of.operator.windows.on_a_plane
    if of.by_inputs:
        rows = to.constant(operator.weight.shaped((operator.depth, filters))).T
    else:
        rows = np.moveaxis(to.constant(operator.weight), 1, -1)
    if rows.dtype != np.int8:  # unsigned ones less 128, as their zero point is
        rows = (rows.astype(np.int16) - 128).astype(np.int8)
    given, by_filter, made = map(to.scaled, of.scales)
    bias = to.held(operator.bias)
    if bias is not None:
        try:
            bias = np.broadcast_to(bias, (1, filters)).reshape(-1)
        except ValueError:
            raise UnsuitedError(f"a bias {list(bias.shape)} of {filters} filters") from None
    layer = LoweredLayer(
        operator=operator,
        weight=np.ascontiguousarray(rows),
        bias=bias,
        x=layout_of(plane.size, operator.x.shape[1], last=of.last),
        y=layout_of(plane.result, filters, last=of.last),
        scales=(given, by_filter, made),
    )
    add_layer(to, layer, of.y)


def pool(to: StepBuilder, of: OnBytes[Pooling]) -> None:
    """Add the largest bytes of windows, or their means: sums and quotients of floats."""
    operator, y = of.operator, of.y
    x, made = operator.x, to.make(y)
    # Channels in front are images of one channel each.
    images = [
        (n, channels, *size) if of.last else (n * channels, 1, *size)
        for n, channels, *size in (x.shape, operator.y.shape)
    ]
    fields = geometry(images[0], images[1], operator.windows, images[0][1])
    if operator.kind == "largest":
        record = StructConstant("window", fields)
        to.step(y, "largest_bytes", ValuePointer(x.name), made, record, FLIPS[x.dtype])
        return
    given, result = map(to.scaled, of.scales)
    scales = {
        "counts_padding": int(operator.counts_padding),
        "x_scale": given.one,
        "y_scale": result.one,
        "x_zero": given.zero,
        "x_flip": given.flip,
        "y_zero": result.plain_zero,
        "y_flip": result.flip,
    }
    record = StructConstant("window_averages", {**fields, **scales})
    to.step(y, "average_windows_of_bytes", ValuePointer(x.name), made, record)


def average(to: StepBuilder, of: OnBytes[Reduction]) -> None:
    """Add the means of channels."""
    given, result = map(to.scaled, of.scales)
    batch, channels, *pixels = of.operator.x.shape
    count = math.prod(pixels)
    scale = np.float32(given.one) / (np.float32(result.one) * np.float32(count))
    fields: dict[str, int | float | tuple[int, ...]] = {
        "batch": batch,
        "channels": channels,
        "plane": count,
        "scale": float(scale),
        "pixel": channels if of.last else 1,
        "channel": 1 if of.last else count,
        "x_zero": given.zero,
        "x_flip": given.flip,
        "y_zero": result.zero,
        "y_flip": result.flip,
    }
    made, record = to.make(of.y), StructConstant("averages", fields)
    to.step(of.y, "average_bytes", ValuePointer(of.operator.x.name), made, record)
