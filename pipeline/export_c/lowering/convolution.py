"""Convolutions and pools: any stride, pad, dilation and number of groups, in one or two dimensions."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.devices.operators.window import Window
from pipeline.export_c.lowering.node import Operation, Shape, items
from pipeline.export_c.lowering.steps import After, Band, Record, Rows, Value, Weight


def convolution(operation: Operation) -> None:
    """Conv."""
    operation.floats(0, 1)
    weight, shape = operation.constant(1), operation.shape(0)
    if weight.ndim != len(shape):
        operation.refuse(f"a weight {list(weight.shape)} on {list(shape)}")
    groups = int(operation.attribute("group", 1))
    filters, depth = weight.shape[:2]
    if shape[1] != depth * groups or filters % groups:
        operation.refuse(f"a weight {list(weight.shape)} in {groups} groups on {list(shape)}")
    frame = _frame(operation, weight.shape[2:])
    _filters_step(operation, "convolve", weight, frame, groups, Band(_two(frame.result)[0]))


def transposed_convolution(operation: Operation) -> None:
    """ConvTranspose: each element is spread over a window of the result."""
    operation.floats(0, 1)
    weight, shape = operation.constant(1), operation.shape(0)
    groups, axes = int(operation.attribute("group", 1)), len(shape) - 2
    if axes not in {1, 2} or weight.ndim != len(shape) or shape[1] != len(weight):
        operation.refuse(f"a weight {list(weight.shape)} on {list(shape)}")
    # By filters, as a convolution has them.
    together = weight.shape[1]
    by_group = weight.reshape(groups, len(weight) // groups, *weight.shape[1:]).swapaxes(1, 2)
    by_filter = by_group.reshape(groups * together, -1, *weight.shape[2:])
    frame = _spread(operation, weight.shape[2:], shape[2:])
    _filters_step(operation, "convolve_transposed", by_filter, frame, groups)


def _filters_step(
    operation: Operation,
    kernel: str,
    weight: NDArray[Any],
    frame: Window,
    groups: int,
    *bands: Band,
) -> None:
    """Add the step of a ``kernel``; ``weight`` has filters first, some of which can run at a time."""
    shape, filters, bias = operation.shape(0), len(weight), operation.optional(2)
    made = operation.make((shape[0], filters, *frame.result))
    fields = geometry(shape, frame, filters, groups)
    fields |= {"line": fields["size_x"], "plane": items(shape[2:]), "part": 0}
    operation.step(
        kernel,
        Value(operation.name(0)),
        Weight(np.ascontiguousarray(weight), rows=True),
        None if bias is None else Weight(np.ascontiguousarray(bias)),
        Value(made),
        Record("window", fields),
        Rows(filters),
        *bands,
        after=After(adds=True),
    )


def _spread(operation: Operation, kernel: Shape, size: Shape) -> Window:
    """Return how windows of ``kernel`` lie on the result of a ConvTranspose of ``size``."""
    axes = len(kernel)
    strides, dilations, more = (
        tuple(operation.attribute(name) or [default] * axes)
        for name, default in (("strides", 1), ("dilations", 1), ("output_padding", 0))
    )
    pads = tuple(operation.attribute("pads") or [0] * (2 * axes))
    wanted, way = operation.attribute("output_shape"), operation.attribute("auto_pad", "NOTSET")
    # What comes without pads.
    whole = [
        stride * (length - 1) + (n - 1) * step + 1 + extra
        for stride, length, n, step, extra in zip(
            strides, size, kernel, dilations, more, strict=True
        )
    ]
    if wanted or way.startswith("SAME"):
        asked = (
            wanted[-axes:] if wanted else [n * step for n, step in zip(size, strides, strict=True)]
        )
        totals = [max(n - length, 0) for n, length in zip(whole, asked, strict=True)]
        less, greater = [n // 2 for n in totals], [n - n // 2 for n in totals]
        pads = (*less, *greater) if way == "SAME_UPPER" else (*greater, *less)
    elif way == "VALID":
        pads = (0,) * (2 * axes)
    result = (
        wanted[-axes:]
        if wanted
        else [n - a - b for n, a, b in zip(whole, pads[:axes], pads[axes:], strict=True)]
    )
    if min(*result, *pads) < 0 or min(result) < 1:
        operation.refuse(f"a result of {list(result)} with pads {list(pads)}")
    return Window(
        tuple(kernel), strides, dilations, pads[:axes], pads[axes:], (0,) * axes, tuple(result)
    )


def max_pool(operation: Operation) -> None:
    """MaxPool: the largest under each window, of what lies inside the input."""
    if len([name for name in operation.node.outputs if name]) > 1:
        operation.refuse("the places of what is largest")
    _pool(operation, operation.attribute("kernel_shape"), "largest_of_windows")


def average_pool(operation: Operation) -> None:
    """AveragePool, with or without the padding in the count."""
    kernel = operation.attribute("kernel_shape")
    counted = bool(operation.attribute("count_include_pad", 0))
    _pool(operation, kernel, "average_of_windows", counted)


def global_average_pool(operation: Operation) -> None:
    """GlobalAveragePool."""
    _whole(operation, "average_of_planes")


def global_max_pool(operation: Operation) -> None:
    """GlobalMaxPool."""
    _whole(operation, "largest_of_planes")


def _whole(operation: Operation, kernel: str) -> None:
    operation.floats(0)
    shape = operation.shape(0)
    made = operation.make((*shape[:2], *[1] * len(shape[2:])))
    size = items(shape[:2]), items(shape[2:])
    operation.step(kernel, Value(operation.name(0)), Value(made), *size, after=After())


def _pool(operation: Operation, kernel: Shape, function: str, padding: bool | None = None) -> None:
    operation.floats(0)
    shape = operation.shape(0)
    frame = _frame(operation, kernel)
    made = operation.make((*shape[:2], *frame.result))
    fields = geometry(shape, frame, shape[1], shape[1])
    if padding is not None:  # what of a window counts: up to where padding ends, or the input
        size = zip((*[1] * (4 - len(shape)), *shape[2:]), _two(frame.ends, 0), strict=True)
        fields |= dict(zip(("end_y", "end_x"), (n + end * padding for n, end in size), strict=True))
        fields |= {"counts_padding": int(padding)}
    record = Record("window" if padding is None else "averaging", fields)
    operation.step(function, Value(operation.name(0)), Value(made), record, after=After())


def _frame(operation: Operation, kernel: Shape | None) -> Window:
    shape = operation.shape(0)
    if len(shape) not in {3, 4}:
        operation.refuse(f"an input of {len(shape)} dimensions; 3 or 4 can be exported")
    if kernel is None or len(kernel) != len(shape) - 2:
        operation.refuse(f"a kernel of {kernel} on {list(shape)}")
    frame = operation.window(kernel)
    if min(frame.begins) < 0 or min(frame.ends) < 0:
        operation.refuse("negative pads")
    return frame


def geometry(shape: Shape, frame: Window, filters: int, groups: int) -> dict[str, int]:
    """Return the fields of ``struct window``: a row of columns where there is one dimension."""
    sizes = _two(shape[2:]), _two(frame.result), _two(frame.kernel)
    steps = _two(frame.strides), _two(frame.dilations), _two(frame.begins, 0)
    fields: Mapping[str, int | tuple[int, int]] = {
        "batch": shape[0],
        "channels": shape[1],
        "filters": filters,
        "groups": groups,
        **dict(
            zip(
                ("size", "result", "kernel", "stride", "step", "pad"), (*sizes, *steps), strict=True
            )
        ),
    }
    named: dict[str, int] = {}
    for name, value in fields.items():
        if isinstance(value, int):
            named[name] = value
        else:
            named |= {f"{name}_y": value[0], f"{name}_x": value[1]}
    return named


def _two(numbers: Shape, other: int = 1) -> tuple[int, int]:
    rows, columns = (*[other] * (2 - len(numbers)), *numbers)
    return int(rows), int(columns)
