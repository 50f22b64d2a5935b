"""Quantised layers that are computed as one: what a piece of bytes makes, as plain values.

Tensors are numbered: the inputs of a piece, then the constants inside of it. A layer reads [1, height,
width, channels] and makes the same of filters, of int8 where they are ``signed`` and else of uint8. What is
here has kernels of integers (pipeline/devices/integers); whatever else is quantised is no task.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated

import numpy as np

from models.network.fields import Array, Count
from models.network.windows import Window, Windows
from models.records import SHARED, PositiveInt, Record

#: Layers of a task, and tensors that lie one behind the other in what the first of them reads.
MAX_LAYERS, MAX_CONCATENATED = 3, 8
#: Kernels count pixels, channels and padding with 32 bits, and so what is made of two of them.
MOST = 1 << 20
#: How many bytes there are: a table has a number for each.
BYTES = 256


@dataclass(frozen=True, slots=True)
class TaskTensor:
    """That ``count`` numbers of ``dtype`` are read as tensor ``number``: ``what`` of a task.

    ``passes``: it is an input of the piece.
    """

    what: str
    number: int
    dtype: str
    count: int
    passes: bool = False

    @property
    def n_bytes(self) -> int:
        return self.count * np.dtype(self.dtype).itemsize


@dataclass(frozen=True, slots=True, kw_only=True)
class Scaling(Record):
    """Numbers of the scale and the zero point of some bytes."""

    scale: Count
    zero: Count
    signed: bool = False

    @property
    def dtype(self) -> str:
        """Of the bytes."""
        return "int8" if self.signed else "uint8"

    def tensors(self, what: str, scales: int = 1, zeros: int = 1) -> Iterator[TaskTensor]:
        yield TaskTensor(f"{what}.scale", self.scale, "float32", scales)
        yield TaskTensor(f"{what}.zero", self.zero, self.dtype, zeros)


IsScaling = Annotated[Scaling, SHARED]
IsWindows = Annotated[Windows, SHARED]


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantisedLayer(Record):
    """A convolution of ``channels`` to ``filters``, or of each channel by itself (``depthwise``).

    ``by_inputs``: its weights are [channels, filters], as a matrix product has them. ``scales_apart``,
    ``zeros_apart``: there is a scale, a zero point of weights, for each filter. ``windows``: over rows and
    columns.
    """

    weights: Count
    bias: Count | None = None
    given: IsScaling
    weight: IsScaling
    made: IsScaling
    channels: PositiveInt
    filters: PositiveInt
    windows: IsWindows
    depthwise: bool = False
    by_inputs: bool = False
    scales_apart: bool = False
    zeros_apart: bool = False

    @property
    def is_pointwise(self) -> bool:
        """Whether each pixel is made of the one at its place."""
        ones = {*self.windows.kernel, *self.windows.strides}
        return ones == {1} and self.windows.size == self.windows.result

    def tensors(self, what: str) -> Iterator[TaskTensor]:
        """Yield what it reads, but not the bytes that pass."""
        depth = 1 if self.depthwise else self.channels
        count = self.filters * depth * math.prod(self.windows.kernel)
        yield TaskTensor(f"{what}.weights", self.weights, self.weight.dtype, count)
        if self.bias is not None:
            yield TaskTensor(f"{what}.bias", self.bias, "int32", self.filters)
        yield from self.given.tensors(f"{what}.given")
        scales, zeros = (
            self.filters if apart else 1 for apart in (self.scales_apart, self.zeros_apart)
        )
        yield from self.weight.tensors(f"{what}.weight", scales, zeros)
        yield from self.made.tensors(f"{what}.made")

    def fault(self) -> str:
        """Return why no kernel computes it; empty: there is one."""
        if not 0 < min(self.channels, self.filters) <= max(self.channels, self.filters) <= MOST:
            return f"{self.channels} channels to {self.filters}, of {MOST} at most"
        if self.depthwise and not 1 < self.filters == self.channels:
            return f"depthwise, {self.channels} channels to {self.filters}"
        if self.by_inputs and (self.depthwise or not self.is_pointwise):
            return "weights by inputs with a window"
        return windows_fault(self.windows)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rectangle(Record):
    """Where in planes of floats the rectangle begins that is quantised with ``made`` at first."""

    first_row: Count = 0
    first_column: Count = 0
    made: IsScaling


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinedTensor(Record):
    """One of the tensors that lie one behind the other in the channels that the first layer reads."""

    source: Count
    channels: PositiveInt
    given: IsScaling


@dataclass(frozen=True, slots=True, kw_only=True)
class Concatenation(Record):
    """``parts`` one behind the other, all of them in the scale ``made``."""

    parts: tuple[Annotated[JoinedTensor, SHARED], ...]
    made: IsScaling


@dataclass(frozen=True, slots=True, kw_only=True)
class Sum(Record):
    """What the last layer makes plus ``other``; ``over``: the former is its second operand."""

    other: Count
    over: bool = False
    first: IsScaling
    second: IsScaling
    made: IsScaling

    @property
    def own(self) -> Scaling:
        """Of what the last layer makes."""
        return self.second if self.over else self.first

    @property
    def others(self) -> Scaling:
        return self.first if self.over else self.second


@dataclass(frozen=True, slots=True, kw_only=True)
class ByteTable(Record):
    """What each byte becomes: ``values``, ``signed`` ones."""

    values: Count
    signed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantisedTask(Record):
    """``layers`` one behind the other on ``source``; one may be depthwise.

    ``rectangle``, ``joined``: what the first layer reads, where that is not ``source`` as it lies.
    ``pool``: of a layer alone only the largest bytes of windows are made. ``table``: what bytes become
    before something is added. ``constants``: where each begins in the serialised piece.
    """

    source: Count = 0
    layers: tuple[Annotated[QuantisedLayer, SHARED], ...]
    rectangle: Rectangle | None = None
    joined: Concatenation | None = None
    pool: IsWindows | None = None
    table: ByteTable | None = None
    addition: Sum | None = None
    constants: tuple[Count, ...] = ()

    @property
    def windows(self) -> tuple[Windows, ...]:
        """How each step goes over what it reads."""
        pools = () if self.pool is None else (self.pool,)
        return *(layer.windows for layer in self.layers), *pools

    @property
    def result(self) -> Array:
        """What is made."""
        last = self.layers[-1]
        signed = last.made.signed
        if self.table is not None:
            signed = self.table.signed
        if self.addition is not None:
            signed = self.addition.made.signed
        shape = (1, *self.windows[-1].result, last.filters)
        return Array(dtype="int8" if signed else "uint8", shape=shape)

    @property
    def depthwise(self) -> int:
        """The number of the depthwise layer, -1: none."""
        return next((at for at, layer in enumerate(self.layers) if layer.depthwise), -1)

    @property
    def over(self) -> int | None:
        """What the result may lie over: each element of it is read when that of the result is written."""
        if self.addition is None or self.depthwise >= 0:
            return None
        parts = () if self.joined is None else self.joined.parts
        read = {self.source, *(part.source for part in parts)}
        return None if self.addition.other in read else self.addition.other

    def given_rows(self, first: int, end: int) -> tuple[int, int]:
        """Return the rows of ``source`` that rows [first, end) of the result are made of."""
        for windows in reversed(self.windows):
            first, end = windows.axes[0].within(first, end, windows.size[0])
        start = 0 if self.rectangle is None else self.rectangle.first_row
        return start + first, start + end

    def most_given_rows(self, count: int) -> int:
        """Return the most rows of ``source`` that ``count`` rows of the result are made of."""
        for windows in reversed(self.windows):
            count = windows.axes[0].most_needed(count, windows.size[0])
        return count

    def tensors(self) -> Iterator[TaskTensor]:
        """Yield what it reads; planes of floats are left out."""
        first = self.layers[0]
        pixels = math.prod(first.windows.size)
        if self.joined is not None:
            for at, part in enumerate(self.joined.parts):
                what, count = f"joined.parts.{at}", pixels * part.channels
                yield TaskTensor(
                    f"{what}.source", part.source, part.given.dtype, count, passes=True
                )
                yield from part.given.tensors(f"{what}.given")
            yield from self.joined.made.tensors("joined.made")
        elif self.rectangle is not None:
            yield from self.rectangle.made.tensors("rectangle.made")
        else:
            count = pixels * first.channels
            yield TaskTensor("source", self.source, first.given.dtype, count, passes=True)
        for at, layer in enumerate(self.layers):
            yield from layer.tensors(f"layers.{at}")
        if self.table is not None:
            dtype = "int8" if self.table.signed else "uint8"
            yield TaskTensor("table.values", self.table.values, dtype, BYTES)
        if self.addition is not None:
            of, count = self.addition, math.prod(self.result.shape)
            yield TaskTensor("addition.other", of.other, of.others.dtype, count, passes=True)
            for name in ("first", "second", "made"):
                yield from getattr(of, name).tensors(f"addition.{name}")

    def fault(self) -> str:
        """Return why no kernel computes it; empty: there is one."""
        if not 0 < len(self.layers) <= MAX_LAYERS:
            return f"layers: {len(self.layers)}, of {MAX_LAYERS} at most"
        for at, layer in enumerate(self.layers):
            if fault := layer.fault():
                return f"layers.{at}: {fault}"
        for at, (one, other) in enumerate(pairwise(self.layers)):
            if (one.windows.result, one.filters) != (other.windows.size, other.channels):
                return f"layers.{at + 1}: it does not read what the one before makes"
        return self._together() or self._before() or self._pooled() or self._signs()

    def _together(self) -> str:
        """Return why its layers are not computed as one."""
        depthwise = sum(layer.depthwise for layer in self.layers)
        at = max(self.depthwise, 0)
        behind = self.layers[at + 1 :]
        if depthwise > 1 or at > 1 or len(behind) > depthwise:
            return "layers: not one, nor around a depthwise one"
        if not all(layer.is_pointwise and not layer.by_inputs for layer in behind):
            return f"layers.{at + 1}: a window behind a depthwise layer"
        if depthwise and not behind and self.addition is not None:
            return "addition: behind a depthwise layer"
        if depthwise and (self.joined or self.pool or self.table):
            return "layers: a depthwise one with what only a layer alone has"
        return ""

    def _before(self) -> str:
        """Return why the first layer cannot read so."""
        if self.rectangle is not None and self.source:
            return "source: a request gives the first input, whose rectangle it is"
        if self.joined is None:
            return ""
        parts, channels = self.joined.parts, self.layers[0].channels
        if self.rectangle is not None or not 0 < len(parts) <= MAX_CONCATENATED:
            return f"joined: {len(parts)} parts, of {MAX_CONCATENATED} at most, and no rectangle"
        if sum(part.channels for part in parts) != channels:
            return f"joined: not {channels} channels"
        return "" if parts[0].source == self.source else "source: not the first part"

    def _pooled(self) -> str:
        if self.pool is None:
            return ""
        if self.addition is not None or self.pool.size != self.layers[-1].windows.result:
            return "pool: of something else, or with a sum"
        pads = (*self.pool.before, *self.pool.behind)
        if set(self.pool.dilations) != {1} or max(pads, default=0) >= min(self.pool.kernel):
            return "pool: a window that may have no pixel"
        fault = windows_fault(self.pool)
        return f"pool: {fault}" if fault else ""

    def _signs(self) -> str:
        """Return where bytes are signed for their maker and unsigned for their reader, or the reverse."""
        before = self.rectangle or self.joined
        kinds = [before.made.signed] if before else [self.layers[0].given.signed]
        for layer in self.layers:
            kinds += (layer.given.signed, layer.made.signed)
        if self.table is not None:
            kinds[-1] = self.table.signed
        if self.addition is not None:
            kinds.append(self.addition.own.signed)
        agree = all(one == other for one, other in zip(kinds[::2], kinds[1::2], strict=False))
        return "" if agree else "bytes that are signed where they are made or read, not in both"


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantisedAverage(Record):
    """The average of ``channels`` channels of ``pixels`` pixels of ``source``; see QuantisedTask."""

    source: Count = 0
    given: IsScaling
    made: IsScaling
    channels: PositiveInt
    pixels: PositiveInt
    constants: tuple[Count, ...] = ()

    @property
    def result(self) -> Array:
        """What is made."""
        return Array(dtype=self.made.dtype, shape=(1, 1, 1, self.channels))

    @property
    def over(self) -> None:
        """What the result may lie over: nothing."""
        return

    def tensors(self) -> Iterator[TaskTensor]:
        """Yield what it reads."""
        count = self.pixels * self.channels
        yield TaskTensor("source", self.source, self.given.dtype, count, passes=True)
        yield from self.given.tensors("given")
        yield from self.made.tensors("made")

    def fault(self) -> str:
        """Return why no kernel computes it; empty: there is one."""
        most = max(self.channels, self.pixels)
        return f"{most} channels or pixels, of {MOST} at most" if most > MOST else ""


Quantised = QuantisedTask | QuantisedAverage


def windows_fault(windows: Windows) -> str:
    """Return why no kernel goes over an image so; empty: some do."""
    if {len(of) for of in (windows.axes, windows.size, windows.result, windows.beyond)} != {2}:
        return "windows not over rows and columns"
    for axis, size in zip(windows.axes, windows.size, strict=True):
        if not _is_sound(axis, size):
            return f"a window of {axis.reach} on {size}"
    made = tuple(axis.made(size) for axis, size in zip(windows.axes, windows.size, strict=True))
    if windows.result != made or min(made) < 1 or any(windows.beyond):
        return f"windows that make {list(windows.result)}, not {list(made)}"
    return ""


def _is_sound(axis: Window, size: int) -> bool:
    positive = (axis.kernel, axis.stride, axis.dilation, size)
    least = min(*positive, axis.before + 1, axis.behind + 1)
    most = max(*positive, axis.before, axis.behind, axis.reach)
    return axis.factor == 1 and least > 0 and most <= MOST
