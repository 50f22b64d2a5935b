"""Tables and facts in the columns of a terminal, numbers in their units: nothing cut, no number folded.

A row is one line where that fits. Where it does not, heads and texts fold; where numbers alone are too
wide, each row becomes lines of its own, "head  value". In a pipe (``width`` None) a row is always one line,
however long, so that it can be searched.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from rich.cells import cell_len, chop_cells

from models.errors import printable

_GAP = "  "
#: Texts fold to no less, names above all: narrower columns are hard to read.
_LEAST_TEXT = 12
_NUMBER = re.compile(r"[-+<]?[0-9][0-9,]*(\.[0-9]+)?(e[-+]?[0-9]+)?( ?(%|B|KiB|MiB|GiB|ms|s))?")
_NOTHING = ("", "-")
#: Where a line may end: at a space, but not between a number and its unit.
_BREAK = re.compile(r" (?!(?:B|KiB|MiB|GiB|bytes|ms|s|px|%)(?:\W|$))|(?<![0-9]) ")


@dataclass(frozen=True)
class Lines:
    """A laid out table: the lines of its head, which may be none, and those of its rows."""

    head: list[str]
    body: list[str]


@dataclass(frozen=True)
class _Column:
    """One column: its head, its cells, and whether they are numbers, which stay whole and lie right."""

    head: str
    cells: Sequence[str]
    is_number: bool

    @property
    def widths(self) -> tuple[int, int, int]:
        """How wide it is as it is, with its head folded between words, and with texts folded, too."""
        word = max(map(cell_len, self.head.split()), default=0)
        cells = max(map(cell_len, self.cells), default=0)
        texts = cells if self.is_number else min(cells, _LEAST_TEXT)
        return max(cell_len(self.head), cells), max(word, cells), max(word, texts)


def lay_out(columns: Sequence[str], rows: Iterable[Sequence[str]], width: int | None) -> Lines:
    """Return the lines of a table with the heads ``columns`` in a terminal of ``width`` columns."""
    shown = [tuple(map(printable, row)) for row in rows]
    table = [
        _Column(head, cells, all(map(_is_number, cells)))
        for head, *cells in zip(columns, *shown, strict=True)
    ]
    widths = _widths(table, width)
    if widths is None:
        return Lines([], _records(columns, shown, width))
    numbers = [column.is_number for column in table]
    return Lines(
        _folded(columns, widths, numbers),
        [line for row in shown for line in _folded(row, widths, numbers)],
    )


def lay_out_facts(facts: Iterable[tuple[str, str]], width: int | None) -> list[str]:
    """Return lines of "name  text", texts below each other; they fold between words only."""
    shown = [(printable(name), printable(text)) for name, text in facts]
    indent = max((cell_len(name) for name, _ in shown), default=0) + len(_GAP)
    lines = []
    for name, text in shown:
        pieces = (
            [text] if width is None else fold(text, max(width - indent, _LEAST_TEXT), cut=False)
        )
        lines += [
            (_padded(head, indent) + piece).rstrip()
            for head, piece in zip((name, *[""] * len(pieces)), pieces, strict=False)
        ]
    return lines


def fold(text: str, width: int, cut: bool = True) -> list[str]:
    """Return ``text`` as lines of up to ``width`` columns; longer words are cut, or stay whole."""
    lines: list[str] = []
    line = ""
    for word in _BREAK.split(text):
        joined = f"{line} {word}" if line else word
        if cell_len(joined) <= width:
            line = joined
            continue
        if line:
            lines.append(line)
        *whole, line = chop_cells(word, width) if cut and word else [word]
        lines += whole
    return [*lines, line]


def _is_number(text: str) -> bool:
    return text in _NOTHING or _NUMBER.fullmatch(text) is not None


def _widths(table: Sequence[_Column], width: int | None) -> list[int] | None:
    """Return how wide each column is; None where even the narrowest ones are too wide together."""
    widths, *narrower = map(list, zip(*(column.widths for column in table), strict=True))
    if width is None:
        return widths
    room = width - len(_GAP) * (len(table) - 1)
    for least in narrower:
        _narrow(widths, least, room)
    return widths if sum(widths) <= room else None


def _narrow(widths: list[int], least: Sequence[int], room: int) -> None:
    """Take from the widest of ``widths`` until they fit in ``room`` or all are at their ``least``."""
    while (excess := sum(widths) - room) > 0 and widths != least:
        widest = max(now for now, end in zip(widths, least, strict=True) if now > end)
        for index in [i for i, now in enumerate(widths) if now == widest > least[i]][:excess]:
            widths[index] -= 1


def _folded(row: Sequence[str], widths: Sequence[int], numbers: Sequence[bool]) -> list[str]:
    """Return the lines of one row: as many as its longest cell takes."""
    cells = [fold(text, width) for text, width in zip(row, widths, strict=True)]
    height = max(map(len, cells), default=0)
    padded = [[*cell, *[""] * (height - len(cell))] for cell in cells]
    return [
        _GAP.join(map(_padded, line, widths, numbers)).rstrip()
        for line in zip(*padded, strict=True)
    ]


def _padded(text: str, width: int, right: bool = False) -> str:
    space = " " * (width - cell_len(text))
    return space + text if right else text + space


def _records(columns: Sequence[str], rows: Sequence[Sequence[str]], width: int | None) -> list[str]:
    """Return each row as lines of its own, with an empty line between two."""
    lines: list[str] = []
    for row in rows:
        lines += [""] if lines else []
        lines += lay_out_facts(zip(columns, row, strict=True), width)
    return lines


# Numbers as tables show them: the unit is in the head of the column, so that they can be compared.

_NONE = "-"
_SMALL = 0.095


class SizeUnit(NamedTuple):
    """The unit of all sizes of a table, or of a column."""

    name: str
    n_bytes: int

    def head(self, name: str) -> str:
        return f"{name} {self.name}"

    def show(self, size: int | None) -> str:
        """Return ``size`` bytes in this unit."""
        return number(None if size is None else size / self.n_bytes)

    def show_least(self, size: int | None) -> str:
        """Return ``size`` bytes rounded up, so that a user who types it gives enough."""
        return _NONE if size is None else f"{-(-size * 100 // self.n_bytes) / 100:.2f}"


KIB, MIB = SizeUnit("KiB", 1 << 10), SizeUnit("MiB", 1 << 20)


def unit_of(sizes: Iterable[int | None]) -> SizeUnit:
    """Return MiB, and KiB where none of ``sizes`` (bytes) has one."""
    largest = max((size for size in sizes if size is not None), default=0)
    return MIB if largest >= MIB.n_bytes else KIB


def unit_of_rows(rows: Iterable[Mapping[str, Any]], *keys: str) -> SizeUnit:
    """Return the unit for the sizes at ``keys`` of ``rows``."""
    return unit_of(row[key] for row in rows for key in keys)


def number(value: float | None) -> str:
    """Return ``value`` with two decimals, or two digits where it is too small for them."""
    if value is None:
        return _NONE
    return f"{value:.2g}" if 0 < value < _SMALL else f"{value:.2f}"


def percent(value: float | None) -> str:
    """Return ``value``, which is in percent."""
    return _NONE if value is None else f"{value:.1f}"
