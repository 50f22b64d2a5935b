"""Steps that need less memory as one: on rows of an image as they come, on some channels at a time.

What lies between an input and a convolution may be parts of it, other orders of its elements, and one
quantisation. Then each element that the convolution reads is one of the input, in steps that are the same
everywhere: a view. So neither the parts nor the quantised image need memory: a convolution of floats reads
the caller's memory as it lies there, one of bytes has the rows of a band quantised first, and where the
caller brings the rows, it is asked for those of a band.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from models.network.fields import Array
from models.network.operators.movement import Copy, moved
from models.network.operators.reading import Movement
from models.network.windows import Window
from pipeline.export_c.lowering.calls import (
    Argument,
    Band,
    Bands,
    ElementStrides,
    FilterRange,
    Function,
    InputRows,
    KernelStep,
    LoweredLayer,
    RowStrip,
    Scratch,
    StepProgram,
    StructConstant,
    ValuePointer,
    Weight,
    layout_of,
)
from pipeline.export_c.lowering.convolution import struct_of
from pipeline.export_c.network.network import ExportError, Scaled

# Convolutions that take rows of the caller's image as they need them.

_FLOAT_BYTES = 4
#: An input, the number there of each element of what is made of it, and how these were quantised.
_Traced = tuple[str, NDArray[np.int64], Scaled | None]


@dataclass(frozen=True, slots=True)
class View:
    """``channels`` of rows and columns (``size``) as they lie in the input ``image``, from ``start`` on.

    ``quantised``: what they become on their way. ``asked``: the caller brings their rows.
    """

    image: str
    array: Array
    start: int
    layout: ElementStrides
    size: tuple[int, ...]
    channels: int
    quantised: Scaled | None
    asked: bool

    @property
    def of_bytes(self) -> bool:
        """Whether the convolution reads bytes."""
        return self.quantised is not None or self.array.dtype != "float32"

    @property
    def held(self) -> str:
        """The type of what the convolution reads."""
        return "uint8" if self.of_bytes else "float32"

    @property
    def pointer(self) -> ValuePointer:
        return ValuePointer(self.image, self.start * self.array.item_bytes)

    @property
    def has_whole_rows(self) -> bool:
        """Whether it is rows and columns of an image [1, channels, rows, columns]."""
        shape = self.array.shape
        if len(shape) != 4 or shape[:2] != (1, self.channels):
            return False
        line, pixel, channel = self.layout.line, self.layout.pixel, self.layout.channel
        plane = shape[2] * shape[3]
        apart = ((*self.size, self.channels), (line, pixel, channel), (shape[3], 1, plane))
        return self.start < plane and all(
            n == 1 or stride == wanted for n, stride, wanted in zip(*apart, strict=True)
        )

    def bands(self, rows: Window, height: int) -> Bands:
        """Return how ``height`` rows that need ``rows`` of it are computed; the last strip has these."""
        items = math.prod((*self.size[1:], self.channels))
        width = items if self.of_bytes else items * _FLOAT_BYTES
        strips: tuple[RowStrip, ...] = (RowStrip(width, rows, self.size[0]),)
        begin: tuple[Argument, ...] = ()
        if not self.asked:
            begin = (self.pointer,)
        elif self.of_bytes:  # a row as it comes
            begin = (Scratch(0, self.array.dtype),)
            strips = (RowStrip(items * self.array.item_bytes, once=True), *strips)
        verb = "quantize" if self.quantised else "place" if self.of_bytes else "copy"
        kernel = f"{verb}_{'pixels' if self.asked else 'rows'}"
        to = Scratch(len(strips) - 1, self.held)
        source = InputRows(kernel, (*begin, to, self._struct(rows), Band(height)), self.asked)
        return Bands(height, strips, source)

    def _struct(self, rows: Window) -> StructConstant:
        row, column = divmod(self.start, self.array.shape[-1])
        how = self.quantised
        return StructConstant(
            "view",
            {
                "size_y": self.size[0],
                "size_x": self.size[1],
                "channels": self.channels,
                "line": self.layout.line,
                "pixel": self.layout.pixel,
                "channel": self.layout.channel,
                "row": row,
                "column": column,
                "stride": rows.stride,
                "pad": rows.before,
                "span": rows.reach,
                "scale": 1.0 if how is None else how.one,
                "zero": 0 if how is None else how.zero,
                "flip": 0 if how is None else how.flip,
            },
        )


def with_views(
    program: StepProgram, inputs: Sequence[str], outputs: frozenset[str], asks: bool
) -> tuple[StepProgram, dict[str, View]]:
    """Return ``program`` with convolutions that read ``inputs`` by rows, without what is unread then.

    Beside it, by what they make, the views of those whose rows are brought. ``asks``: by the caller.

    Raises:
        ExportError: ``asks``, and a step reads all of an input; the message names it.
    """
    images = _Images(program, inputs)
    views: dict[str, View] = {}
    steps: list[KernelStep] = []
    wanted = set(outputs)
    for step in reversed(program.steps):
        if step.output not in wanted:
            continue
        layer, seen = step.operator, step
        view = images.view(step, layer, asks) if isinstance(layer, LoweredLayer) else None
        if (
            isinstance(layer, LoweredLayer)
            and view is not None
            and (view.has_whole_rows or not asks)
        ):
            seen = _viewing(step, layer, view)
            if seen.bands is not None:
                views[seen.output] = view
        steps.append(seen)
        wanted.update(seen.reads)
    whole = [(step, name) for step in reversed(steps) for name in set(step.reads) & set(inputs)]
    if asks and whole:
        step, name = whole[0]
        raise ExportError(
            f"node {step.label!r} reads all of input {name!r}; rows can be asked for where "
            "convolutions of an image [1, channels, rows, columns], or of parts of it, read it",
            step.label,
        )
    return replace(program, steps=tuple(steps[::-1])), views


def _viewing(step: KernelStep, layer: LoweredLayer, view: View) -> KernelStep:
    """Return ``step``, which is ``layer``, on the caller's memory, or on rows that are brought."""
    if not view.asked and not view.of_bytes:
        return _reading(step, view.pointer, replace(layer, x=view.layout))
    bands, (_, width) = view.bands(layer.rows, layer.plane.result[0]), view.size
    # Of bytes the channels of a pixel lie side by side, of floats those of a row behind each other.
    x = ElementStrides(width * view.channels, 1, width)
    if view.of_bytes:
        x = layout_of(view.size, view.channels, last=True)
    read = Scratch(len(bands.strips) - 1, view.held)
    return _reading(replace(step, bands=bands), read, replace(layer, x=x, in_part=True))


