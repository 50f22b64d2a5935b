"""Which channels and rows a bottleneck makes at a time, and in which order its operators run."""

from dataclasses import dataclass
from itertools import accumulate, pairwise

from models.packs.manifest import Manifest
from models.packs.records.bottlenecks import Bottleneck, GroupOperator
from pipeline.program.boxes.box import Interval, around
from pipeline.program.cuts import RegionError


@dataclass(frozen=True, slots=True)
class Group:
    """Inner channels [first, first + count)."""

    first: int
    count: int


def bottleneck_of(manifest: Manifest, pieces: range) -> Bottleneck:
    """Return the bottleneck that ``pieces`` are.

    Raises:
        RegionError: they are none.
    """
    for item in manifest.bottlenecks:
        if range(item.first_piece, item.end_piece) == pieces:
            return item
    raise RegionError(f"pieces {pieces.start} to {pieces.stop} are no bottleneck")


def groups(item: Bottleneck, most: int) -> list[Group]:
    """Return all channels in groups of ``most``, the last ones in smaller sizes that there are."""
    sizes = [size for size in reversed(item.sizes) if size <= most]
    counts: list[int] = []
    left = item.channels
    for size in sizes:
        counts += [size] * (left // size)
        left %= size
    starts = accumulate(counts, initial=0)
    return [Group(first, count) for first, count in zip(starts, counts, strict=False)]


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


def bands(item: Bottleneck, rows: int) -> list[list[Interval]]:
    """Return, for each band of up to ``rows`` rows of the result, what each operator makes for it.

    They are even: a last one of few rows would leave the padding below to the one before.

    Raises:
        RegionError: all rows are needed before the first.
    """
    last = height(item.operators[-1])
    if rows >= last:
        return [[Interval(0, height(operator)) for operator in item.operators]]
    if any(operator.kind in ("mean", "once") for operator in item.operators):
        raise RegionError("factors of a gate are made of all rows")
    count = -(-last // rows)
    ends = [last * number // count for number in range(count + 1)]
    return [_band(item, Interval(first, end)) for first, end in pairwise(ends)]


def _band(item: Bottleneck, result: Interval) -> list[Interval]:
    """Return what each operator makes of what later ones need."""
    found = [Interval(0, 0)] * len(item.operators)
    found[-1] = result
    for number in range(len(item.operators) - 1, -1, -1):
        for taken in item.operators[number].inputs:
            if taken.made is not None:
                most = height(item.operators[taken.made])
                rows = found[number].through(taken.window).within(most)
                found[taken.made] = around((found[taken.made], rows))
    return found


def edges(operator: GroupOperator, rows: Interval) -> int:
    """Return which of the four graphs of each size makes ``rows``: of all, the first, inner, the last."""
    above, below = rows.first == 0, rows.end == height(operator)
    return {(True, True): 0, (True, False): 1, (False, False): 2, (False, True): 3}[above, below]


def is_padded_inside(operator: GroupOperator, wanted: Interval, rows: Interval, most: int) -> bool:
    """Return whether ``rows``, made of ``wanted`` of ``most``, need padding and are not at a border."""
    above = wanted.first < 0 and rows.first > 0
    return above or (wanted.end > most and rows.end < height(operator))
