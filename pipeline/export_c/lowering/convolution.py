"""Convolutions and pools: any stride, pad, dilation and number of groups, in one or two dimensions."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from models.network.node import Shape, UnsuitedError
from models.network.operators import Combine, Convolution, Pool, TransposedConvolution
from models.network.windows import Windows
from pipeline.export_c.lowering.builder import Builder
from pipeline.export_c.lowering.elements import combine, function_of
from pipeline.export_c.lowering.steps import After, Band, Pointer, Record, Rows, Weight

_POOLS = {"largest": "largest_of_windows", "mean": "average_of_windows"}


def convolution(to: Builder, operator: Convolution) -> None:
    """Add a convolution, and a sum of its own where the kernel cannot add it."""
    weight, addend = to.held(operator.weight), operator.addend
    if addend is not None and (weight is None or to.held(addend) is not None):
        product = operator.y.named(f"{operator.y.name}/product")
        convolution(to, replace(operator, y=product, addend=None, activation=None))
        activation = operator.activation
        combine(
            to,
            Combine(kind="add", operands=(product, addend), y=operator.y, activation=activation),
        )
    elif weight is None:
        _gate(to, operator)
    else:
        after = After(
            adds=True,
            addend=None if addend is None else addend.name,
            function=function_of(operator.activation),
        )
        band = Band(operator.windows.on_a_plane.result[0])
        _filters_step(to, "convolve", operator, weight, (band,), after)


def _gate(to: Builder, operator: Convolution) -> None:
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


def transposed_convolution(to: Builder, operator: TransposedConvolution) -> None:
    """Add steps that spread each element over a window of the result."""
    weight, groups = to.constant(operator.weight), operator.groups
    # By filters, as a convolution has them.
    together = weight.shape[1]
    by_group = weight.reshape(groups, len(weight) // groups, *weight.shape[1:]).swapaxes(1, 2)
    by_filter = by_group.reshape(groups * together, -1, *weight.shape[2:])
    _filters_step(to, "convolve_transposed", operator, by_filter, (), After(adds=True))


def _filters_step(
    to: Builder,
    kernel: str,
    operator: Convolution | TransposedConvolution,
    weight: NDArray[Any],
    bands: tuple[Band, ...],
    after: After,
) -> None:
    """Add the step of a ``kernel``; ``weight`` has filters first, some of which can run at a time."""
    x, y = operator.x, operator.y
    _check_pads(operator.windows)
    fields = geometry(x.shape, y.shape, operator.windows, operator.groups)
    fields |= {"line": fields["size_x"], "plane": math.prod(x.shape[2:]), "part": 0}
    to.step(
        y,
        kernel,
        Pointer(x.name),
        Weight(np.ascontiguousarray(weight), rows=True),
        to.weight(operator.bias),
        to.make(y),
        Record("window", fields),
        Rows(len(weight)),
        *bands,
        in_place=() if after.addend is None else (after.addend,),
        after=after,
    )


def pool(to: Builder, operator: Pool) -> None:
    """Add a pool: the largest of what lies inside the input, or a mean with or without the padding."""
    x, y = operator.x, operator.y
    _check_pads(operator.windows)
    fields = geometry(x.shape, y.shape, operator.windows, x.shape[1])
    record = "window"
    if operator.kind == "mean":  # what of a window counts: up to where padding ends, or the input
        counts, plane = operator.counts_padding, operator.windows.on_a_plane
        ends = [n + end * counts for n, end in zip(plane.size, plane.behind, strict=True)]
        fields |= {"end_y": ends[0], "end_x": ends[1], "counts_padding": int(counts)}
        record = "averaging"
    made = to.make(y)
    to.step(y, _POOLS[operator.kind], Pointer(x.name), made, Record(record, fields), after=After())


def _check_pads(windows: Windows) -> None:
    if min(*windows.before, *windows.behind) < 0:
        raise UnsuitedError("negative pads")


def geometry(x: Shape, y: Shape, windows: Windows, groups: int) -> dict[str, int]:
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
