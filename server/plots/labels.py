"""Where the names of points go, so that none lies over another or over a point. Pure: lengths in points."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

_DIRECTIONS = 16
_DISTANCES = (5.0, 9.0, 14.0, 20.0, 28.0, 38.0, 50.0, 64.0)
# Over a name is worse than over a point, and that worse than any distance.
_OVER_LABEL, _OVER_OBSTACLE = 10_000.0, 200.0
_GAP = 1.0
_ROUNDS = 3

Point = tuple[float, float]


@dataclass(frozen=True)
class LabelBox:
    """A rectangle; edges are not part of it."""

    left: float
    bottom: float
    right: float
    top: float

    def overlaps(self, other: "LabelBox") -> bool:
        """Whether the two have a point in common."""
        across = self.left < other.right and other.left < self.right
        return across and self.bottom < other.top and other.bottom < self.top

    def holds(self, other: "LabelBox") -> bool:
        """Whether ``other`` lies inside."""
        across = self.left <= other.left and other.right <= self.right
        return across and self.bottom <= other.bottom and other.top <= self.top

    def grown(self, by: float) -> "LabelBox":
        """Return the rectangle with each edge moved out."""
        return LabelBox(self.left - by, self.bottom - by, self.right + by, self.top + by)

    def nearest(self, point: Point) -> Point:
        """Return the place of the rectangle that is nearest to ``point``."""
        x, y = point
        return min(max(x, self.left), self.right), min(max(y, self.bottom), self.top)


def place(
    anchors: Sequence[Point],
    sizes: Sequence[Point],
    obstacles: Sequence[LabelBox],
    inside: LabelBox,
) -> list[LabelBox]:
    """Return a place for each label of ``sizes`` (width, height) near its anchor.

    Those that come first get the better places. Labels stay ``inside``, apart from each other and off the
    ``obstacles`` where that can be had within some lines of text.
    """
    placed: list[LabelBox | None] = [None] * len(anchors)
    for _ in range(_ROUNDS):
        for index, (anchor, size) in enumerate(zip(anchors, sizes, strict=True)):
            others = [box for at, box in enumerate(placed) if box is not None and at != index]
            placed[index] = min(
                _around(anchor, size), key=lambda box: _cost(box, anchor, others, obstacles, inside)
            )
    return [box for box in placed if box is not None]


def _around(anchor: Point, size: Point) -> Iterator[LabelBox]:
    """Yield places beside ``anchor``, near ones first and of these those to the right."""
    x, y = anchor
    width, height = size
    for distance in _DISTANCES:
        for step in range(_DIRECTIONS):
            # 0, 1, -1, 2, -2, ...: to the right before up and down before to the left.
            turn = (step + 1) // 2 * (1 if step % 2 else -1) * 2 * math.pi / _DIRECTIONS
            across, up = math.cos(turn), math.sin(turn)
            middle_x = x + across * (distance + width / 2)
            middle_y = y + up * (distance + height / 2)
            yield LabelBox(
                *(middle_x - width / 2, middle_y - height / 2),
                *(middle_x + width / 2, middle_y + height / 2),
            )


def _cost(
    box: LabelBox,
    anchor: Point,
    others: Sequence[LabelBox],
    obstacles: Sequence[LabelBox],
    inside: LabelBox,
) -> float:
    cost = math.dist(box.nearest(anchor), anchor)
    if not inside.holds(box):
        cost += 2 * _OVER_LABEL
    wide = box.grown(_GAP)
    cost += _OVER_LABEL * sum(wide.overlaps(other) for other in others)
    return cost + _OVER_OBSTACLE * sum(wide.overlaps(other) for other in obstacles)


def spread(wanted: Sequence[float], gap: float) -> list[float]:
    """Return heights at least ``gap`` apart, in the order of those ``wanted`` and as near as it goes."""
    order = sorted(range(len(wanted)), key=lambda index: wanted[index])
    # Runs of labels that touch, each as the sum and the number of where its first one would like to be.
    runs: list[tuple[float, int]] = []
    for rank, index in enumerate(order):
        runs.append((wanted[index] - rank * gap, 1))
        while len(runs) > 1 and runs[-2][0] / runs[-2][1] >= runs[-1][0] / runs[-1][1]:
            (upper, some), (lower, more) = runs.pop(), runs.pop()
            runs.append((upper + lower, some + more))
    starts = [total / count for total, count in runs for _ in range(count)]
    heights = [0.0] * len(wanted)
    for rank, (index, start) in enumerate(zip(order, starts, strict=True)):
        heights[index] = start + rank * gap
    return heights
