"""Convolutions that take rows of the caller's image as they need them.

What lies between an input and a convolution may be parts of it, other orders of its elements, and one
quantisation. Then each element that the convolution reads is one of the input, in steps that are the same
everywhere: a view. So neither the parts nor the quantised image need memory: a convolution of floats reads
the caller's memory as it lies there, one of bytes has the rows of a band quantised first, and where the
caller brings rows himself, he is asked for those of a band.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from pipeline.export_c.errors import ExportError
from pipeline.export_c.lowering.node import items
from pipeline.export_c.lowering.steps import (
    Argument,
    Band,
    Bands,
    Program,
    Reach,
    Record,
    Scratch,
    Source,
    Step,
    Strip,
    Value,
)
from pipeline.export_c.regions.windows import reach_of, window_of, with_fields

_FLOAT_BYTES = 4
#: What quantises: scale, zero point and the bit that is flipped.
_AS_FLOATS = (1.0, 0, 0)


@dataclass(frozen=True)
class _View:
    """Where the elements of rows, columns and channels lie in ``image``; how they are quantised, if they are."""

    image: str
    start: int
    line: int
    pixel: int
    channel: int
    quantised: tuple[float, int, int] | None


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
                f"node {step.label!r} reads all of input {name!r}; rows can be asked for where convolutions "
                "of an image [1, channels, rows, columns], or of parts of it, read it"
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
    read = step.arguments[0]
    assert isinstance(read, Value)
    found = _traced(read.name, program, makers, inputs)
    view = None if found is None else _view(*found, step, window)
    if view is None or (asks and not _has_whole_rows(view, program, window)):
        return step
    if view.quantised is not None:
        return _of_bytes(step, view, program, asks)
    return _asking(step, view, program) if asks else _reading(step, view)


def _traced(
    name: str, program: Program, makers: Mapping[str, Step | None], inputs: Sequence[str]
) -> tuple[str, NDArray[np.int64], tuple[float, int, int] | None] | None:
    """Return the input that ``name`` is made of, the number there of each element, and its quantisation."""
    if name in inputs:
        return name, np.arange(items(program.values[name].shape)), None
    maker = makers.get(name)
    if maker is None or maker.kernel not in {"copy", "quantize"}:
        return None
    source = maker.arguments[0]
    found = _traced(source.name, program, makers, inputs) if isinstance(source, Value) else None
    if found is None:
        return None
    image, numbers, quantised = found
    if maker.kernel == "copy":
        moved = _moved(numbers, maker, items(program.values[name].shape))
        return None if moved is None else (image, moved, quantised)
    scale, zero, flip = maker.arguments[3:6]
    assert isinstance(scale, float) and isinstance(zero, int) and isinstance(flip, int)
    return (image, numbers, (scale, zero, flip)) if quantised is None else None


def _moved(numbers: NDArray[np.int64], copy: Step, count: int) -> NDArray[np.int64] | None:
    """Return ``numbers`` as ``copy`` leaves them, if it makes all ``count`` elements."""
    fields = next(item for item in copy.arguments if isinstance(item, Record)).fields
    sizes, *strides = (fields[name] for name in ("size", "from", "to"))
    assert isinstance(sizes, tuple)
    if items(sizes) != count:
        return None
    at = np.indices(sizes).reshape(len(sizes), -1)
    read, written = (np.array(stride) @ at for stride in strides)
    made = np.empty(count, np.int64)
    made[written + fields["place"]] = numbers[read + fields["start"]]
    return made


def _view(
    image: str,
    numbers: NDArray[np.int64],
    quantised: tuple[float, int, int] | None,
    step: Step,
    window: Mapping[str, int],
) -> _View | None:
    """Return the elements ``numbers`` of ``image``, which ``step`` reads, as a view, if they are one."""
    size = window["size_y"], window["size_x"], window["channels"]
    if window.get("x_channel") == 1:
        places = numbers.reshape(size)
    else:
        places = numbers.reshape(size[2], *size[:2]).transpose(1, 2, 0)
    if (quantised is None) != (step.kernel == "convolve"):
        return None
    start = int(places[0, 0, 0])
    steps = [
        int(places[tuple(int(axis == other) for other in range(3))]) - start if length > 1 else 1
        for axis, length in enumerate(size)
    ]
    if not np.array_equal(places, start + np.tensordot(steps, np.indices(size), 1)):
        return None
    if quantised is None and steps[1] != 1:
        return None
    return _View(image, start, *steps, quantised)


def _has_whole_rows(view: _View, program: Program, window: Mapping[str, int]) -> bool:
    """Return whether ``view`` is rows and columns of all channels of an image [1, channels, rows, columns]."""
    shape = program.values[view.image].shape
    if len(shape) != 4 or shape[:2] != (1, window["channels"]):
        return False
    strides = view.line, view.pixel, view.channel
    lengths = window["size_y"], window["size_x"], window["channels"]
    wanted = shape[3], 1, shape[2] * shape[3]
    return view.start < shape[2] * shape[3] and all(
        length == 1 or stride == want
        for stride, length, want in zip(strides, lengths, wanted, strict=True)
    )


def _reading(step: Step, view: _View) -> Step:
    """Return ``step`` on the caller's memory."""
    fields = {"line": view.line, "plane": view.channel}
    return with_fields(_with_input(step, Value(view.image, view.start * _FLOAT_BYTES)), fields)


