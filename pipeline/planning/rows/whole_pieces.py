"""What the pieces of a network take where they run whole, for each size of ring, and their chunks there."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate, pairwise
from typing import Self

import numpy as np
from numpy.typing import NDArray

from pipeline.planning.rows.ways import NO_ARENA, MemoryLimits, Numbers, Whole
from pipeline.planning.streaming import spaced
from pipeline.program.choice import (
    BINDING_BYTES,
    choose_pieces,
    chunk_sizes,
    finest_positions,
    ring_bytes,
)
from pipeline.program.lives import lifetimes
from pipeline.program.program import Program
from pipeline.program.row_network import RowNetwork
from pipeline.program.shared_memory import roots
from pipeline.program.steps import STEP_BYTES

# What whole values and weights take around a place, or between two places, of a network.


class LiveValues:
    """Sums over values that live, in bytes; the parts of those in ``apart`` lie anywhere.

    ``given``: inputs that stay with the request, since only regions read them.
    """

    def __init__(
        self,
        network: RowNetwork,
        apart: frozenset[int] = frozenset(),
        given: frozenset[int] = frozenset(),
    ) -> None:
        self._program = program = network.program
        self._network = network
        self._given = given
        self._lives = tuple(
            replace(life, n_bytes=0) if value in given else life
            for value, life in enumerate(lifetimes(program, apart=apart))
        )
        self._roots = [root for root, _ in roots(program, apart=apart)]
        self._inputs = {port.value for port in program.inputs}
        self._sizes, self._starts, self._ends = (
            np.array([(life.n_bytes, life.start, life.end) for life in self._lives], np.int64)
            .reshape(-1, 3)
            .T
        )

    @cached_property
    def live(self) -> list[int]:
        """Bytes in use while each piece runs."""
        return self._sums(lambda start, end: (start, end))[:-1]

    @cached_property
    def crossing(self) -> list[int]:
        """Bytes that are kept between piece i - 1 and piece i."""
        return self._sums(lambda start, end: (start + 1, end))

    def weights(self, start: int, end: int) -> int:
        """Return the streamed weights of the pieces [start, end)."""
        return self._weights_before[end] - self._weights_before[start]

    @cached_property
    def _weights_before(self) -> list[int]:
        spans, seen = self._program.spans, set[int]()
        before = [0] * (self._program.own.start + 1)
        for piece in self._program.own_pieces:
            new = (
                piece.span is not None and piece.span not in seen and not spans[piece.span].resident
            )
            before.append(
                before[-1] + (spans[piece.span].length if new and piece.span is not None else 0)
            )
            if piece.span is not None:
                seen.add(piece.span)
        return before

    def beside(self, start: int, end: int, touched: frozenset[int], by_rows: bool = True) -> int:
        """Return the bytes of whole values that live while a region of the pieces [start, end) runs.

        ``touched``: the row values that it reads or writes whole; inputs ``by_rows``.
        """
        after = self._network.readers.after(end)
        values = {self._network.values[number].value for number in touched}
        # Rows of an input come from the request, unless others read it later.
        whole = {
            self._roots[value]
            for value in values
            if not by_rows
            or value not in self._inputs
            or (value in after and value not in self._given)
        }
        through = (self._starts < start) & (self._ends > end)
        through[list(whole)] = True
        return int(self._sizes[through].sum())

    def _sums(self, when: Callable[[int, int], tuple[int, int]]) -> list[int]:
        count = self._program.own.stop
        changes = [0] * (count + 3)
        for life in self._lives:
            start, end = when(life.start, life.end)
            if start < end:
                changes[start] += life.n_bytes
                changes[end] -= life.n_bytes
        return list(accumulate(changes[: count + 1]))


# Pieces that run whole.

_RINGS = 8
# Sizes of rings that differ by less are one.
_RATIO = 1.25
# Sizes of scratch that differ by less are one; what saves less than a part of all activations is none.
_SCRATCH_RATIO = 2.0
_SCRATCH_PART = 64


class WholePieces:
    """Those of ``program`` between ``places``; none may read what exists only as its parts, ``apart``.

    ``only_activations``: weights are not counted. ``into_arena``: those of regions may lie in the arena.
    """

    def __init__(
        self,
        program: Program,
        live: LiveValues,
        places: Sequence[int],
        apart: frozenset[int],
        piece_seconds: Callable[[int], float],
        *,
        only_activations: bool = False,
        into_arena: bool = True,
    ) -> None:
        self._program = program
        self._only_activations = only_activations
        self._into_arena = into_arena
        self._live = live
        self._places = places
        self._apart = apart
        self._piece_seconds = piece_seconds

    @cached_property
    def most(self) -> int:
        """The most memory that is worth a thought: where everything runs whole."""
        return max(self._live.live, default=0)

    @cached_property
    def rings(self) -> Numbers:
        """The rings that are tried: from the largest chunk in even ratios to what no plan needs.

        More than all activations is too much, unless these alone are limited. Where all weights stay, in
        the coarsest chunks, there is nothing to try.
        """
        least = max(self._program.largest_chunk_bytes, 1)
        weights = sum(
            span.length
            for index, span in enumerate(self._program.spans)
            if index not in self._program.tables
        )
        if all(span.resident for span in self._program.spans):
            return np.array([max(least, weights)], np.int64)
        most = max(weights if self._only_activations else min(self.most, weights), least)
        known = {size for size in chunk_sizes(self._program) if least <= size <= most}
        ladder = {round(least * (most / least) ** (step / (_RINGS - 1))) for step in range(_RINGS)}
        sizes = spaced(sorted(known | ladder | {least}), _RATIO)
        if not self._into_arena:
            sizes.append(most)  # for a region of all
        return np.array(sorted(set(sizes)), np.int64)  # np.unique imports numpy.ma, 1 MB

    @cached_property
    def cost(self) -> Whole:
        """What runs between each two places, for each of ``rings``."""
        live = self._live.live
        between = list(pairwise(self._places))
        ring = np.zeros((len(self.rings), len(between)), np.int64)
        scratch, bound = np.zeros_like(ring), np.zeros_like(ring)
        numbers = np.searchsorted(self._places, range(self._program.own.stop), side="right") - 1
        for level, pieces in enumerate(self._pieces):
            np.add.at(bound[level], numbers[pieces.first], BINDING_BYTES + STEP_BYTES)
            np.maximum.at(scratch[level], numbers[pieces.first], pieces.scratch)
            np.maximum.at(ring[level], numbers[pieces.first], pieces.streamed)
        arena = np.array([max(live[start:end]) for start, end in between], np.int64)
        for index in self._program.own:
            if any(
                item.kind == "value" and item.index in self._apart
                for item in self._program.pieces[index].inputs
            ):
                arena[numbers[index]] = NO_ARENA
        seconds = [sum(map(self._piece_seconds, range(start, end))) for start, end in between]
        return Whole(arena, scratch, ring, bound, np.array(seconds))

    @cached_property
    def scratch_sizes(self) -> list[int]:
        """Sizes of scratch to try: any, then what saves some of what all need whole, the least first."""
        sizes = sorted({*self.cost.scratch.reshape(-1).tolist(), 0})
        most = sizes[-1] - max(self.most, sizes[-1]) // _SCRATCH_PART
        kept = [size for size in spaced(sizes, _SCRATCH_RATIO) if size < most]
        return [NO_ARENA, *kept]

    def limits(self, rings: Numbers, scratch: int) -> MemoryLimits:
        """Return ``rings`` with that size of scratch, and the chunks of pieces that run whole.

        These are as coarse as the ring holds them, and also as coarse as needs no more scratch.
        """
        own = np.searchsorted(self.rings, rings, side="right") - 1
        fine = np.flatnonzero(self.cost.scratch.max(axis=1, initial=0) <= scratch)
        rows = []
        for ring, level in zip(rings.tolist(), own.tolist(), strict=True):
            finer = fine[fine <= level]
            rows += [(ring, each, scratch) for each in sorted({level, *finer[-1:].tolist()})]
        return MemoryLimits(*np.array(rows, np.int64).reshape(-1, 3).T)

    def graphs(self, regions: Iterable[range], level: int) -> NDArray[np.bool_]:
        """Return which graphs pieces have that run whole, outside of ``regions``, in chunks of a level."""
        pieces = self._pieces[level]
        whole = np.ones(self._program.own.stop, bool)
        for region in regions:
            whole[region.start : region.stop] = False
        used = np.zeros(len(self._program.graphs), bool)
        used[pieces.graph[whole[pieces.first]]] = True
        return used

    @cached_property
    def _pieces(self) -> list["_Pieces"]:
        """For each ring the pieces that run where everything is whole."""
        return [_Pieces.of(self._program, int(ring)) for ring in self.rings]


@dataclass(frozen=True, slots=True)
class _Pieces:
    """Pieces of one chunk size: the first of the program's that each stands for, and what it takes.

    ``scratch``: bytes of its kernel; ``streamed``: bytes of weights that must be in the ring.
    """

    first: Numbers
    graph: Numbers
    scratch: Numbers
    streamed: Numbers

    @classmethod
    def of(cls, program: Program, chunk_bytes: int) -> Self:
        """Return the pieces that run where chunks have up to so many bytes."""
        pieces = choose_pieces(program, chunk_bytes)
        rows = [
            (at.start, piece.graph, piece.scratch_bytes, ring_bytes(program, piece))
            for piece, at in zip(pieces, finest_positions(program, pieces), strict=True)
        ]
        return cls(*np.array(rows, np.int64).reshape(-1, 4).T)
