"""Pictures of plans: the arena over time, and memory against delay."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from xml.sax.saxutils import escape

from pipeline.planning.plan import AnyPlan
from pipeline.planning.words import brief
from pipeline.program.program import Program
from server.page.memory_boxes import arena_boxes

# Standalone SVG: rectangles, lines and words, without any library.

_FONT = "font-family='sans-serif' font-size='11'"


@dataclass
class _Svg:
    """A picture of ``width`` x ``height`` pixels; the origin is its upper left corner."""

    width: int
    height: int
    _parts: list[str] = field(default_factory=list)

    def rectangle(
        self, x: float, y: float, width: float, height: float, colour: str, title: str = ""
    ) -> None:
        """Draw one; ``title`` is what a browser shows when one points at it."""
        words = f"<title>{escape(title)}</title>" if title else ""
        self._parts.append(
            f"<rect x='{x:.1f}' y='{y:.1f}' width='{width:.1f}' height='{height:.1f}' fill='{colour}' "
            f"stroke='#fff' stroke-width='0.3'>{words}</rect>"
        )

    def line(self, points: list[tuple[float, float]], colour: str = "#444") -> None:
        """Draw a line through ``points``."""
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        self._parts.append(f"<polyline points='{path}' fill='none' stroke='{colour}'/>")

    def dot(self, x: float, y: float, colour: str, title: str = "") -> None:
        """Draw a small disc."""
        self._parts.append(
            f"<circle cx='{x:.1f}' cy='{y:.1f}' r='3' fill='{colour}'>"
            f"<title>{escape(title)}</title></circle>"
        )

    def text(self, x: float, y: float, words: str, anchor: str = "start") -> None:
        """Write ``words``; ``anchor``: start, middle or end of them is at ``x``."""
        self._parts.append(
            f"<text x='{x:.1f}' y='{y:.1f}' {_FONT} text-anchor='{anchor}'>{escape(words)}</text>"
        )

    def document(self) -> str:
        """Return the file's text."""
        return "\n".join(self._lines()) + "\n"

    def _lines(self) -> Iterator[str]:
        yield (
            f"<svg xmlns='http://www.w3.org/2000/svg' width='{self.width}' height='{self.height}' "
            f"viewBox='0 0 {self.width} {self.height}'>"
        )
        yield f"<rect width='{self.width}' height='{self.height}' fill='#fff'/>"
        yield from self._parts
        yield "</svg>"


# Pictures.

_WIDTH, _HEIGHT, _LEFT, _TOP, _BELOW = 1100, 560, 70, 36, 44
_VALUES = ("#4878a8", "#6a9fd0", "#35608f", "#88b4dd")
_STRIPS = ("#d98c3f", "#e8ab6c", "#c2742a", "#f0c596")
_WEIGHTS = ("#5a9a5a", "#82b882", "#3f7a3f", "#a3cfa3")
_COLOURS = {"value": _VALUES, "strip": _STRIPS, "weights": _WEIGHTS}
_TICKS = 5


def arena_picture(name: str, program: Program, plan: AnyPlan) -> str:
    """Return SVG: moments from left to right, the arena's offsets upwards.

    Values are blue, strips of regions orange, weights of regions green.
    """
    boxes = arena_boxes(program, plan)
    moments = max((box.end for box in boxes), default=1)
    svg = _Svg(_WIDTH, _HEIGHT)
    across, up = _scales(moments, max(plan.arena_bytes, 1))
    for index, box in enumerate(boxes):
        colours = _COLOURS[box.kind]
        svg.rectangle(
            _LEFT + box.start * across,
            _HEIGHT - _BELOW - (box.offset + box.n_bytes) * up,
            (box.end - box.start) * across,
            box.n_bytes * up,
            colours[index % len(colours)],
            f"{box.name}: {brief(box.n_bytes)} at {box.offset}, moments {box.start} to {box.end - 1}",
        )
    svg.text(_LEFT, 22, f"{name}: an arena of {brief(plan.arena_bytes)} over {moments} moments")
    svg.text(
        _WIDTH - 10, 22, "blue: values, orange: strips of regions, green: their weights", "end"
    )
    _axes(svg, [(moment, str(moment)) for moment in _steps(moments)], across, plan.arena_bytes, up)
    return svg.document()


def frontier_picture(name: str, points: Sequence[tuple[int, float]], estimated: bool) -> str:
    """Return SVG: total memory in bytes from left to right, the delay in ms upwards."""
    svg = _Svg(_WIDTH, _HEIGHT)
    across, up = _scales(max(x for x, _ in points), max(y for _, y in points))
    places = [(_LEFT + x * across, _HEIGHT - _BELOW - y * up) for x, y in points]
    svg.line(places, _VALUES[0])
    for (x, y), (n_bytes, delay) in zip(places, points, strict=True):
        svg.dot(x, y, _STRIPS[0], f"{brief(n_bytes)}: {delay:.1f} ms")
    said = "delay, estimated" if estimated else "delay"
    svg.text(_LEFT, 22, f"{name}: memory of the whole plan against {said}, in ms")
    ticks = [(tick, brief(tick)) for tick in _steps(max(x for x, _ in points))]
    _axes(svg, ticks, across, None, up)
    most = max(y for _, y in points)
    for part in range(_TICKS + 1):
        delay = most * part / _TICKS
        svg.text(_LEFT - 6, _HEIGHT - _BELOW - delay * up + 4, f"{delay:.1f}", "end")
    return svg.document()


def _scales(across: float, up: float) -> tuple[float, float]:
    """Return the pixels of one unit."""
    return (_WIDTH - _LEFT - 20) / across, (_HEIGHT - _TOP - _BELOW) / (up or 1)


def _steps(most: int) -> list[int]:
    return sorted({most * part // _TICKS for part in range(_TICKS + 1)})


def _axes(
    svg: _Svg, ticks: Sequence[tuple[int, str]], across: float, n_bytes: int | None, up: float
) -> None:
    """Draw both axes; ``n_bytes``: of the one upwards, where it shows bytes."""
    bottom = _HEIGHT - _BELOW
    svg.line([(_LEFT, _TOP), (_LEFT, bottom), (_WIDTH - 20, bottom)])
    for position, words in ticks:
        svg.text(_LEFT + position * across, bottom + 18, words, "middle")
    for tick in [] if n_bytes is None else _steps(n_bytes):
        svg.text(_LEFT - 6, bottom - tick * up + 4, brief(tick), "end")
