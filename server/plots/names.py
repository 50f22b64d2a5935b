"""Names beside the points and lines of a figure, instead of a legend over them."""

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from server.plots.figures import STRONG, style
from server.plots.labels import LabelBox, Point, place, spread

_SIZE = 10.5
# A leader is drawn to a name that stands further away than this.
_LEADER = 11.0


def name_points(
    axes: Any, names: Sequence[tuple[str, Point, str]], obstacles: Sequence[Sequence[Point]] = ()
) -> None:
    """Write each name beside its point, in that colour, the most important first; draw all else before.

    ``obstacles``: lines that names should not lie over, each as its points in data.
    """
    made = axes.figure
    made.draw_without_rendering()
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
    made = axes.figure
    made.draw_without_rendering()
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
    found = []
    for (x, y), (to_x, to_y) in pairwise(line):
        steps = max(1, math.ceil(math.dist((x, y), (to_x, to_y)) / 6))
        for step in range(steps + 1):
            part = step / steps
            middle = (x + part * (to_x - x), y + part * (to_y - y))
            found.append(LabelBox(*middle, *middle).grown(2))
    return found
