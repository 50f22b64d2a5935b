"""Parts of a network that can run on some rows or inner channels at a time (docs/explanation/rows.md)."""

from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np
from numpy.typing import NDArray

from models.network.fields import Array, Count, Name, Shape
from models.network.windows import SAME, Window
from models.packs.records.pieces import Elementwise, Operand, Operands, Unrolled
from models.records import SHARED, PositiveInt, Record

#: What memory holds around a value where windows reach over its border: "edge" is the first or the last row
#: again, of tiles also column.
Outside = Literal["zero", "lowest", "edge"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RowPart(Record):
    """``planes`` planes of a row value, from ``first_plane`` on."""

    row_value: Count
    first_plane: Count = 0
    planes: PositiveInt


@dataclass(frozen=True, slots=True, kw_only=True)
class RowValue(Array):
    """A value as rows: ``planes`` arrays of [rows, bytes of a row] one behind the other.

    ``shape``: of the whole, [1, channels, height, width]. ``value``: where it lies when it is whole. An
    operator makes it; with ``parts``, none does: it is planes of other values one behind the other. Then
    the pieces [first_piece, end_piece) copy them, none where the parts lie there already.
    """

    name: Name
    value: Count
    planes: PositiveInt
    parts: tuple[RowPart, ...] = ()
    first_piece: Count = 0
    end_piece: Count = 0

    @property
    def height(self) -> int:
        return self.shape[2]

    @property
    def row_bytes(self) -> int:
        """Bytes of one row of one plane."""
        return self.n_bytes // (self.planes * self.height)


@dataclass(frozen=True, slots=True, kw_only=True)
class RowInput(Record):
    """A row value and what an operator needs of it: rows through ``window``.

    ``fill``: what lies outside of the value. Padding behind is what the last window reads there; where
    rows are left over it is negative.
    """

    row_value: Count
    window: Annotated[Window, SHARED] = SAME
    fill: Outside = "zero"


@dataclass(frozen=True, slots=True, kw_only=True)
class UnrolledRows(Record):
    """What a plain convolution unrolls on rows (models/packs/records/row_parts.py).

    ``pixel_bytes`` for each pixel that it makes, where it makes fewer than ``filters`` at once; else a
    segment for each of up to ``segments`` threads.
    """

    pixel_bytes: PositiveInt
    filters: PositiveInt
    segments: PositiveInt


@dataclass(frozen=True, slots=True, kw_only=True)
class RowOperator(Record):
    """An operator that makes any rows of ``output`` from rows of ``inputs`` and all of ``weights``.

    ``graph`` takes them in this order. It belongs to the pieces [first_piece, end_piece), which make the
    whole, ``exact``: with the same bits; else within 1e-6 of its largest number. ``in_place``: an input
    whose memory the output may be. ``elementwise``: what it computes of inputs, then weights, in all of the
    pieces and row operators that make the same, or in none. ``unrolled``: what its kernel allocates while
    it runs; None: nothing.
    """

    graph: Count
    first_piece: Count
    end_piece: Count
    inputs: Annotated[tuple[Annotated[RowInput, SHARED], ...], SHARED]
    weights: Operands
    output: Count
    in_place: Count | None = None
    elementwise: Annotated[Elementwise, SHARED] | None = None
    unrolled: Annotated[UnrolledRows, SHARED] | None = None
    exact: bool = True

    @property
    def unit(self) -> int:
        """The number of rows that are made of the same input rows: parts should end between them."""
        return max(item.window.factor for item in self.inputs)


# Parts of a network that can run on some inner channels at a time (docs/explanation/rows.md).


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupInput(Record):
    """What an operator of a bottleneck reads: what operator ``made`` of it makes, a row value, or weights.

    ``axis``: along which a group of channels has its own part: "channels", the first axis above 1 of a
    tensor, a vector or weights, so that each group's lie together; "factors", the same, read as weights of
    one number a channel; "inputs", the second one of weights, where they do not; None: every group reads
    all of it. ``window``: which of its rows are needed.
    """

    made: Count | None = None
    row_value: Count | None = None
    weights: Annotated[Operand, SHARED] | None = None
    axis: Literal["channels", "factors", "inputs"] | None = None
    window: Annotated[Window, SHARED] = SAME


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupOperator(Record):
    """An operator of a bottleneck; it makes ``shape``, or its channels of a group.

    ``kind`` says when it runs, and what ``graphs`` are:

    - "each": for every group. For each of the bottleneck's sizes four graphs: with the padding above and
      below, above only, none, below only: of all rows, the first, inner ones, the last.
    - "mean": for every group, of all rows; one graph. What it makes is kept for all groups.
    - "once": when all groups have run so far; one graph. Then what "each" made is made again.
    - "sum": for every group, the last operator: it adds what is the group's to ``shape``. Three graphs: of
      the first group with bias and what else is added, of later ones, of the last with the activation.

    ``scratch_bytes``: what its kernel allocates.
    """

    kind: Literal["each", "mean", "once", "sum"]
    graphs: tuple[Count, ...]
    inputs: Annotated[tuple[Annotated[GroupInput, SHARED], ...], SHARED]
    shape: Shape
    scratch_bytes: Count = 0

    @property
    def height(self) -> int:
        """Rows of what it makes."""
        return self.shape[2]


@dataclass(frozen=True, slots=True, kw_only=True)
class Bottleneck(Record):
    """The pieces [first_piece, end_piece), some of ``channels`` inner channels at a time (seed 004).

    ``sizes``: how many a group may have, ascending, each twice the one before and a multiple of the block.
    The last operator makes the row value ``output``; sums over groups have other rounding than the whole.
    """

    first_piece: Count
    end_piece: Count
    channels: PositiveInt
    sizes: tuple[PositiveInt, ...]
    operators: tuple[GroupOperator, ...]
    output: Count


# MLAS_CONV_WORKING_BUFFER_SIZE_PER_THREAD is 64 KiB; measured on x86-64, with 1 to 64 threads.
SEGMENT_BYTES = 70 << 10
# The allocator's own, beside what is unrolled at once. Measured 1 to 5 KiB.
_BESIDE_BYTES = 8 << 10
#: So many threads share the one image of a convolution without groups.
SHARING_THREADS = 16


def unrolled_bytes(unrolled: Unrolled, threads: int) -> int:
    """Return a bound on what a piece allocates where ``threads`` threads compute."""
    segments = min(threads, unrolled.segments) * SEGMENT_BYTES
    whole = unrolled.whole_bytes + _BESIDE_BYTES if unrolled.whole_bytes else 0
    measured = unrolled.measured_bytes + unrolled.thread_bytes * (threads - 1)
    return max(unrolled.beside_bytes + max(whole, segments), measured)


def unrolled_by_rows(unrolled: UnrolledRows, pixels: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return a bound on what a row operator allocates, for each number of ``pixels`` that it makes."""
    each = unrolled.pixel_bytes * pixels + _BESIDE_BYTES
    whole = np.where((pixels < unrolled.filters) & (pixels > 0), each, 0)
    bound: NDArray[np.int64] = np.maximum(whole, unrolled.segments * SEGMENT_BYTES)
    return bound
