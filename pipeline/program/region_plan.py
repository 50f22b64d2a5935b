"""What a region is and what was planned of it: areas, actions, strips, phases. Plain values.

How they are found: pipeline/program/regions.py.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import Literal

from models.packs.records.pieces import Operand

#: What tiles take of what others made: nothing, so that they make overlaps again; all there is, line by
#: line; all there is, every other tile first (seed 002, Section 2.1.3).
Reuse = Literal["none", "raster", "checkerboard"]


@dataclass(frozen=True, slots=True)
class Region:
    """The pieces ``pieces`` of the program, ``rows`` rows of the last of them at a time.

    ``in_arena``: its weights lie in the arena while it runs, where activations of other times lie, and not
    in the ring.
    ``columns``: so many of these rows: it runs on tiles (seed 002), which ``reuse`` what others made.
    ``channels``: so many inner channels of these rows: the pieces are a bottleneck (seed 004).
    """

    first_piece: int
    end_piece: int
    rows: int
    columns: int | None = None
    reuse: Reuse = "none"
    in_arena: bool = False
    channels: int | None = None

    @property
    def pieces(self) -> range:
        return range(self.first_piece, self.end_piece)


@dataclass(frozen=True, slots=True)
class Columns:
    """Columns [first, first + count) of rows that are ``held`` columns wide where they lie."""

    first: int
    count: int
    held: int


@dataclass(frozen=True, slots=True)
class Area:
    """Rows [first_row, first_row + rows) of ``planes`` planes, in a strip or in a whole value.

    ``strip``: the number of a strip of the region, None: ``row_value`` where it is whole. There lie
    ``held_rows`` rows of each plane, one plane behind the other; these are those from ``first_plane`` on.
    ``columns``: of these rows, None: all of them. ``offset``: where in the strip it begins, in bytes.
    """

    row_value: int
    strip: int | None
    held_rows: int
    first_plane: int
    planes: int
    first_row: int
    rows: int
    columns: Columns | None = None
    offset: int = 0


@dataclass(frozen=True, slots=True)
class Move:
    """Copy rows of one area to another of the same size."""

    source: Area
    target: Area


@dataclass(frozen=True, slots=True)
class Fill:
    """Write what padding holds."""

    target: Area
    lowest: bool


@dataclass(frozen=True, slots=True)
class Call:
    """Run ``graph``, of row operator ``operator``, on whole strips."""

    operator: int
    graph: int
    inputs: tuple[Area, ...]
    output: Area


@dataclass(frozen=True, slots=True)
class InStrip:
    """Floats of ``shape``, ``offset`` bytes behind the beginning of a strip of the region."""

    strip: int
    shape: tuple[int, ...]
    offset: int = 0


@dataclass(frozen=True, slots=True)
class InValue:
    """Floats of ``shape``, ``offset`` bytes behind the beginning of a row value that lies whole."""

    row_value: int
    shape: tuple[int, ...]
    offset: int = 0


Place = InStrip | InValue | Operand


@dataclass(frozen=True, slots=True)
class Compute:
    """Run ``graph``, of operator ``operator`` of a bottleneck, on some channels."""

    operator: int
    graph: int
    inputs: tuple[Place, ...]
    output: InStrip | InValue


@dataclass(frozen=True, slots=True)
class Gather:
    """Copy what weights [outputs, inputs, 1, 1], in blocks of both, have of some inputs.

    ``source``: all of them as [blocks of outputs, blocks of inputs, elements]; ``blocks``: those to copy.
    """

    source: Operand
    blocks: tuple[int, int]
    target: InStrip


Action = Move | Fill | Call | Compute | Gather


@dataclass(frozen=True, slots=True)
class Strip:
    """Memory of a region, in use during the operators [start, end) of every phase.

    ``kept`` ones hold rows between phases, too: nothing else may lie there during the whole region.
    """

    n_bytes: int
    start: int
    end: int
    kept: bool = False


@dataclass(frozen=True)
class RegionPlan:
    """What a region does, phase by phase, and the memory it needs beside whole values.

    ``operators``: those of the program that it runs. ``read``, ``written``: row values that it takes from,
    or puts to, where they lie whole. ``over``: of the written ones, which of the read ones they replace.
    ``alone``: of the written ones, those that have memory of their own, though whole pieces would write
    over what is read. ``turns``: of a bottleneck, whose operators are others, how many follow each other.
    ``scratch_bytes``: what any kernel allocates.
    """

    region: Region
    operators: range
    strips: tuple[Strip, ...]
    phases: tuple[tuple[Action, ...], ...]
    read: frozenset[int]
    written: frozenset[int]
    over: tuple[tuple[int, int], ...] = ()
    alone: frozenset[int] = frozenset()
    turns: int = 0
    scratch_bytes: int = 0

    @property
    def moments(self) -> int:
        """How many operators follow each other in a phase; strips are in use during some of them."""
        return self.turns or len(self.operators)

    @cached_property  # planners count them in hundreds of plans
    def launched(self) -> frozenset[tuple[Action, ...]]:
        """What is launched at once in any phase, each once."""
        return frozenset(launch for phase in set(self.phases) for launch in launches(phase))

    def live_bytes(self) -> int:
        """Return the most that its strips hold at once."""
        changes = [0] * (self.moments + 1)
        for strip in self.strips:
            start, end = (0, -1) if strip.kept else (strip.start, strip.end)
            changes[start] += strip.n_bytes
            changes[end] -= strip.n_bytes
        return max(accumulate(changes))


def launches(phase: Sequence[Action]) -> list[tuple[Action, ...]]:
    """Return ``phase`` as what is launched at once: kernels of a bottleneck that follow each other are."""
    found: list[tuple[Action, ...]] = []
    for action in phase:
        if found and isinstance(action, Compute) and isinstance(found[-1][-1], Compute):
            found[-1] = (*found[-1], action)
        else:
            found.append((action,))
    return found


class RegionError(Exception):
    """These pieces cannot run on rows."""
