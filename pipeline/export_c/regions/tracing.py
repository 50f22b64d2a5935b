"""Where the elements that a convolution reads lie in an image of the caller's.

Copies between them may take parts of it and put its elements in another order, and one step may quantise
them. All copies are done on the numbers of elements; what comes out is a view, if rows, columns and
channels are each as far apart everywhere.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pipeline.export_c.lowering.steps import Pointer, Program, Record, Step


@dataclass(frozen=True)
class View:
    """Where rows, columns and channels lie in ``image``, and how they are quantised, if they are."""

    image: str
    start: int
    line: int
    pixel: int
    channel: int
    quantised: tuple[float, int, int] | None


def view_of(
    step: Step,
    window: Mapping[str, int],
    program: Program,
    makers: Mapping[str, Step | None],
    inputs: Sequence[str],
) -> View | None:
    """Return what the convolution ``step`` reads as a view of one of ``inputs``, None: it is none.

    ``makers``: the step that makes each value, None: several do.
    """
    read = step.arguments[0]
    found = _traced(read.name, program, makers, inputs) if isinstance(read, Pointer) else None
    if found is None:
        return None
    image, _, quantised = found
    becomes_bytes = quantised is not None or program.values[image].dtype != "float32"
    return _view(*found, step, window) if becomes_bytes == (step.kernel != "convolve") else None


def _traced(
    name: str, program: Program, makers: Mapping[str, Step | None], inputs: Sequence[str]
) -> tuple[str, NDArray[np.int64], tuple[float, int, int] | None] | None:
    """Return the input that ``name`` is made of, the number there of each element, and its quantisation."""
    if name in inputs:
        return name, np.arange(math.prod(program.values[name].shape)), None
    maker = makers.get(name)
    if maker is None or maker.kernel not in {"copy", "quantize"}:
        return None
    source = maker.arguments[0]
    found = _traced(source.name, program, makers, inputs) if isinstance(source, Pointer) else None
    if found is None:
        return None
    image, numbers, quantised = found
    if maker.kernel == "copy":
        moved = _moved(numbers, maker, math.prod(program.values[name].shape))
        return None if moved is None else (image, moved, quantised)
    scale, zero, flip = maker.arguments[3:6]
    assert isinstance(scale, float)
    assert isinstance(zero, int)
    assert isinstance(flip, int)
    return (image, numbers, (scale, zero, flip)) if quantised is None else None


def _moved(numbers: NDArray[np.int64], copy: Step, count: int) -> NDArray[np.int64] | None:
    """Return ``numbers`` as ``copy`` leaves them, if it makes all ``count`` elements."""
    fields = next(item for item in copy.arguments if isinstance(item, Record)).fields
    sizes, *strides = (fields[name] for name in ("size", "from", "to"))
    assert isinstance(sizes, tuple)
    if math.prod(sizes) != count:
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
) -> View | None:
    """Return the elements ``numbers`` of ``image``, which ``step`` reads, as a view, if they are one."""
    size = window["size_y"], window["size_x"], window["channels"]
    if window.get("x_channel") == 1:
        places = numbers.reshape(size)
    else:
        places = numbers.reshape(size[2], *size[:2]).transpose(1, 2, 0)
    start = int(places[0, 0, 0])
    steps = [
        int(places[tuple(int(axis == other) for other in range(3))]) - start if length > 1 else 1
        for axis, length in enumerate(size)
    ]
    if not np.array_equal(places, start + np.tensordot(steps, np.indices(size), 1)):
        return None
    if step.kernel == "convolve" and steps[1] != 1:
        return None
    line, pixel, channel = steps
    return View(image, start, line, pixel, channel, quantised)


def has_whole_rows(view: View, program: Program, window: Mapping[str, int]) -> bool:
    """Return whether ``view`` is rows and columns of an image [1, channels, rows, columns]."""
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
