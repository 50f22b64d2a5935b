"""Boxes: some columns of some rows of a value, and arithmetic with them."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from models.network.windows import Window
from pipeline.program.row_ranges import Rows


@dataclass(frozen=True, slots=True)
class Box:
    """Columns ``columns`` of rows ``rows``."""

    rows: Rows
    columns: Rows

    @property
    def pixels(self) -> int:
        return len(self.rows) * len(self.columns)


def needed_box(down: Window, across: Window, box: Box) -> Box:
    """Return the box of an input that output ``box`` is made of; it may reach outside of the input."""
    return Box(box.rows.through(down), box.columns.through(across))


def common(one: Box, other: Box) -> Box | None:
    """Return what lies in both boxes, None where nothing does."""
    if (
        one.rows.end <= other.rows.first
        or other.rows.end <= one.rows.first
        or one.columns.end <= other.columns.first
        or other.columns.end <= one.columns.first
    ):
        return None  # most are far apart
    found = Box(one.rows.common(other.rows), one.columns.common(other.columns))
    return found if found.pixels else None


def hull(boxes: Iterable[Box]) -> Box:
    """Return the smallest box around ``boxes``, at least one."""
    held = list(boxes)
    return Box(_around(box.rows for box in held), _around(box.columns for box in held))


def _around(lines: Iterable[Rows]) -> Rows:
    held = list(lines)
    return Rows(min(each.first for each in held), max(each.end for each in held))


def without(box: Box, others: Sequence[Box]) -> list[Box]:
    """Return what of ``box`` lies in none of ``others``: boxes apart from each other, few of them."""
    left = [box]
    for other in others:
        if common(box, other) is not None:
            left = [part for each in left for part in _without(each, other)]
    return left


def _without(box: Box, other: Box) -> list[Box]:
    """Return what of ``box`` is not in ``other``: above, below, to the left and to the right of it."""
    both = common(box, other)
    if both is None:
        return [box]
    parts = [
        Box(Rows(box.rows.first, both.rows.first), box.columns),
        Box(Rows(both.rows.end, box.rows.end), box.columns),
        Box(both.rows, Rows(box.columns.first, both.columns.first)),
        Box(both.rows, Rows(both.columns.end, box.columns.end)),
    ]
    return [part for part in parts if part.pixels]


def margins(box: Box, height: int, width: int) -> list[Box]:
    """Return what of ``box`` lies outside of a value of ``height`` and ``width``."""
    return without(box, [Box(Rows(0, height), Rows(0, width))])
