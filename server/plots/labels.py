"""Names beside points and lines of a figure, so that none lies over another or over a point."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from server.plots.figures import STRONG, style

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


# Names beside the points and lines of a figure, instead of a legend over them.

_SIZE = 10.5
# A leader is drawn to a name that stands further away than this.
_LEADER = 11.0


def name_points(
    axes: Any, names: Sequence[tuple[str, Point, str]], obstacles: Sequence[Sequence[Point]] = ()
) -> None:
    """Write each name beside its point, in that colour, the most important first; draw all else before.

    ``obstacles``: lines that names should not lie over, each as its points in data.
    """
    drawing = axes.figure
    drawing.draw_without_rendering()
    boxes = [_extent(axes, name, color) for name, _, color in names]
    anchors = [_on_canvas(axes, at) for _, at, _ in names]
    blocked = [LabelBox(x, y, x, y).grown(6) for x, y in anchors]
    for line in obstacles:
        blocked += _boxes([_on_canvas(axes, at) for at in line])
    frame = axes.get_window_extent()
    places = place(
        anchors, [(box.width, box.height) for box in boxes], blocked, LabelBox(*frame.extents)
    )
    for (name, at, color), anchor, box in zip(names, anchors, places, strict=True):
        near = box.nearest(anchor)
        look = _text_look(color)
        offset = (box.left - anchor[0], box.bottom - anchor[1])
        axes.annotate(name, at, offset, textcoords="offset points", in_layout=False, **look)
        if math.dist(near, anchor) > _LEADER:
            leader = axes.transData.inverted().transform((anchor, near))
            axes.plot(*leader.T, color=look["color"], linewidth=0.6, zorder=2.5, scalex=False)


def name_ends(axes: Any, names: Sequence[tuple[str, Point]]) -> None:
    """Write the names of lines beside their right ends, in data, at the edge of the axes."""
    drawing = axes.figure
    drawing.draw_without_rendering()
    ends = [_on_canvas(axes, at) for _, at in names]
    heights = spread([y for _, y in ends], 1.25 * _SIZE)
    for (name, at), (_, y), height in zip(names, ends, heights, strict=True):
        look = {**_text_look(style(name)["color"]), "verticalalignment": "center"}
        axes.annotate(name, at, (12, height - y), textcoords="offset points", **look)


def _text_look(color: str) -> dict[str, Any]:
    """Return how a name is written: darker than its point, which may be pale."""
    from matplotlib.colors import to_rgb

    red, green, blue = to_rgb(color)
    strong = color == STRONG
    part = 1.0 if strong else 0.7
    return {
        "color": (part * red, part * green, part * blue),
        "fontweight": "bold" if strong else "normal",
        "fontsize": _SIZE,
        "verticalalignment": "bottom",
        "zorder": 6,
    }


def _extent(axes: Any, name: str, color: str) -> Any:
    """Return the rectangle that a name takes on the canvas, wherever it will stand."""
    text = axes.text(0.5, 0.5, name, transform=axes.transAxes, **_text_look(color))
    extent = text.get_window_extent()
    text.remove()
    return extent


def _on_canvas(axes: Any, at: Point) -> Point:
    x, y = axes.transData.transform(at)
    return float(x), float(y)


def _boxes(line: Sequence[Point]) -> list[LabelBox]:
    """Return small rectangles along a line on the canvas."""
    boxes = []
    for (x, y), (to_x, to_y) in pairwise(line):
        steps = max(1, math.ceil(math.dist((x, y), (to_x, to_y)) / 6))
        for step in range(steps + 1):
            part = step / steps
            middle = (x + part * (to_x - x), y + part * (to_y - y))
            boxes.append(LabelBox(*middle, *middle).grown(2))
    return boxes
