"""What the pieces of a network take where they run whole, for each size of ring, and their chunks there."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Self

import numpy as np
from numpy.typing import NDArray

from pipeline.planning.rows.live_values import LiveValues
from pipeline.planning.rows.ways import NO_ARENA, MemoryLimits, Numbers, Whole
from pipeline.planning.spaced_sizes import spaced
from pipeline.program.choice import (
    BINDING_BYTES,
    choose_pieces,
    chunk_sizes,
    finest_positions,
    ring_bytes,
)
from pipeline.program.program import Program
from pipeline.program.steps import STEP_BYTES

_RINGS = 8
# Sizes of rings that differ by less are one.
_RATIO = 1.25
# Sizes of scratch that differ by less are one; what saves less than a part of all activations is none.
_SCRATCH_RATIO = 2.0
_SCRATCH_PART = 64


class WholePieces:
    """Those of ``program`` between ``places``; none may read what exists only as its parts, ``apart``.

    ``only_activations``: weights count for nothing. ``preloaded``: nor do they take anything, in the
    coarsest chunks. ``into_arena``: those of regions may lie in the arena.
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
        preloaded: bool = False,
        into_arena: bool = True,
    ) -> None:
        self._program = program
        self._only_activations = only_activations
        self._preloaded = preloaded
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

        More than all activations is too much, unless these alone are limited.
        """
        least = max(self._program.largest_chunk_bytes, 1)
        weights = sum(span.length for span in self._program.spans)
        if self._preloaded:
            return np.array([max(least, weights)], np.int64)
        most = max(weights if self._only_activations else min(self.most, weights), least)
        known = {size for size in chunk_sizes(self._program) if least <= size <= most}
        ladder = {round(least * (most / least) ** (step / (_RINGS - 1))) for step in range(_RINGS)}
        sizes = spaced(sorted(known | ladder | {least}), _RATIO)
        if not self._into_arena:
            sizes.append(most)  # for a region of all
        return np.unique(np.array(sizes, np.int64))

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
            if not self._preloaded:
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
        found = []
        for ring, level in zip(rings.tolist(), own.tolist(), strict=True):
            finer = fine[fine <= level]
            found += [(ring, each, scratch) for each in sorted({level, *finer[-1:].tolist()})]
        return MemoryLimits(*np.array(found, np.int64).reshape(-1, 3).T)

    def graphs(self, regions: Iterable[range], level: int) -> NDArray[np.bool_]:
        """Return which graphs pieces have that run whole, outside of ``regions``, in chunks of a level."""
        pieces = self._pieces[level]
        whole = np.ones(self._program.own.stop, bool)
        for region in regions:
            whole[region.start : region.stop] = False
        found = np.zeros(len(self._program.graphs), bool)
        found[pieces.graph[whole[pieces.first]]] = True
        return found

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
