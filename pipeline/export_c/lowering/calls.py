"""What C runs: calls of functions on values, weights and numbers. A step makes one value.

Everything here is a fact that the writers turn into text.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from models.network.fields import Array
from models.network.operators.movement import Copy
from models.network.operators.reading import Convolution
from models.network.windows import Window, Windows
from pipeline.export_c.network.network import Scaled

# Convolutions by constant weights: what regions ask of one, and change in it.
#
# The struct and the call that it becomes are written in lowering/convolution.py.


@dataclass(frozen=True, slots=True)
class ElementStrides:
    """How many elements it is from one row, one pixel and one channel to the next."""

    line: int
    pixel: int
    channel: int


def layout_of(size: tuple[int, ...], channels: int, *, last: bool = False) -> ElementStrides:
    """Return how ``size`` rows and columns lie, with channels last or in front."""
    rows, columns = size
    return (
        ElementStrides(columns * channels, channels, 1)
        if last
        else ElementStrides(columns, 1, rows * columns)
    )


@dataclass(frozen=True, eq=False, kw_only=True)
class LoweredLayer:
    """``operator``, whose shapes have channels in front, and what its kernel is given.

    ``weight`` has a row for each filter. ``x``, ``y``: how that lies which it reads and makes.
    ``in_part``: only those rows are there that a band needs. ``scales``: of bytes, those of ``x``, weights
    and ``y``; None: they are floats.
    """

    operator: Convolution
    weight: NDArray[Any]
    bias: NDArray[Any] | None
    x: ElementStrides
    y: ElementStrides
    in_part: bool = False
    scales: tuple[Scaled, Scaled, Scaled] | None = None

    @property
    def kernel(self) -> str:
        return "convolve" if self.scales is None else "convolve_bytes"

    @property
    def plane(self) -> Windows:
        return self.operator.windows.on_a_plane

    @property
    def rows(self) -> Window:
        return self.plane.axes[0]

    @property
    def channels(self) -> int:
        return self.operator.x.shape[1]

    @property
    def factors(self) -> NDArray[np.float32] | None:
        """Of bytes: what the sums of each filter are multiplied by."""
        if self.scales is None:
            return None
        given, weight, made = self.scales
        # In this order, as ONNX Runtime does: each operation rounds.
        factor = np.float32(given.one) * weight.scale.reshape(-1) / np.float32(made.one)
        return np.ascontiguousarray(np.broadcast_to(factor, len(self.weight)), np.float32)


#: The function of sums: what becomes part of a convolution.
ADD = "add"
_ALIGNED = 8  # strips, to bytes


@dataclass(frozen=True, slots=True)
class ValuePointer:
    """A pointer to a value that the step reads or makes, ``offset`` bytes behind its begin."""

    name: str
    offset: int = 0


@dataclass(frozen=True, eq=False, slots=True)
class Weight:
    """A pointer to ``array``; by ``rows``, to those of the filters that a call computes."""

    array: NDArray[Any]
    rows: bool = False


@dataclass(frozen=True, slots=True)
class StructConstant:
    """A pointer to a constant struct ``kind`` with ``fields`` in their order; numbers or tuples of them."""

    kind: str
    fields: Mapping[str, int | float | tuple[int, ...]] = field(hash=False)


@dataclass(frozen=True, slots=True)
class Function:
    """A function, "": none, and what a kernel is given for it: two numbers with a function of one."""

    name: str = ""
    numbers: tuple[float, ...] = (0.0, 0.0)


@dataclass(frozen=True, slots=True)
class FilterRange:
    """The first of the ``total`` filters that a call computes, and how many they are."""

    total: int


@dataclass(frozen=True, slots=True)
class Band:
    """The first of the ``total`` rows of the result that a call computes, and how many they are."""

    total: int


@dataclass(frozen=True, slots=True)
class Scratch:
    """A pointer to a strip of the step's scratch, as numbers of type ``dtype``."""

    strip: int
    dtype: str


#: None is a pointer to nothing.
Argument = (
    ValuePointer
    | Weight
    | StructConstant
    | Function
    | FilterRange
    | Band
    | Scratch
    | int
    | float
    | None
)


