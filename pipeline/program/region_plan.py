"""What a region is, and what was planned of it: areas, actions, strips, phases.

How they are found: pipeline/program/regions.py.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate
from typing import ClassVar, NamedTuple

from models.packs.records.pieces import Operand
from models.records import NonNegativeInt, PositiveInt, Record

# The definition of a region: pieces that follow each other, and the parts in which they are computed.


class RegionError(Exception):
    """These pieces cannot run so; the message says why."""


def check_sizes(*sizes: int) -> None:
    """Raise RegionError unless each size is 1 at least."""
    if min(sizes) < 1:
        raise RegionError(f"{sizes} at a time: at least one of each")


@dataclass(frozen=True, slots=True)
class RowCut(Record):
    """So many rows of the last operator's output (seed 001)."""

    rows: PositiveInt

    #: Whether what lies outside is read row by row, so that a request's own array may be asked for them.
    takes_rows: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_sizes(self.rows)


@dataclass(frozen=True, slots=True)
class ChannelCut(Record):
    """So many inner channels of a bottleneck, on bands of so many rows of its result (seed 004)."""

    channels: PositiveInt
    rows: PositiveInt

    takes_rows: ClassVar[bool] = False

    def __post_init__(self) -> None:
        check_sizes(self.channels, self.rows)


Cut = RowCut | ChannelCut


@dataclass(frozen=True, slots=True)
class Region(Record):
    """The pieces [first_piece, end_piece) of the manifest, a part of them at a time as ``cut`` says.

    ``in_arena``: its weights lie in the arena while it runs, where activations of other times lie, and not
    in the ring.
    """

    first_piece: NonNegativeInt
    end_piece: NonNegativeInt
    cut: Cut
    in_arena: bool = False

    @property
    def pieces(self) -> range:
        return range(self.first_piece, self.end_piece)


# What was planned of a region: areas, actions, strips, phases.


class Area(NamedTuple):
    """Columns [first_column, first_column + columns) of ``rows`` rows from ``first_row`` on, of planes.

    ``strip``: the number of a strip of the region, None: ``row_value`` where it is whole. There lie
    ``held_rows`` rows of ``held_columns`` columns of each plane, one plane behind the other; these are of
    ``planes`` planes from ``first_plane`` on. ``offset``: where in the strip it begins, in bytes.
    """

    row_value: int
    strip: int | None
    held_rows: int
    held_columns: int
    first_plane: int
    planes: int
    first_row: int
    rows: int
    first_column: int
    columns: int
    offset: int = 0

    @property
    def pixels(self) -> int:
        """Of all planes."""
        return self.planes * self.rows * self.columns


class AreaCopy(NamedTuple):
    """Copy rows of one area to another of the same size."""

    source: Area
    target: Area


class Fill(NamedTuple):
    """Write what padding holds."""

    target: Area
    lowest: bool


class GraphCall(NamedTuple):
    """Run row operator ``operator`` on whole strips."""

    operator: int
    inputs: tuple[Area, ...]
    output: Area


class Floats(NamedTuple):
    """Floats of ``shape``, ``offset`` bytes behind where a strip begins, or a row value that is whole."""

    strip: int | None
    row_value: int | None
    shape: tuple[int, ...]
    offset: int = 0


class Compute(NamedTuple):
    """Run ``graph``, of operator ``operator`` of a bottleneck, on some channels."""

    operator: int
    graph: int
    inputs: tuple[Floats | Operand, ...]
    output: Floats


class WeightGather(NamedTuple):
    """Copy what weights [outputs, inputs, 1, 1], in blocks of both, have of some inputs.

    ``source``: all of them as [blocks of outputs, blocks of inputs, elements]; ``blocks``: those to copy.
    """

    source: Operand
    blocks: tuple[int, int]
    target: Floats


Action = AreaCopy | Fill | GraphCall | Compute | WeightGather


@dataclass(frozen=True, slots=True)
class Strip:
    """Memory of a region, in use during the operators [start, end) of every phase.

    ``kept`` ones hold something between phases, too: they are in use during all operators.
    """

    n_bytes: int
    start: int
    end: int
    kept: bool = False


class Strips:
    """The strips of a region of so many ``moments`` while it is planned, given by their numbers."""

    def __init__(self, moments: int) -> None:
        self.moments = moments
        self._strips: list[Strip] = []

    def during(self, start: int, end: int, n_bytes: int = 0) -> int:
        """Return a new strip, in use during [start, end)."""
        self._strips.append(Strip(n_bytes, start, end, kept=False))
        return len(self._strips) - 1

    def kept(self, n_bytes: int = 0) -> int:
        """Return a new strip that stays through all phases."""
        self._strips.append(Strip(n_bytes, 0, self.moments, kept=True))
        return len(self._strips) - 1

    def prolong(self, strip: int, end: int) -> None:
        """Have it in use until ``end`` at least."""
        if end > self._strips[strip].end:
            self._strips[strip] = replace(self._strips[strip], end=end)

    def hold(self, strip: int, n_bytes: int) -> None:
        """Make it as large as that at least."""
        if n_bytes > self._strips[strip].n_bytes:
            self._strips[strip] = replace(self._strips[strip], n_bytes=n_bytes)

    def built(self) -> tuple[Strip, ...]:
        return tuple(self._strips)


@dataclass(frozen=True)
class RegionPlan:
    """What a region does, phase by phase, and the memory it needs beside whole values.

    ``operators``: the row operators that it runs; none of a bottleneck, which has operators of its own.
    ``moments``: how many follow each other, at most, in a phase; strips are in use during some of them.
    ``read``, ``written``: row values that it takes from, or puts to, where they lie whole. ``over``: of the
    written ones, which of the read ones they replace. ``alone``: of the written ones, those that have
    memory of their own, though whole pieces would write over what is read. ``scratch_bytes``: what any
    kernel allocates.
    """

    region: Region
    operators: range
    moments: int
    strips: tuple[Strip, ...]
    phases: tuple[tuple[Action, ...], ...]
    read: frozenset[int]
    written: frozenset[int]
    over: tuple[tuple[int, int], ...] = ()
    alone: frozenset[int] = frozenset()
    scratch_bytes: int = 0

    @cached_property  # planners count them in hundreds of plans
    def launched(self) -> frozenset[tuple[Action, ...]]:
        """What is launched at once in any phase, each once."""
        return frozenset(launch for phase in set(self.phases) for launch in launches(phase))

    def live_bytes(self) -> int:
        """Return the most that its strips hold at once."""
        changes = [0] * (self.moments + 1)
        for strip in self.strips:
            changes[strip.start] += strip.n_bytes
            changes[strip.end] -= strip.n_bytes
        return max(accumulate(changes))


def with_equal_as_one(phases: Iterable[Iterable[Action]]) -> tuple[tuple[Action, ...], ...]:
    """Return ``phases`` with actions that are alike, as most are in many of them, as one object."""
    same: dict[Action, Action] = {}
    return tuple(tuple(same.setdefault(action, action) for action in phase) for phase in phases)


def launches(phase: Sequence[Action]) -> list[tuple[Action, ...]]:
    """Return ``phase`` as what is launched at once: kernels of a bottleneck that follow each other are."""
    launched: list[tuple[Action, ...]] = []
    for action in phase:
        if launched and isinstance(action, Compute) and isinstance(launched[-1][-1], Compute):
            launched[-1] = (*launched[-1], action)
        else:
            launched.append((action,))
    return launched
