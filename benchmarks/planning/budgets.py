"""docs/research/budgets.md: the table and the picture of the figures in docs/research/budgets/figures.json.

Run as ``python -m benchmarks.planning.budgets``: it writes both. Nothing is measured here; the page says by
which commands the figures were.
"""

import json
import math
from pathlib import Path
from typing import Any

DOCS = Path(__file__).resolve().parents[2] / "docs" / "research"
FIGURES = DOCS / "budgets" / "figures.json"
PICTURE = DOCS / "budgets" / "budgets.svg"
PAGE = DOCS / "budgets.md"
MARKS = ("<!-- begin: benchmarks.planning.budgets -->", "<!-- end: benchmarks.planning.budgets -->")

_HEAD = """| network | px | weights | least budget | there takes, x | in 8 bits |
|---|---:|---:|---:|---:|---:|"""
_SIZE = 860, 520
_LEFT, _RIGHT, _TOP, _BOTTOM = 60, 20, 40, 50
_X = 2.0, 600.0  # MiB of weights
_Y = 2.0, 60.0  # MiB of the budget
_STYLE = """text { fill: #222; font: 12px Verdana, 'DejaVu Sans', sans-serif }
  .small { font-size: 10px } .title { font-weight: bold; font-size: 14px }
  .grid { stroke: #ddd } .dot { fill: #c8102e } .same { stroke: #888; stroke-dasharray: 5 4 }
  @media (prefers-color-scheme: dark) {
    text { fill: #e6e6e6 } .grid { stroke: #444 } .dot { fill: #ff6b7d } .same { stroke: #999 }
  }"""
#: Networks with a name in the picture, and those whose name is on the left.
_NAMED = frozenset(
    {"mobilenetv1", "resnet50", "resnet152", "yolov4", "yolov4-p6"}
    | {"vgg19", "yolov8n", "yolov4-tiny", "yolov5s"}
)
_LEFT_NAMED = frozenset({"vgg19", "yolov4-p6", "yolov4-tiny"})


def networks() -> dict[str, dict[str, Any]]:
    """Return the figures by network, in MiB, times those of all weights in memory, and pixels."""
    figures: dict[str, dict[str, Any]] = json.loads(FIGURES.read_text("utf-8"))["networks"]
    return figures


def table(figures: dict[str, dict[str, Any]]) -> str:
    """Return the table as Markdown, by weights."""
    rows = sorted(figures.items(), key=lambda item: item[1]["weights"])
    return "\n".join([_HEAD, *(_row(name, row) for name, row in rows)])


def _row(name: str, row: dict[str, Any]) -> str:
    sizes = f"{row['weights']:.1f} | {row['budget']:.1f} | {row['times']:.1f} | {row['int8']:.1f}"
    return f"| `{name}` | {row['pixels']} | {sizes} |"


def picture(figures: dict[str, dict[str, Any]]) -> str:
    """Return the picture as SVG: the least budget against the weights, both on logarithmic scales."""
    width, height = _SIZE
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        f'width="{width}" height="{height}" role="img" aria-labelledby="title">',
        "<title id='title'>The least budget of networks against their weights</title>",
        f"<style>{_STYLE}</style>",
        f'<text class="title" x="{_LEFT}" y="22">The least budget for photographs or tensors, MiB, '
        "against all weights, MiB</text>",
    ]
    for value in (2, 5, 10, 20, 50, 100, 200, 500):
        lines += _grid(f"{value}", x=_x(value))
    for value in (2, 5, 10, 20, 50):
        lines += _grid(f"{value}", y=_y(value))
    low, high = max(_X[0], _Y[0]), min(_X[1], _Y[1])
    lines.append(
        f'<line class="same" x1="{_x(low)}" y1="{_y(low)}" x2="{_x(high)}" y2="{_y(high)}"/>'
        f'<text class="small" x="{_x(high) + 6}" y="{_y(high) + 10}">as much as the weights</text>'
    )
    for name, row in sorted(figures.items()):
        x, y = _x(row["weights"]), _y(row["budget"])
        title = (
            f"{name}: {row['weights']} MiB of weights, from {row['budget']} MiB, {row['times']} x"
        )
        lines.append(f'<circle class="dot" cx="{x}" cy="{y}" r="5"><title>{title}</title></circle>')
        if name in _NAMED:
            anchor = f'x="{x - 8}" text-anchor="end"' if name in _LEFT_NAMED else f'x="{x + 8}"'
            lines.append(f'<text class="small" {anchor} y="{y + 4}">{name}</text>')
    return "\n".join([*lines, "</svg>", ""])


def _x(value: float) -> float:
    low, high = map(math.log, _X)
    width = _SIZE[0] - _LEFT - _RIGHT
    return round(_LEFT + (math.log(value) - low) / (high - low) * width, 1)


def _y(value: float) -> float:
    low, high = map(math.log, _Y)
    height = _SIZE[1] - _TOP - _BOTTOM
    return round(_SIZE[1] - _BOTTOM - (math.log(value) - low) / (high - low) * height, 1)


def _grid(text: str, x: float | None = None, y: float | None = None) -> list[str]:
    if x is not None:
        bottom = _SIZE[1] - _BOTTOM
        return [
            f'<line class="grid" x1="{x}" y1="{_TOP}" x2="{x}" y2="{bottom}"/>',
            f'<text class="small" x="{x}" y="{bottom + 18}" text-anchor="middle">{text}</text>',
        ]
    return [
        f'<line class="grid" x1="{_LEFT}" y1="{y}" x2="{_SIZE[0] - _RIGHT}" y2="{y}"/>',
        f'<text class="small" x="{_LEFT - 8}" y="{(y or 0.0) + 4}" text-anchor="end">{text}</text>',
    ]


def page(text: str, figures: dict[str, dict[str, Any]]) -> str:
    """Return the text of the page with the table of ``figures``."""
    before, _, rest = text.partition(MARKS[0])
    _, _, after = rest.partition(MARKS[1])
    return f"{before}{MARKS[0]}\n\n{table(figures)}\n\n{MARKS[1]}{after}"


if __name__ == "__main__":
    PICTURE.write_text(picture(networks()), "utf-8")
    PAGE.write_text(page(PAGE.read_text("utf-8"), networks()), "utf-8")
