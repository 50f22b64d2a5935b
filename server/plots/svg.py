"""Standalone SVG: rectangles, lines and words, without any library."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from xml.sax.saxutils import escape

_FONT = "font-family='sans-serif' font-size='11'"


@dataclass
class Svg:
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