def _asking(step: Step, view: _View, program: Program) -> Step:
    """Return ``step`` on rows that the caller brings, all channels of one row behind each other."""
    window = window_of(step)
    assert window is not None
    width, channels = window["size_x"], window["channels"]
    strips = (Strip(_FLOAT_BYTES * width * channels, reach_of(window)),)
    record = _record(view, window, program)
    source = Source(
        "copy_pixels", (Scratch(0, "float32"), record, Band(window["result_y"])), asks=True
    )
    moved = _with_input(step, Scratch(0, "float32"))
    fields = {"line": width * channels, "plane": width, "part": 1}
    bands = Bands(window["result_y"], strips, source)
    return with_fields(replace(moved, bands=bands), fields)


def _of_bytes(step: Step, view: _View, program: Program, asks: bool) -> Step:
    """Return ``step`` on rows that are quantised before, the channels of a pixel side by side."""
    window = window_of(step)
    assert window is not None
    width, channels = window["size_x"], window["channels"]
    rows = Strip(width * channels, reach_of(window))
    record, band = _record(view, window, program), Band(window["result_y"])
    if asks:
        strips = (Strip(_FLOAT_BYTES * width * channels, once=True), rows)
        given = (Scratch(0, "float32"), Scratch(1, "uint8"), record, band)
        source = Source("quantize_pixels", given, asks=True)
    else:
        strips = (rows,)
        image = Value(view.image, view.start * _FLOAT_BYTES)
        source = Source("quantize_rows", (image, Scratch(0, "uint8"), record, band), asks=False)
    moved = _with_input(step, Scratch(len(strips) - 1, "uint8"))
    bands = Bands(window["result_y"], strips, source)
    fields = {"x_pixel": channels, "x_channel": 1, "part": 1}
    return with_fields(replace(moved, bands=bands), fields)


def _with_input(step: Step, read: Argument) -> Step:
    return replace(step, arguments=(read, *step.arguments[1:]))


def _record(view: _View, window: Mapping[str, int], program: Program) -> Record:
    """Return ``struct view``."""
    row, column = divmod(view.start, program.values[view.image].shape[-1])
    reach: Reach = reach_of(window)
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
            "stride": reach.stride,
            "pad": reach.pad,
            "span": reach.span,
            "scale": scale,
            "zero": zero,
            "flip": flip,
        },
    )