def _reading(step: KernelStep, read: Argument, layer: LoweredLayer) -> KernelStep:
    """Return ``step`` on something else, of which it is the convolution ``layer``."""
    struct = struct_of(layer)
    others = (struct if isinstance(item, StructConstant) else item for item in step.arguments[1:])
    return replace(step, arguments=(read, *others), operator=layer)


class _Images:
    """What is made of the inputs of a program by copies and one quantisation.

    All copies are done on the numbers of elements.
    """

    def __init__(self, program: StepProgram, inputs: Sequence[str]) -> None:
        self._values = program.values
        self._inputs = inputs
        self._makers: dict[str, KernelStep | None] = {}  # None: several make it
        for step in program.steps:
            self._makers[step.output] = None if step.output in self._makers else step

    def view(self, step: KernelStep, layer: LoweredLayer, asked: bool) -> View | None:
        """Return what ``step`` reads, which is ``layer``, as a view of an input; None: it is none."""
        traced = self._traced(step.arguments[0]) if layer.operator.x.shape[0] == 1 else None
        if traced is None:
            return None
        image, numbers, quantised = traced
        (rows, columns), channels = layer.plane.size, layer.channels
        if layer.x.channel == 1:
            places = numbers.reshape(rows, columns, channels)
        else:
            places = numbers.reshape(channels, rows, columns).transpose(1, 2, 0)
        start = int(places[0, 0, 0])
        second = places[1:2, 0, 0], places[0, 1:2, 0], places[0, 0, 1:2]
        steps = [int(place[0]) - start if place.size else 1 for place in second]
        if not np.array_equal(places, start + np.tensordot(steps, np.indices(places.shape), 1)):
            return None
        size, array = (rows, columns), self._values[image]
        view = View(image, array, start, ElementStrides(*steps), size, channels, quantised, asked)
        fits = view.of_bytes or steps[1] == 1  # floats of a row must lie together
        return view if fits and view.of_bytes == (layer.scales is not None) else None

    def _traced(self, read: Argument) -> _Traced | None:
        """Return what ``read`` is made of an input by copies and one quantisation; None: otherwise."""
        if not isinstance(read, ValuePointer):
            return None
        if read.name in self._inputs:
            return read.name, np.arange(math.prod(self._values[read.name].shape)), None
        maker = self._makers.get(read.name)
        if maker is None or not isinstance(maker.operator, Copy | Scaled):
            return None
        traced = self._traced(maker.arguments[0])
        return None if traced is None else _behind(maker.operator, *traced)


