"""Which channels and rows a bottleneck makes at a time, and in which order its operators run."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from models.packs.records.bottlenecks import Bottleneck, GroupInput, GroupOperator
from models.packs.records.rows import RowValue
from pipeline.program.boxes.box import Interval, around
from pipeline.program.cuts import RegionError
from pipeline.program.program import Program


def bottleneck_of(program: Program, pieces: range) -> Bottleneck:
    """Return the bottleneck that ``pieces`` are.

    Raises:
        RegionError: they are none.
    """
    for item in program.bottlenecks:
        if range(item.first_piece, item.end_piece) == pieces:
            return item
    raise RegionError(f"pieces {pieces.start} to {pieces.stop} are no bottleneck")


def groups(item: Bottleneck, most: int) -> list[Interval]:
    """Return all inner channels in groups of ``most``, the last ones in smaller sizes that there are."""
    found: list[Interval] = []
    first = 0
    for size in reversed([size for size in item.sizes if size <= most]):
        while item.channels - first >= size:
            found.append(Interval(first, first + size))
            first += size
    return found


def passes(item: Bottleneck) -> list[list[int]]:
    """Return which operators run for every group, then which for every group again, and so on.

    A pass but the last one ends with the one that runs once.
    """
    found = []
    for number, operator in enumerate(item.operators):
        if operator.kind in ("once", "sum"):
            found.append([*sorted(_made_for(item, number)), number])
    return found


def _made_for(item: Bottleneck, number: int) -> set[int]:
    """Return the operators that make for a group what ``number`` is made of."""
    found: set[int] = set()
    readers = [number]
    while readers:
        reader = item.operators[readers.pop()]
        for made in (taken.made for taken in reader.inputs):
            if made is None or made in found or item.operators[made].kind == "once":
                continue
            if item.operators[made].kind == "mean" and reader.kind != "once":
                continue
            found.add(made)
            readers.append(made)
    return found


def height(operator: GroupOperator) -> int:
    """Return the rows of what an operator makes."""
    return operator.shape[2]


@dataclass(frozen=True, slots=True)
class Band:
    """The rows that each operator has ``made`` of it, and those that are ``read`` of row values."""

    made: Sequence[Interval]
    read: Mapping[int, Interval]

    @property
    def result(self) -> Interval:
        return self.made[-1]


def bands(item: Bottleneck, rows: int, values: Sequence[RowValue]) -> list[Band]:
    """Return the bands of up to ``rows`` rows of the result; one: all rows.

    They are even: a last one of few rows would leave the padding below to the one before.

    Raises:
        RegionError: all rows are needed before the first; or operators need other rows of one tensor than
            their windows of a band say, or padding inside.
    """
    last = height(item.operators[-1])
    if rows >= last:
        inputs = (taken.row_value for operator in item.operators for taken in operator.inputs)
        return [
            Band(
                [Interval(0, height(operator)) for operator in item.operators],
                {read: Interval(0, values[read].height) for read in inputs if read is not None},
            )
        ]
    if any(operator.kind in ("mean", "once") for operator in item.operators):
        raise RegionError("factors of a gate are made of all rows")
    count = -(-last // rows)
    ends = [last * number // count for number in range(count + 1)]
    return [_band(item, Interval(*pair), values) for pair in pairwise(ends)]


def _band(item: Bottleneck, result: Interval, values: Sequence[RowValue]) -> Band:
    """Return the band of ``result``, through windows from there back."""
    made = [Interval(0, 0)] * len(item.operators)
    made[-1] = result
    for number, operator in reversed([*enumerate(item.operators)]):
        for taken in operator.inputs:
            if taken.made is not None:
                most = height(item.operators[taken.made])
                rows = made[number].through(taken.window).within(most)
                made[taken.made] = around((made[taken.made], rows))
    read: dict[int, Interval] = {}
    for operator, rows in zip(item.operators, made, strict=True):
        for taken in operator.inputs:
            if taken.row_value is not None and operator.kind != "sum":
                needed = _needed(operator, rows, taken, values[taken.row_value].height)
                there = read.setdefault(taken.row_value, needed)
            elif taken.made is not None:
                needed = _needed(operator, rows, taken, height(item.operators[taken.made]))
                there = made[taken.made]
            else:
                continue
            if there != needed:
                raise RegionError("operators need other rows of one tensor")
    return Band(made, read)


def _needed(operator: GroupOperator, rows: Interval, taken: GroupInput, most: int) -> Interval:
    """Return what ``rows`` need of an input of ``most`` rows.

    Raises:
        RegionError: they need padding and are not at a border.
    """
    wanted = rows.through(taken.window)
    above = wanted.first < 0 and rows.first > 0
    if above or (wanted.end > most and rows.end < height(operator)):
        raise RegionError(f"{len(rows)} rows at a time need padding inside")
    return wanted.within(most)


def edges(operator: GroupOperator, rows: Interval) -> int:
    """Return which of the four graphs of each size makes ``rows``: of all, the first, inner, the last."""
    above, below = rows.first == 0, rows.end == height(operator)
    return {(True, True): 0, (True, False): 1, (False, False): 2, (False, True): 3}[above, below]
