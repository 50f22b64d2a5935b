"""What a quantised piece computes, as plain values: layers, by the names of its tensors.

A layer reads [1, height, width, channels] and makes the same of filters.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Scaling:
    """Names of the scale and the zero point of some bytes; ``signed``: these are int8."""

    scale: str
    zero: str
    signed: bool


@dataclass(frozen=True, slots=True)
class Window:
    """How a kernel goes over rows, or columns: ``before``, so many of padding come first."""

    kernel: int = 1
    stride: int = 1
    step: int = 1
    before: int = 0
    given: int = 1
    made: int = 1

    def needs(self, first: int, end: int) -> tuple[int, int]:
        """Return the rows, first and end, that rows [first, end) are made of, those of padding left out."""
        low = first * self.stride - self.before
        return max(low, 0), min((end - 1) * self.stride - self.before + self._reach, self.given)

    def most_needed(self, count: int) -> int:
        """Return the most rows that ``count`` rows are made of: those of them that need no padding."""
        return min((count - 1) * self.stride + self._reach, self.given)

    @property
    def _reach(self) -> int:
        return (self.kernel - 1) * self.step + 1


@dataclass(frozen=True, slots=True)
class QuantisedLayer:
    """A convolution of ``channels`` to ``filters``, or of each channel by itself (``depthwise``).

    ``by_inputs``: its weights are [channels, filters], as a matrix product has them.
    """

    weights: str
    bias: str | None
    given: Scaling
    weight: Scaling
    made: Scaling
    channels: int
    filters: int
    rows: Window
    columns: Window
    depthwise: bool = False
    by_inputs: bool = False

    @property
    def macs(self) -> int:
        """Multiplications of one run."""
        inputs = 1 if self.depthwise else self.channels
        pixels = self.rows.made * self.columns.made
        return pixels * self.filters * inputs * self.rows.kernel * self.columns.kernel


@dataclass(frozen=True, slots=True)
class Rectangle:
    """Rows and columns of planes of floats, quantised with ``made`` before the first layer reads them.

    ``planes``: their shape [1, channels, height, width]; it begins at ``first_row`` and ``first_column``.
    """

    planes: tuple[int, ...]
    first_row: int
    first_column: int
    made: Scaling


@dataclass(frozen=True, slots=True)
class Part:
    """One of the tensors that lie one behind the other in the channels that the first layer reads."""

    source: str
    channels: int
    given: Scaling


@dataclass(frozen=True, slots=True)
class Concatenation:
    """QLinearConcat of ``parts``, which gives them all the scale ``made``."""

    parts: tuple[Part, ...]
    made: Scaling


@dataclass(frozen=True, slots=True)
class Sum:
    """QLinearAdd of what the last layer makes and ``other``; ``over``: the former is its second operand."""

    other: str
    over: bool
    first: Scaling
    second: Scaling
    made: Scaling


@dataclass(frozen=True, slots=True)
class Maxima:
    """The largest bytes of windows of what a layer makes."""

    rows: Window
    columns: Window


@dataclass(frozen=True, slots=True)
class QuantisedTask:
    """``layers`` one behind the other on ``source``; they make ``result``. One may be depthwise.

    ``pool``: of a layer alone only maxima are made. ``table``: what each byte of these, or of its result,
    becomes before it is added. ``joined``: what the first layer reads.
    """

    source: str
    result: str
    layers: tuple[QuantisedLayer, ...]
    rectangle: Rectangle | None = None
    addition: Sum | None = None
    pool: Maxima | None = None
    table: str | None = None
    joined: Concatenation | None = None

    @property
    def made_rows(self) -> int:
        """The rows of the result."""
        return self._windows[-1].made

    @property
    def made_columns(self) -> int:
        return (self.layers[-1] if self.pool is None else self.pool).columns.made

    @property
    def _windows(self) -> tuple[Window, ...]:
        """How each step goes over rows."""
        pools = () if self.pool is None else (self.pool.rows,)
        return *(layer.rows for layer in self.layers), *pools

    @property
    def depthwise(self) -> int:
        """The number of the depthwise layer, -1: none."""
        return next((at for at, layer in enumerate(self.layers) if layer.depthwise), -1)

    @property
    def over(self) -> str | None:
        """What the result may lie over: each element of it is read when that of the result is written."""
        return None if self.addition is None or self.depthwise >= 0 else self.addition.other

    def given_rows(self, first: int, end: int) -> tuple[int, int]:
        """Return the rows of ``source`` that rows [first, end) of the result are made of."""
        for window in reversed(self._windows):
            first, end = window.needs(first, end)
        start = 0 if self.rectangle is None else self.rectangle.first_row
        return start + first, start + end

    def most_given_rows(self, count: int) -> int:
        """Return the most rows of ``source`` that ``count`` rows of the result are made of."""
        for window in reversed(self._windows):
            count = window.most_needed(count)
        return count


@dataclass(frozen=True, slots=True)
class QuantisedAverage:
    """The average of each of ``channels`` channels of ``pixels`` pixels of ``source``."""

    source: str
    result: str
    given: Scaling
    made: Scaling
    channels: int
    pixels: int
