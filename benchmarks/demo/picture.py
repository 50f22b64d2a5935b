"""Memory over time as SVG: the contenders below each other, the same scales, the limit across each.

It is narrow, so that its words can be read on a telephone; and they have room for a wider font.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape

from benchmarks.demo.story import Shown
from benchmarks.machine.sampling import MemorySample
from benchmarks.servers.contenders import OURS

_PANEL, _GAP, _HEIGHT = 440, 46, 76
_LEFT, _RIGHT, _TOP, _BOTTOM = 44, 14, 70, 74
_POINTS = 300
_INK, _FAINT, _LIMIT = "#24292f", "#6e7781", "#cf222e"
#: (anonymous, files) of ours and of the others.
_COLOURS = {True: ("#0969da", "#b6d7ff"), False: ("#8c6d46", "#e6d8c3")}
_MARGIN = 1.12
"""Room above the limit, for its label."""


def svg(rows: Sequence[Shown], title: str, notes: Mapping[str, str] | None = None) -> str:
    """Return the picture; scales fit the largest of all panels. ``notes``: more to say, by contender."""
    ends = [row.attempt.samples[-1].seconds for row in rows if row.attempt.samples]
    seconds = max(ends, default=1.0)
    limit = rows[0].limit_bytes
    top = max(limit, *(sample.usage.total for row in rows for sample in row.attempt.samples))
    scale = _Scale(seconds, top * _MARGIN)
    width = _LEFT + _PANEL + _RIGHT
    floor = _TOP + len(rows) * _HEIGHT + (len(rows) - 1) * _GAP
    height = floor + _BOTTOM
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}"'
        f' height="{height}" font-family="Helvetica, Arial, sans-serif" font-size="12" fill="{_INK}">',
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
        _text(_LEFT, 24, title, size=15, weight="bold"),
        _text(_LEFT - 8, _TOP - 13, "MB", anchor="end", fill=_FAINT),
    ]
    for index, row in enumerate(rows):
        note = (notes or {}).get(row.name, "")
        panel = _Panel(scale, _TOP + index * (_HEIGHT + _GAP))
        parts += [*_memory_axis(panel), *_panel(row, panel, note), _limit_line(panel, limit)]
    label = f"limit {limit / 1e6:.0f} MB"
    y = _Panel(scale, _TOP).y(limit) - 4
    parts.append(_text(_LEFT + _PANEL, y, label, anchor="end", fill=_LIMIT))
    parts += _time_axis(scale, floor)
    parts += _legend(height)
    return "\n".join([*parts, "</svg>", ""])


@dataclass(frozen=True)
class _Scale:
    """The seconds and bytes that a panel has room for."""

    seconds: float
    n_bytes: float

    def x(self, seconds: float) -> float:
        return _LEFT + seconds / self.seconds * _PANEL


@dataclass(frozen=True)
class _Panel:
    """Where bytes lie in the panel that begins at ``top``, in pixels."""

    scale: _Scale
    top: float

    def y(self, n_bytes: float) -> float:
        return self.top + _HEIGHT * (1 - n_bytes / self.scale.n_bytes)


def _text(x: float, y: float, text: str, **style: object) -> str:
    names = {"size": "font-size", "weight": "font-weight", "anchor": "text-anchor", "fill": "fill"}
    attributes = "".join(f' {names[key]}="{value}"' for key, value in style.items())
    return f'<text x="{x:.1f}" y="{y:.1f}"{attributes}>{escape(text)}</text>'


def _line(points: Iterable[tuple[float, float]], **style: object) -> str:
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    attributes = "".join(f' {key.replace("_", "-")}="{value}"' for key, value in style.items())
    return f'<polyline points="{path}" fill="none"{attributes}/>'


def _step(span: float, most: int) -> float:
    """Return the round number that divides ``span`` into at most ``most`` parts."""
    size = 1.0
    while size * most < span:
        size *= 2.5 if str(size)[0] == "2" else 2
    return size


def _memory_axis(panel: _Panel) -> list[str]:
    n_bytes = panel.scale.n_bytes
    step = _step(n_bytes / 1e6 / 50, 5) * 50
    ticks = [step * index for index in range(int(n_bytes / 1e6 / step) + 1)]
    return [
        _text(_LEFT - 8, panel.y(tick * 1e6) + 4, f"{tick:,.0f}", anchor="end", fill=_FAINT)
        for tick in ticks
    ]


def _time_axis(scale: _Scale, floor: float) -> list[str]:
    step = _step(scale.seconds, 5)
    ticks = [step * index for index in range(int(scale.seconds / step) + 1)]
    return [
        _text(scale.x(tick), floor + 25, f"{tick:g} s", anchor="middle", fill=_FAINT)
        for tick in ticks
    ]


def _panel(row: Shown, panel: _Panel, note: str) -> list[str]:
    anonymous, files = _COLOURS[row.name == OURS]
    samples = _thinned(row.attempt.samples)
    scale, floor = panel.scale, panel.y(0)
    came = _what_came(row) + note
    parts = [
        _text(_LEFT, panel.top - 13, row.title, weight="bold", size=13, fill=anonymous),
        _text(_LEFT + _PANEL, panel.top - 13, came, anchor="end", fill=_INK),
        _area(samples, panel, [each.usage.anonymous + each.usage.file for each in samples], files),
        _area(samples, panel, [each.usage.anonymous for each in samples], anonymous),
        _line([(_LEFT, floor), (_LEFT + _PANEL, floor)], stroke=_FAINT),
    ]
    parts += [
        f'<path d="M{scale.x(moment):.1f} {floor + 2:.1f}l-4 8h8z" fill="{anonymous}"/>'
        for moment in row.attempt.moments
    ]
    if row.attempt.failure == "killed" and samples:
        x, y = scale.x(samples[-1].seconds), panel.y(row.attempt.samples[-1].usage.total)
        y = min(y, panel.y(row.limit_bytes))
        parts.append(
            f'<path d="M{x - 5:.1f} {y - 5:.1f}l10 10m0 -10l-10 10" stroke="{_LIMIT}" stroke-width="3"/>'
        )
    return parts


def _what_came(row: Shown) -> str:
    if row.attempt.failure == "killed" and row.attempt.samples:
        return f"killed after {row.attempt.samples[-1].seconds:.1f} s"
    answers = len(row.attempt.answers)
    speed = f", {row.seconds:.2f} s each" if row.seconds is not None else ""
    outcome = f"{row.outcome}: " if row.attempt.failure or not row.fits else ""
    return f"{outcome}{answers} answers{speed}"


def _area(samples: Sequence[MemorySample], panel: _Panel, heights: Sequence[int], fill: str) -> str:
    if not samples:
        return ""
    points = [
        (panel.scale.x(each.seconds), panel.y(n)) for each, n in zip(samples, heights, strict=True)
    ]
    floor = panel.y(0)
    corners = [(points[0][0], floor), *points, (points[-1][0], floor)]
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in corners)
    return f'<polygon points="{path}" fill="{fill}"/>'


def _thinned(samples: Sequence[MemorySample]) -> list[MemorySample]:
    """Return so many samples as there is room for; of those that lie together the one with most memory."""
    size = -(-len(samples) // _POINTS) or 1
    groups = [samples[start : start + size] for start in range(0, len(samples), size)]
    return [max(group, key=lambda each: each.usage.total) for group in groups]


def _limit_line(panel: _Panel, limit: int) -> str:
    ends = [(x, panel.y(limit)) for x in (_LEFT, _LEFT + _PANEL)]
    return _line(ends, stroke=_LIMIT, stroke_dasharray="6 4", stroke_width=1.5)


def _legend(height: int) -> list[str]:
    """Return a line for each kind of memory; an answer stands at the end of the first."""
    kinds = (
        "anonymous memory, which cannot be given back",
        "pages of files, which the kernel can drop",
    )
    y, parts = height - 28, []
    for kind, text in enumerate(kinds):
        for index, is_ours in enumerate((False, True)):
            at = f'x="{_LEFT + 11 * index:.0f}" y="{y - 9}"'
            parts.append(f'<rect {at} width="10" height="10" fill="{_COLOURS[is_ours][kind]}"/>')
        parts.append(_text(_LEFT + 28, y, text, fill=_FAINT))
        y += 18
    answer = _text(_LEFT + _PANEL, height - 28, "▲ an answer", anchor="end", fill=_FAINT)
    return [*parts, answer]
