"""Convolutions that take rows of the caller's image as they need them.

What lies between an input and a convolution may be parts of it, other orders of its elements, and one
quantisation. Then each element that the convolution reads is one of the input, in steps that are the same
everywhere: a view. So neither the parts nor the quantised image need memory: a convolution of floats reads
the caller's memory as it lies there, one of bytes has the rows of a band quantised first, and where the
caller brings rows himself, he is asked for those of a band.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from pipeline.export_c.errors import ExportError
from pipeline.export_c.lowering.steps import (
    Argument,
    Band,
    Bands,
    Pointer,
    Program,
    Record,
    Scratch,
    Source,
    Step,
    Strip,
)
from pipeline.export_c.regions.tracing import View, has_whole_rows, view_of
from pipeline.export_c.regions.windows import rows_of, window_of, with_fields

_FLOAT_BYTES = 4
#: What quantises: scale, zero point and the bit that is flipped.
_AS_FLOATS = (1.0, 0, 0)


def with_views(program: Program, inputs: Sequence[str], asks: bool) -> Program:
    """Return ``program`` with convolutions that read ``inputs`` by rows; ``asks``: the caller brings these.

    Raises:
        ExportError: ``asks``, and something else reads the input.
    """
    makers: dict[str, Step | None] = {}
    for step in program.steps:
        makers[step.output] = None if step.output in makers else step
    steps = tuple(_viewing(step, program, makers, inputs, asks) for step in program.steps)
    return replace(program, steps=steps)


def check_asked(program: Program, inputs: Sequence[str]) -> None:
    """Check that no step reads all of an input.

    Raises:
        ExportError: one does; the message names it.
    """
    for step in program.steps:
        for name in set(step.reads) & set(inputs):
            raise ExportError(
                f"node {step.label!r} reads all of input {name!r}; rows can be asked for where "
                "convolutions of an image [1, channels, rows, columns], or of parts of it, read it"
            )


def _viewing(
    step: Step,
    program: Program,
    makers: Mapping[str, Step | None],
    inputs: Sequence[str],
    asks: bool,
) -> Step:
    """Return the convolution ``step`` as one that reads an input by rows, any other as it is."""
    window = window_of(step)
    if window is None or window["batch"] != 1 or step.bands is not None:
        return step
    view = view_of(step, window, program, makers, inputs)
    if view is None or (asks and not has_whole_rows(view, program, window)):
        return step
    if step.kernel != "convolve":
        return _of_bytes(step, view, program, asks)
    return _asking(step, view, program) if asks else _reading(step, view)


def _reading(step: Step, view: View) -> Step:
    """Return ``step`` on the caller's memory."""
    fields = {"line": view.line, "plane": view.channel}
    return with_fields(_with_input(step, Pointer(view.image, view.start * _FLOAT_BYTES)), fields)


def _asking(step: Step, view: View, program: Program) -> Step:
    """Return ``step`` on rows that the caller brings, all channels of one row behind each other."""
    window = window_of(step)
    assert window is not None
    width, channels = window["size_x"], window["channels"]
    strips = (Strip(_FLOAT_BYTES * width * channels, rows_of(window), window["size_y"]),)
    record = _record(view, window, program)
    source = Source(
        "copy_pixels", (Scratch(0, "float32"), record, Band(window["result_y"])), asks=True
    )
    moved = _with_input(step, Scratch(0, "float32"))
    fields = {"line": width * channels, "plane": width, "part": 1}
    bands = Bands(window["result_y"], strips, source)
    return with_fields(replace(moved, bands=bands), fields)


def _of_bytes(step: Step, view: View, program: Program, asks: bool) -> Step:
    """Return ``step`` on rows of bytes, quantised if need be, the channels of a pixel side by side."""
    window = window_of(step)
    assert window is not None
    width, channels = window["size_x"], window["channels"]
    strips: tuple[Strip, ...] = (Strip(width * channels, rows_of(window), window["size_y"]),)
    record, band = _record(view, window, program), Band(window["result_y"])
    dtype, quantises = program.values[view.image].dtype, view.quantised is not None
    item = np.dtype(dtype).itemsize
    if asks:
        strips = (Strip(item * width * channels, once=True), *strips)
        given = (Scratch(0, dtype), Scratch(1, "uint8"), record, band)
        source = Source("quantize_pixels" if quantises else "place_pixels", given, asks=True)
    else:
        image = Pointer(view.image, view.start * item)
        given_rows = (image, Scratch(0, "uint8"), record, band)
        source = Source("quantize_rows" if quantises else "place_rows", given_rows, asks=False)
    moved = _with_input(step, Scratch(len(strips) - 1, "uint8"))
    bands = Bands(window["result_y"], strips, source)
    fields = {"x_pixel": channels, "x_channel": 1, "part": 1}
    return with_fields(replace(moved, bands=bands), fields)


def _with_input(step: Step, read: Argument) -> Step:
    return replace(step, arguments=(read, *step.arguments[1:]))


def _record(view: View, window: Mapping[str, int], program: Program) -> Record:
    """Return ``struct view``."""
    row, column = divmod(view.start, program.values[view.image].shape[-1])
    rows = rows_of(window)
    scale, zero, flip = view.quantised or _AS_FLOATS
    return Record(
        "view",
        {
            "size_y": window["size_y"],
            "size_x": window["size_x"],
            "channels": window["channels"],
            "line": view.line,
            "pixel": view.pixel,
            "channel": view.channel,
            "row": row,
            "column": column,
            "stride": rows.stride,
            "pad": rows.before,
            "span": rows.reach,
            "scale": scale,
            "zero": zero,
            "flip": flip,
        },
    )
