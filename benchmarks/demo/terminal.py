"""Memory over time as text: one chart below the other, the same scales, the limit as a line."""

from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.demo.story import Shown
from benchmarks.machine.sampling import MemorySample

_WIDTH, _HEIGHT = 68, 5


@dataclass(frozen=True)
class Marks:
    """The characters of a chart."""

    anonymous: str
    file: str
    limit: str
    answer: str
    axis: str


BLOCKS = Marks("█", "░", "┄", "▲", "─")
PLAIN = Marks("#", ":", "-", "^", "_")


def marks_for(encoding: str | None) -> Marks:
    """Return the characters that ``encoding`` has."""
    try:
        "".join(vars(BLOCKS).values()).encode(encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return PLAIN
    return BLOCKS


def chart(rows: Sequence[Shown], marks: Marks) -> list[str]:
    """Return the lines of all charts, at most 79 characters each."""
    seconds = max(
        (row.attempt.samples[-1].seconds for row in rows if row.attempt.samples), default=1.0
    )
    limit = rows[0].limit_bytes
    top = max(limit, *(sample.usage.total for row in rows for sample in row.attempt.samples))
    lines = [f"memory over {seconds:.1f} s: {marks.anonymous} anonymous  {marks.file} files, which the "
             f"kernel can drop  {marks.answer} an answer"]  # fmt: skip
    for row in rows:
        lines += [row.title, *_one(row, marks, seconds, top)]
    return lines


def columns(samples: Sequence[MemorySample], seconds: float) -> list[tuple[int, int]]:
    """Return (anonymous, total) of each column: the largest in its time, or as the last one before."""
    found = [(0, 0)] * _WIDTH
    last = 0
    for sample in samples:
        index = min(int(sample.seconds / seconds * _WIDTH), _WIDTH - 1)
        for gap in range(last + 1, index):
            found[gap] = found[last]
        anonymous, total = found[index]
        usage = sample.usage
        found[index] = max(anonymous, usage.anonymous), max(total, usage.total)
        last = index
    return found


def _one(row: Shown, marks: Marks, seconds: float, top: int) -> list[str]:
    filled = columns(row.attempt.samples, seconds)
    at_limit = round(row.limit_bytes / top * _HEIGHT)
    lines = []
    for level in range(_HEIGHT, 0, -1):
        threshold = (level - 0.5) / _HEIGHT * top
        blank = marks.limit if level == at_limit else " "
        cells = [
            marks.anonymous
            if anonymous >= threshold
            else marks.file
            if total >= threshold
            else blank
            for anonymous, total in filled
        ]
        label = f"{row.limit_bytes / 1e6:.0f} MB" if level == at_limit else ""
        lines.append(f"{label:>7} {''.join(cells)}".rstrip())
    axis = [marks.axis] * _WIDTH
    for moment in row.attempt.moments:
        axis[min(int(moment / seconds * _WIDTH), _WIDTH - 1)] = marks.answer
    return [*lines, f"{'':>7} {''.join(axis)}"]