def _behind(
    operator: Copy | Scaled, image: str, numbers: NDArray[np.int64], quantised: Scaled | None
) -> _Traced | None:
    """Return the same behind ``operator``, if it is a copy to all elements, or the only quantisation."""
    if isinstance(operator, Scaled):
        return (image, numbers, operator) if quantised is None else None
    if math.prod(operator.sizes) != math.prod(operator.y.shape):
        return None
    (copied,) = moved(Movement(copies=(operator,), ys=(operator.y,)), [numbers])
    return image, copied.reshape(-1), quantised


# Inverted bottlenecks as one step: some of their inner channels at a time, on bands of rows.
#
# A convolution makes many channels, a second one convolves each by itself, a third one of one pixel adds
# them up to few. Each inner channel is made for itself, so a few of them are made on the rows of a band,
# added to the result, and forgotten (seed 004, Section 3.3 and Eq. 3): what lives is the input, the
# result and a few rows, however many inner channels there are. On bytes the sums are 32-bit integers, of
# a band; they are exact, so the bits are those of the three convolutions. Floats are added in another
# order than whole.

#: Inner channels that bytes are computed of side by side.
_TOGETHER = 8
_ITEM = 4


@dataclass(frozen=True)
class _Parts:
    """Three steps and the convolutions they are: many channels, each by itself, their sums."""

    steps: Sequence[KernelStep]
    wide: LoweredLayer
    thin: LoweredLayer
    narrow: LoweredLayer

    @property
    def of_bytes(self) -> bool:
        return self.narrow.scales is not None

    @property
    def together(self) -> int:
        """Inner channels that are made side by side."""
        return min(self.narrow.channels, _TOGETHER) if self.of_bytes else 1


def with_bottlenecks(
    program: StepProgram, outputs: frozenset[str], views: Mapping[str, View]
) -> StepProgram:
    """Return ``program`` with each bottleneck as one step, where that takes less memory.

    ``outputs``: values that the caller reads. ``views``: of the caller's images that convolutions read by
    rows.
    """
    readers = Counter(name for step in program.steps for name in step.reads)
    makers = {step.output: step for step in program.steps}
    gone: set[str] = set()
    steps = []
    for step in program.steps:
        parts = _parts_of(step, makers, readers, outputs)
        if parts is None or not _pay(parts, program):
            steps.append(step)
            continue
        gone.update(part.output for part in parts.steps[:2])
        del makers[step.output]  # the next one may begin with what is now part of this one
        steps.append(_as_one(parts, views.get(parts.steps[0].output)))
    return replace(program, steps=tuple(step for step in steps if step.output not in gone))


def _parts_of(
    last: KernelStep,
    makers: Mapping[str, KernelStep],
    readers: Counter[str],
    outputs: frozenset[str],
) -> _Parts | None:
    """Return the bottleneck that ``last`` ends; ``readers``: how many steps read each value."""
    steps = [last]
    while len(steps) < 3:
        read = steps[0].arguments[0] if steps[0].arguments else None
        maker = makers.get(read.name) if isinstance(read, ValuePointer) else None
        if maker is None or maker.kernel != last.kernel or maker.output in outputs:
            return None
        if readers[maker.output] != 1:
            return None
        steps.insert(0, maker)
    layers = [step.operator for step in steps if isinstance(step.operator, LoweredLayer)]
    added = any(step.after is not None and step.after.addend is not None for step in steps[:2])
    if len(layers) < 3 or added or not _fit(*layers):
        return None
    return _Parts(steps, *layers)