@dataclass(frozen=True, slots=True)
class InputRows:
    """A call that puts the rows of an input that a band needs where the step reads them.

    ``asks``: it asks the caller for them, which may fail.
    """

    kernel: str
    arguments: tuple[Argument, ...]
    asks: bool


@dataclass(frozen=True, slots=True)
class RowStrip:
    """Memory of some rows of ``row_bytes``: those of ``size`` rows that ``window`` says.

    No window: as many as of the result; ``once``: one, however many are computed.
    """

    row_bytes: int
    window: Window | None = None
    size: int = 0
    once: bool = False

    def n_bytes(self, rows: int) -> int:
        """Return its size for ``rows`` rows of the result."""
        if self.once:
            return self.row_bytes
        if self.window is None:
            return self.row_bytes * rows
        return self.row_bytes * self.window.most_needed(rows, self.size)


@dataclass(frozen=True, slots=True)
class Bands:
    """A step that can compute its ``height`` rows some at a time, with ``strips`` as scratch.

    ``source``: called first for each band. ``rows``: at a time, as it was decided.
    """

    height: int
    strips: tuple[RowStrip, ...] = ()
    source: InputRows | None = None
    rows: int = 1

    def offsets(self) -> list[int]:
        """Return where each strip begins in the scratch; last, where that ends."""
        ends = [0]
        for strip in self.strips:
            ends.append(-(-(ends[-1] + strip.n_bytes(self.rows)) // _ALIGNED) * _ALIGNED)
        return ends

    @property
    def n_bytes(self) -> int:
        """The size of the scratch."""
        return self.offsets()[-1]


@dataclass(frozen=True, slots=True)
class After:
    """What a kernel does to the numbers that it has made: add those of a value, call a function.

    ``adds``: whether it can add one.
    """

    adds: bool = False
    addend: str | None = None
    function: Function = Function()

    @property
    def arguments(self) -> tuple[Argument, ...]:
        """What the kernel is given for it, last."""
        added: tuple[Argument, ...] = ()
        if self.adds:
            added = (None if self.addend is None else ValuePointer(self.addend),)
        return (*added, self.function)


@dataclass(frozen=True, slots=True)
class Same:
    """``n_bytes`` at ``source_offset`` of the value ``source`` are those at ``offset`` of the output.

    Where both are the same memory there is nothing to do.
    """

    source: str
    source_offset: int
    offset: int
    n_bytes: int


@dataclass(frozen=True, slots=True)
class KernelStep:
    """A call of ``kernel`` that makes ``output``, or a part of it.

    ``in_place``: values whose memory the output may be: each of their elements is read before the element
    at its place is made, and, unless ``pointwise``, nothing else that the step reads may lie there.
    ``same``: what it does, where that is only to copy. ``after``: what it can do with its result.
    ``bands``: how it computes some rows at a time, where it can. ``operator``: what it is a call of, where
    regions ask that: a copy, a quantisation (how bytes stand for numbers behind it), a convolution.
    """

    label: str
    kernel: str
    arguments: tuple[Argument, ...]
    output: str
    in_place: tuple[str, ...] = ()
    pointwise: bool = False
    same: Same | None = None
    after: After | None = None
    bands: Bands | None = None
    operator: Copy | Scaled | LoweredLayer | None = None

    @property
    def all_arguments(self) -> tuple[Argument, ...]:
        """The arguments of the call, with those of what comes after."""
        return (*self.arguments, *(self.after.arguments if self.after else ()))

    @property
    def reads(self) -> tuple[str, ...]:
        """The values that it reads."""
        source = self.bands.source if self.bands is not None else None
        arguments = (*self.all_arguments, *(source.arguments if source is not None else ()))
        values = (item.name for item in arguments if isinstance(item, ValuePointer))
        return tuple(dict.fromkeys(name for name in values if name != self.output))

    @property
    def rows(self) -> int | None:
        """How many filters it computes, where it can do so in several calls."""
        return next((item.total for item in self.arguments if isinstance(item, FilterRange)), None)

    @property
    def weights(self) -> tuple[Weight, ...]:
        return tuple(item for item in self.arguments if isinstance(item, Weight))


@dataclass(frozen=True)
class StepProgram:
    """The steps in their order, and the dtype and shape of every value."""

    steps: Sequence[KernelStep]
    values: Mapping[str, Array]
