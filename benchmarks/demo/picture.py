"""Memory over time as SVG: the contenders side by side, the same scales, the limit across all."""

from collections.abc import Iterable, Mapping, Sequence
from html import escape

from benchmarks.demo.story import Shown
from benchmarks.machine.sampling import MemorySample
from benchmarks.servers.contenders import OURS

_PANEL, _GAP, _HEIGHT = 226, 20, 170
_LEFT, _TOP, _BOTTOM = 58, 92, 62
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
    width = _LEFT + len(rows) * _PANEL + (len(rows) - 1) * _GAP + 14
    height = _TOP + _HEIGHT + _BOTTOM
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}"'
        f' height="{height}" font-family="Helvetica, Arial, sans-serif" font-size="12" fill="{_INK}">',
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
        _text(_LEFT, 24, title, size=15, weight="bold"),
        *_memory_axis(scale),
    ]
    for index, row in enumerate(rows):
        note = (notes or {}).get(row.name, "")
        parts += _panel(row, scale, _LEFT + index * (_PANEL + _GAP), note)
    parts += _limit_line(scale, limit, width)
    parts += _legend(height)
    return "\n".join([*parts, "</svg>", ""])


class _Scale:
    """Where seconds and bytes lie inside a panel."""

    def __init__(self, seconds: float, top: float) -> None:
        self.seconds, self.top = seconds, top

    def x(self, left: float, seconds: float) -> float:
        return left + seconds / self.seconds * _PANEL

    def y(self, n_bytes: float) -> float:
        return _TOP + _HEIGHT * (1 - n_bytes / self.top)


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


def _memory_axis(scale: _Scale) -> list[str]:
    step = _step(scale.top / 1e6 / 50, 5) * 50
    ticks = [step * index for index in range(int(scale.top / 1e6 / step) + 1)]
    labels = [
        _text(_LEFT - 8, scale.y(tick * 1e6) + 4, f"{tick:,.0f}", anchor="end", fill=_FAINT)
        for tick in ticks
    ]
    return [*labels, _text(_LEFT - 8, _TOP - 8, "MB", anchor="end", fill=_FAINT)]


def _panel(row: Shown, scale: _Scale, left: float, note: str) -> list[str]:
    anonymous, files = _COLOURS[row.name == OURS]
    samples = _thinned(row.attempt.samples)
    floor = scale.y(0)
    parts = [
        _text(left, _TOP - 38, row.title, weight="bold", size=13, fill=anonymous),
        _text(left, _TOP - 20, _what_came(row) + note, fill=_INK),
        _area(
            samples,
            scale,
            left,
            [each.usage.anonymous + each.usage.file for each in samples],
            files,
        ),
        _area(samples, scale, left, [each.usage.anonymous for each in samples], anonymous),
        _line([(left, floor), (left + _PANEL, floor)], stroke=_FAINT),
    ]
    for moment in row.attempt.moments:
        x = scale.x(left, moment)
        parts.append(f'<path d="M{x:.1f} {floor + 2:.1f}l-4 8h8z" fill="{anonymous}"/>')
    if row.attempt.failure == "killed" and samples:
        x, y = scale.x(left, samples[-1].seconds), scale.y(row.attempt.samples[-1].usage.total)
        y = min(y, scale.y(row.limit_bytes))
        parts.append(
            f'<path d="M{x - 5:.1f} {y - 5:.1f}l10 10m0 -10l-10 10" stroke="{_LIMIT}" stroke-width="3"/>'
        )
    step = _step(scale.seconds, 5)
    parts += [
        _text(
            scale.x(left, tick * step),
            floor + 26,
            f"{tick * step:g} s",
            anchor="middle",
            fill=_FAINT,
        )
        for tick in range(int(scale.seconds / step) + 1)
    ]
    return parts


def _what_came(row: Shown) -> str:
    if row.attempt.failure == "killed" and row.attempt.samples:
        return f"killed after {row.attempt.samples[-1].seconds:.1f} s"
    answers = len(row.attempt.answers)
    speed = f", {row.seconds:.2f} s each" if row.seconds is not None else ""
    outcome = f"{row.outcome}: " if row.attempt.failure or not row.fits else ""
    return f"{outcome}{answers} answers{speed}"


def _area(
    samples: Sequence[MemorySample], scale: _Scale, left: float, heights: Sequence[int], fill: str
) -> str:
    if not samples:
        return ""
    points = [
        (scale.x(left, each.seconds), scale.y(n)) for each, n in zip(samples, heights, strict=True)
    ]
    floor = scale.y(0)
    corners = [(points[0][0], floor), *points, (points[-1][0], floor)]
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in corners)
    return f'<polygon points="{path}" fill="{fill}"/>'


def _thinned(samples: Sequence[MemorySample]) -> list[MemorySample]:
    """Return so many samples as there is room for; of those that lie together the one with most memory."""
    size = -(-len(samples) // _POINTS) or 1
    groups = [samples[start : start + size] for start in range(0, len(samples), size)]
    return [max(group, key=lambda each: each.usage.total) for group in groups]


def _limit_line(scale: _Scale, limit: int, width: int) -> list[str]:
    y = scale.y(limit)
    return [
        _line(
            [(_LEFT, y), (width - 14, y)], stroke=_LIMIT, stroke_dasharray="6 4", stroke_width=1.5
        ),
        _text(width - 14, y - 5, f"limit {limit / 1e6:.0f} MB", anchor="end", fill=_LIMIT),
    ]


def _legend(height: int) -> list[str]:
    y, x, parts = height - 14, float(_LEFT), []
    kinds = (
        (0, "anonymous memory, which cannot be given back", 290),
        (1, "pages of files, which the kernel can drop", 265),
    )
    for kind, text, room in kinds:
        for index, is_ours in enumerate((False, True)):
            at = f'x="{x + 11 * index:.0f}" y="{y - 9}"'
            parts.append(f'<rect {at} width="10" height="10" fill="{_COLOURS[is_ours][kind]}"/>')
        parts.append(_text(x + 28, y, text, fill=_FAINT))
        x += room + 28
    return [*parts, _text(x, y, "▲ an answer", fill=_FAINT)]
