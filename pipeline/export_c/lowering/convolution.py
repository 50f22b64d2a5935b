"""Convolutions and pools: any stride, pad, dilation and number of groups, in one or two dimensions."""

import math
from dataclasses import replace

import numpy as np

from models.network.node import NamedTensor, Shape, UnsuitedError
from models.network.operators.pooling import PoolKind
from models.network.operators.reading import (
    Combine,
    Convolution,
    OnBytes,
    Pooling,
    Reduction,
    TransposedConvolution,
)
from models.network.windows import Windows
from pipeline.export_c.lowering.builder import StepBuilder
from pipeline.export_c.lowering.calls import (
    After,
    Band,
    ElementStrides,
    FilterRange,
    LoweredLayer,
    StructConstant,
    ValuePointer,
    Weight,
    layout_of,
)
from pipeline.export_c.lowering.elements import combine, function_of
from pipeline.export_c.network.network import FLIPS

_POOLS: dict[PoolKind, str] = {"largest": "largest_of_windows", "mean": "average_of_windows"}


def convolution(to: StepBuilder, operator: Convolution) -> None:
    """Add a convolution, and a sum of its own where the kernel cannot add it."""
    weight, addend = to.held(operator.weight), operator.addend
    activation = operator.activation
    if addend is not None and (weight is None or to.held(addend) is not None):
        product = operator.y.named(f"{operator.y.name}/product")
        convolution(to, replace(operator, y=product, addend=None, activation=None))
        operands = product, addend
        combine(to, Combine(kind="add", operands=operands, y=operator.y, activation=activation))
    elif weight is None:
        _gate(to, operator)
    else:
        _check_pads(operator.windows)
        plane, bias = operator.windows.on_a_plane, to.weight(operator.bias)
        layer = LoweredLayer(
            operator=operator,
            weight=np.ascontiguousarray(weight),
            bias=None if bias is None else bias.array,
            x=layout_of(plane.size, operator.x.shape[1]),
            y=layout_of(plane.result, operator.filters),
        )
        added = None if addend is None else addend.name
        after = After(adds=True, addend=added, function=function_of(activation))
        _add_layer(to, layer, operator.y, after)


def _add_layer(
    to: StepBuilder, layer: LoweredLayer, y: NamedTensor, after: After | None = None
) -> None:
    """Add the step of ``layer``; ``y``: what it makes, with its dimensions as they lie."""
    bias, factors = (None if it is None else Weight(it) for it in (layer.bias, layer.factors))
    to.step(
        y,
        layer.kernel,
        ValuePointer(layer.operator.x.name),
        Weight(layer.weight, rows=True),
        bias,
        *([] if factors is None else [factors]),
        to.make(y),
        struct_of(layer),
        FilterRange(len(layer.weight)),
        Band(layer.plane.result[0]),
        in_place=() if after is None or after.addend is None else (after.addend,),
        after=after,
        operator=layer,
    )


def struct_of(layer: LoweredLayer) -> StructConstant:
    """Return ``struct window`` or ``struct bytes`` of ``layer``."""
    operator, x, y = layer.operator, layer.x, layer.y
    fields = _geometry(operator.x.shape, operator.y.shape, operator.windows, operator.groups)
    part = int(layer.in_part)
    if layer.scales is None:
        return _window(fields, x, part)
    given, weight, result = layer.scales
    places = {
        "x_pixel": x.pixel,
        "x_channel": x.channel,
        "y_pixel": y.pixel,
        "y_channel": y.channel,
    }
    zeros = {
        "x_zero": given.zero,
        "x_flip": given.flip,
        "w_zero": weight.zero - 128,
        "y_zero": result.zero,
        "y_flip": result.flip,
    }
    return StructConstant("bytes", {**fields, "part": part, **places, **zeros})


def _window(fields: dict[str, int], x: ElementStrides, part: int) -> StructConstant:
    return StructConstant("window", {**fields, "line": x.line, "plane": x.channel, "part": part})


def _gate(to: StepBuilder, operator: Convolution) -> None:
    """Add a convolution whose weights were made: a factor for each channel of one image."""
    x, factors = operator.x, operator.weight
    is_product = factors.shape == (x.shape[1], *[1] * len(x.shape[1:])) and x.shape[0] == 1
    if not is_product or operator.bias is not None or operator.y.shape != x.shape:
        raise UnsuitedError(f"{factors.name!r} is not constant")
    by_channel = factors.shaped((1, x.shape[1], *factors.shape[2:]))
    activation = operator.activation
    combine(
        to,
        Combine(kind="multiply", operands=(x, by_channel), y=operator.y, activation=activation),
    )


