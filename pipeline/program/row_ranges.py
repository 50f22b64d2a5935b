"""Which rows each operator of a region makes in each phase.

The last operator makes so many rows a phase; what those need decides, backwards, what the others make: so
many times as many as strides multiply it by. For its first row, others need more than that. So that no
phase makes more than the rest, the first ones run before the last operator has anything to do: they are
counted as if it had made rows before its first. Every row is made once (seed 001: phases of a schedule,
with the overlap kept between them).
"""

from collections.abc import Sequence
from dataclasses import dataclass

from models.network.windows import Window
from pipeline.program.row_network import RowNetwork

# So many rows of the last operator are phases ahead of its first one spread over.
_MOST_AHEAD = 48


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows [first, end)."""

    first: int
    end: int

    def __len__(self) -> int:
        return max(self.end - self.first, 0)

    def through(self, window: Window) -> "Rows":
        """Return the rows that these are made of; some of them may lie outside of the input."""
        return Rows(*window.needed(self.first, self.end))

    def common(self, other: "Rows") -> "Rows":
        return Rows(max(self.first, other.first), min(self.end, other.end))

    def within(self, height: int) -> "Rows":
        """Return those of a value of ``height``."""
        return self.common(Rows(0, height))


def shares(rows: int, height: int) -> list[int]:
    """Return up to which row the last operator of ``height`` has come in each phase; below 0: not begun."""
    ahead = -(-_MOST_AHEAD // rows)
    count = max(-(-height // rows), 1)
    return [min((phase + 1) * rows, height) for phase in range(-ahead, count)]


def row_ranges(
    network: RowNetwork, pieces: range, operators: range, rows: int, kept: Sequence[bool]
) -> list[list[Rows]]:
    """Return, for each phase, the rows that each of ``operators``, those of ``pieces``, makes.

    ``rows``: of the last operator, in one phase. ``kept[i]``: whether what operator i makes is read
    outside of the region; it is made to its last row then.
    """
    last = network.values[network.operators[operators[-1]].output].height
    done = _targets(network, pieces, operators, kept, shares(rows, last))
    before = [0] * len(operators)
    phases: list[list[Rows]] = []
    for targets in zip(*done, strict=True):
        ends = [max(pair) for pair in zip(targets, before, strict=True)]
        if phases or any(ends):  # the first ones may be before anything begins
            phases.append([Rows(start, end) for start, end in zip(before, ends, strict=True)])
        before = ends
    return phases


def _targets(
    network: RowNetwork,
    pieces: range,
    operators: range,
    kept: Sequence[bool],
    progress: Sequence[int],
) -> list[list[int]]:
    """Return, for each operator and phase, how many rows must have been made when it ends.

    ``progress``: of the last operator. What others would have made before their first row is below 0.
    """
    last = network.values[network.operators[operators[-1]].output].height
    wanted: dict[int, list[int]] = {}  # by row value
    found: list[list[int]] = [[] for _ in operators]
    for position in reversed(range(len(operators))):
        operator = network.operators[operators[position]]
        height = network.values[operator.output].height
        targets = wanted.get(operator.output)
        if targets is None:  # nobody inside reads it: in step with the last one
            targets = [-(-height * rows // last) for rows in progress]
        unit = operator.unit
        targets = [min(-(-target // unit) * unit, height) for target in targets]
        if kept[position]:
            targets[-1] = height
        found[position] = targets
        for item in operator.inputs:
            limit = network.values[item.row_value].height
            ends = [min(item.window.end(target), limit) for target in targets]
            for part in network.parts(item.row_value, pieces):
                held = wanted.get(part.row_value, ends)
                wanted[part.row_value] = [max(pair) for pair in zip(held, ends, strict=True)]
    return found