def _fit(wide: LoweredLayer, thin: LoweredLayer, narrow: LoweredLayer) -> bool:
    """Return whether channels inside are made for themselves, and lie as the kernels take them."""
    layers, inner = (wide, thin, narrow), wide.operator.filters
    return (
        all(layer.operator.x.shape[0] == 1 for layer in layers)
        and all(layer.scales is None or layer.y.channel == 1 for layer in layers)
        and wide.operator.groups == narrow.operator.groups == 1
        and {thin.channels, thin.operator.filters, thin.operator.groups} == {inner}
        and narrow.channels == inner
        and narrow.operator.is_pointwise
        and wide.plane.result == thin.plane.size
        and thin.plane.result == narrow.plane.size
    )


def _pay(parts: _Parts, program: StepProgram) -> bool:
    """Return whether they need less memory as one step: two tensors at once are less."""
    read = parts.steps[0].arguments[0]
    names = [read.name] if isinstance(read, ValuePointer) else []
    names += [step.output for step in parts.steps]
    sizes = [program.values[name].n_bytes for name in names]
    ends = sizes[-1] + (sizes[0] if len(sizes) > 3 else 0)
    return ends < max(map(sum, pairwise(sizes)))


def _as_one(parts: _Parts, view: View | None) -> KernelStep:
    """Return the step of all parts; ``view``: the rows that the first one reads, if they are brought."""
    wide, thin, last = parts.wide, parts.thin, parts.steps[2]
    height = thin.plane.result[0]
    bands = Bands(height) if view is None else view.bands(wide.rows.then(thin.rows), height)
    strips = _strips(parts)
    scratch = [Scratch(at, kind) for at, (kind, _) in enumerate(strips, len(bands.strips))]
    # A row for each inner channel: what makes it, its own kernel, what it gives to each filter.
    rows = [*_by_channel(wide), *_by_channel(thin), _by_channel(parts.narrow)[-1].T]
    functions = [
        Function() if step.after is None else step.after.function for step in parts.steps[:2]
    ]
    arguments: list[Argument] = [
        parts.steps[0].arguments[0],
        Weight(np.ascontiguousarray(np.concatenate(rows, 1)), rows=True),
        *last.arguments[2:-3],  # what is added to its sums, what they become, and where
        *scratch,
        *map(struct_of, _inside(parts)),
        FilterRange(parts.narrow.channels),
        Band(height),
        *([] if parts.of_bytes else functions),
    ]
    return replace(
        last,
        kernel="bottleneck_of_bytes" if parts.of_bytes else "bottleneck",
        arguments=tuple(arguments),
        bands=replace(bands, strips=(*bands.strips, *(strip for _, strip in strips))),
        operator=None,
    )


def _strips(parts: _Parts) -> list[tuple[str, RowStrip]]:
    """Return the scratch, and of which type it is: of bytes sums; inner channels before and behind."""
    (height, width), (_, result) = parts.thin.plane.size, parts.thin.plane.result
    kind, item = ("uint8", parts.together) if parts.of_bytes else ("float32", _ITEM)
    sums = ("int32", RowStrip(_ITEM * parts.narrow.operator.filters * result))
    before = (kind, RowStrip(item * width, parts.thin.rows, height))
    behind = (kind, RowStrip(item * result))
    return [sums, before, behind] if parts.of_bytes else [before, behind]


def _by_channel(layer: LoweredLayer) -> list[NDArray[Any]]:
    """Return the bias, of bytes a factor, and the weights, with a row for each filter; of bytes as such."""
    filters = len(layer.weight)
    bias = np.zeros(filters) if layer.bias is None else layer.bias
    own = layer.weight.reshape(filters, -1)
    if layer.factors is None:
        return [bias.astype(np.float32).reshape(filters, 1), own]
    words = bias.astype("<i4"), layer.factors.astype("<f4")
    return [*(word.reshape(filters, 1).view(np.int8) for word in words), own]


def _inside(parts: _Parts) -> list[LoweredLayer]:
    """Return the convolutions with as many inner channels beside each other as are made together."""
    wide, thin, narrow = parts.wide, parts.thin, parts.narrow
    operator = thin.operator
    x, y = (value.shaped((1, 1, *value.shape[2:])) for value in (operator.x, operator.y))
    weight = operator.weight.shaped((1, *operator.weight.shape[1:]))
    own = replace(thin, operator=replace(operator, x=x, y=y, weight=weight, groups=1))
    beside = {"pixel": parts.together}
    return [
        replace(wide, y=replace(wide.y, **beside)),
        replace(own, x=replace(thin.x, **beside), y=replace(thin.y, **beside)),
        replace(narrow, x=replace(narrow.x, **beside)),
    ]