def transposed_convolution(to: StepBuilder, operator: TransposedConvolution) -> None:
    """Add a step that spreads each element over a window of the result."""
    weight, groups, x, y = to.constant(operator.weight), operator.groups, operator.x, operator.y
    # By filters, as a convolution has them.
    by_group = weight.reshape(groups, len(weight) // groups, *weight.shape[1:]).swapaxes(1, 2)
    by_filter = by_group.reshape(groups * weight.shape[1], -1, *weight.shape[2:])
    _check_pads(operator.windows)
    fields = _geometry(x.shape, y.shape, operator.windows, groups)
    to.step(
        y,
        "convolve_transposed",
        ValuePointer(x.name),
        Weight(np.ascontiguousarray(by_filter), rows=True),
        to.weight(operator.bias),
        to.make(y),
        _window(fields, layout_of((fields["size_y"], fields["size_x"]), x.shape[1]), 0),
        FilterRange(len(by_filter)),
        after=After(adds=True),
    )


def pool(to: StepBuilder, operator: Pooling) -> None:
    """Add a pool: the largest of what lies inside the input, or a mean with or without the padding."""
    x, y = operator.x, operator.y
    if operator.kind not in _POOLS:
        raise UnsuitedError(f"no kernel in C has pools of kind {operator.kind}")
    _check_pads(operator.windows)
    fields = _geometry(x.shape, y.shape, operator.windows, x.shape[1])
    record = "window"
    if operator.kind == "mean":  # what of a window counts: up to where padding ends, or the input
        counts, plane = operator.counts_padding, operator.windows.on_a_plane
        ends = [n + end * counts for n, end in zip(plane.size, plane.behind, strict=True)]
        fields |= {"end_y": ends[0], "end_x": ends[1], "counts_padding": int(counts)}
        record = "averaging"
    output = to.make(y)
    to.step(
        y,
        _POOLS[operator.kind],
        ValuePointer(x.name),
        output,
        StructConstant(record, fields),
        after=After(),
    )


def _check_pads(windows: Windows) -> None:
    if min(*windows.before, *windows.behind) < 0:
        raise UnsuitedError("negative pads")


def _geometry(x: Shape, y: Shape, windows: Windows, groups: int) -> dict[str, int]:
    """Return the fields of ``struct window`` from ``x`` to ``y`` [N, C, ...]: one axis is a row."""
    plane = windows.on_a_plane
    size, result = ((*[1] * (4 - len(shape)), *shape[2:]) for shape in (x, y))
    named = {"batch": x[0], "channels": x[1], "filters": y[1], "groups": groups}
    pairs = {
        "size": size,
        "result": result,
        "kernel": plane.kernel,
        "stride": plane.strides,
        "step": plane.dilations,
        "pad": plane.before,
    }
    for name, (rows, columns) in pairs.items():
        named |= {f"{name}_y": rows, f"{name}_x": columns}
    return named


# Convolutions, products and pools of bytes: the same bits as ONNX Runtime's.


def convolution_of_bytes(to: StepBuilder, of: OnBytes[Convolution]) -> None:
    """Add a convolution, with channels last or in front."""
    operator, filters, plane = of.operator, of.operator.filters, of.operator.windows.on_a_plane
    if of.by_inputs:
        rows = to.constant(operator.weight.shaped((operator.depth, filters))).T
    else:
        rows = np.moveaxis(to.constant(operator.weight), 1, -1)
    if rows.dtype != np.int8:  # unsigned ones less 128, as their zero point is
        rows = (rows.astype(np.int16) - 128).astype(np.int8)
    given, by_filter, result = map(to.scaled, of.scales)
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
        scales=(given, by_filter, result),
    )
    _add_layer(to, layer, of.y)


def pool_of_bytes(to: StepBuilder, of: OnBytes[Pooling]) -> None:
    """Add the largest bytes of windows, or their means: sums and quotients of floats."""
    operator, y = of.operator, of.y
    x, output = operator.x, to.make(y)
    # Channels in front are images of one channel each.
    images = [
        (n, channels, *size) if of.last else (n * channels, 1, *size)
        for n, channels, *size in (x.shape, operator.y.shape)
    ]
    fields = _geometry(images[0], images[1], operator.windows, images[0][1])
    if operator.kind == "largest":
        record = StructConstant("window", fields)
        to.step(y, "largest_bytes", ValuePointer(x.name), output, record, FLIPS[x.dtype])
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
    to.step(y, "average_windows_of_bytes", ValuePointer(x.name), output, record)


def average_of_bytes(to: StepBuilder, of: OnBytes[Reduction]) -> None:
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
    output, record = to.make(of.y), StructConstant("averages", fields)
    to.step(of.y, "average_bytes", ValuePointer(of.operator.x.name), output, record)
