"""Which rows each operator of a region makes in each phase.

The last operator makes so many rows a phase; what those need decides, backwards, what the others make: in
the first phase more, then what strides multiply it by, in the last phase what is left. Every row is made
once (seed 001: phases of a schedule, with the overlap kept between them).
"""

from collections.abc import Sequence
from dataclasses import dataclass

from models.packs.manifest import Window
from pipeline.program.row_network import RowNetwork


@dataclass(frozen=True)
class Rows:
    """Rows [first, end)."""

    first: int
    end: int

    def __len__(self) -> int:
        return max(self.end - self.first, 0)


def needed(window: Window, rows: Rows) -> Rows:
    """Return the rows that output ``rows`` are made of; some of them may lie outside of the input."""
    if window.factor > 1:
        return Rows(rows.first // window.factor, -(-rows.end // window.factor))
    first = rows.first * window.stride - window.above
    return Rows(first, (rows.end - 1) * window.stride - window.above + window.kernel)


def row_ranges(
    network: RowNetwork, pieces: range, operators: range, rows: int, kept: Sequence[bool]
) -> list[list[Rows]]:
    """Return, for each phase, the rows that each of ``operators``, those of ``pieces``, makes.

    ``rows``: of the last operator, in one phase. ``kept[i]``: whether what operator i makes is read
    outside of the region; it is made to its last row then.
    """
    last = network.values[network.operators[operators[-1]].output].height
    count = max(-(-last // rows), 1)
    shares = [((phase + 1) * rows, last) for phase in range(count)]
    done = _targets(network, pieces, operators, kept, shares)
    before = [0] * len(operators)
    phases = []
    for phase in range(count):
        ends = [max(targets[phase], start) for targets, start in zip(done, before, strict=True)]
        phases.append([Rows(start, end) for start, end in zip(before, ends, strict=True)])
        before = ends
    return phases


def _targets(
    network: RowNetwork,
    pieces: range,
    operators: range,
    kept: Sequence[bool],
    shares: Sequence[tuple[int, int]],
) -> list[list[int]]:
    """Return, for each operator and phase, how many rows must have been made when it ends.

    ``shares``: of the last operator's rows, and how many these are.
    """
    wanted: dict[int, list[int]] = {}  # by row value
    found: list[list[int]] = [[] for _ in operators]
    for position in reversed(range(len(operators))):
        operator = network.operators[operators[position]]
        height = network.values[operator.output].height
        targets = wanted.get(operator.output)
        if targets is None:  # nobody inside reads it: in step with the last one
            targets = [min(-(-height * rows // last), height) for rows, last in shares]
        unit = max(item.window.factor for item in operator.inputs)
        targets = [min(-(-target // unit) * unit, height) for target in targets]
        if kept[position]:
            targets[-1] = height
        found[position] = targets
        for item in operator.inputs:
            limit = network.values[item.row_value].height
            ends = _needed_ends(item.window, targets, limit)
            for part in network.parts(item.row_value, pieces):
                held = wanted.get(part.row_value, [0] * len(shares))
                wanted[part.row_value] = [max(pair) for pair in zip(held, ends, strict=True)]
    return found


def _needed_ends(window: Window, ends: Sequence[int], limit: int) -> list[int]:
    """Return up to where an input of ``limit`` rows is needed for the output rows [0, end)."""
    factor, stride = window.factor, window.stride
    if factor > 1:
        return [min(-(-end // factor), limit) for end in ends]
    beyond = window.kernel - stride - window.above
    return [min(max(end * stride + beyond, 0), limit) if end else 0 for end in ends]
