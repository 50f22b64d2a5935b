"""Parts of a network that can run on some rows at a time (docs/explanation/rows.md)."""

from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import PositiveInt

from models.network.fields import Array, Count, Name, Record, Shared
from models.network.windows import SAME, Window
from models.packs.records.pieces import Operands
from models.packs.records.programs import Elementwise

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
    window: Annotated[Window, Shared] = SAME
    fill: Outside = "zero"


@dataclass(frozen=True, slots=True, kw_only=True)
class UnrolledRows(Record):
    """What a plain convolution unrolls on rows (models/packs/unrolling.py).

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
    inputs: Annotated[tuple[Annotated[RowInput, Shared], ...], Shared]
    weights: Operands
    output: Count
    in_place: Count | None = None
    elementwise: Annotated[Elementwise, Shared] | None = None
    unrolled: Annotated[UnrolledRows, Shared] | None = None
    exact: bool = True

    @property
    def unit(self) -> int:
        """So many rows are made of the same ones: parts had better end between them."""
        return max(item.window.factor for item in self.inputs)
