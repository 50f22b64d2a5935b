"""Boxes: some columns of some rows of a value, and arithmetic with them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from models.network.windows import Window


@dataclass(frozen=True, slots=True)
class Interval:
    """Rows, or columns, [first, end)."""

    first: int
    end: int

    def __len__(self) -> int:
        return max(self.end - self.first, 0)

    def through(self, window: Window) -> "Interval":
        """Return what these are made of; some of it may lie outside of the input."""
        return Interval(*window.needed(self.first, self.end))

    def common(self, other: "Interval") -> "Interval":
        return Interval(max(self.first, other.first), min(self.end, other.end))

    def within(self, length: int) -> "Interval":
        """Return those of a value of ``length`` rows, or columns."""
        return Interval(max(self.first, 0), min(self.end, length))


class RowBox(NamedTuple):
    """Columns ``columns`` of rows ``rows``."""

    rows: Interval
    columns: Interval

    @property
    def pixels(self) -> int:
        rows, columns = self.rows.end - self.rows.first, self.columns.end - self.columns.first
        return rows * columns if rows > 0 and columns > 0 else 0


def common(one: RowBox, other: RowBox) -> RowBox | None:
    """Return what lies in both boxes, None where nothing does."""
    top, bottom = max(one.rows.first, other.rows.first), min(one.rows.end, other.rows.end)
    if top >= bottom:
        return None  # most are far apart
    columns = one.columns
    if columns is not other.columns:
        columns = columns.common(other.columns)
    return RowBox(Interval(top, bottom), columns) if columns else None


def without(box: RowBox, others: Sequence[RowBox]) -> list[RowBox]:
    """Return what of ``box`` lies in none of ``others``: boxes apart from each other, few of them."""
    left = [box]
    for other in others:
        if common(box, other) is not None:
            left = [part for each in left for part in _without(each, other)]
    return left


def _without(box: RowBox, other: RowBox) -> list[RowBox]:
    """Return what of ``box`` is not in ``other``: above, below, to the left and to the right of it."""
    both = common(box, other)
    if both is None:
        return [box]
    parts = [
        RowBox(Interval(box.rows.first, both.rows.first), box.columns),
        RowBox(Interval(both.rows.end, box.rows.end), box.columns),
        RowBox(both.rows, Interval(box.columns.first, both.columns.first)),
        RowBox(both.rows, Interval(both.columns.end, box.columns.end)),
    ]
    return [part for part in parts if part.pixels]
